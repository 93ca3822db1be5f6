"""URIs as they may be shown: without passwords, tokens and keys.

Catalog URLs and roots of shards may hold credentials. They pass through errors, logs, `status`, the
command line and Spark's event log, which more people read than may know them. So whatever puts a
URI into a text calls `shown`; and every error of ours goes through `redact`, whoever made its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, unquote

HIDDEN = "***"

# Parameters that hold no secret. Drivers know more than we do, so all others are hidden.
_HARMLESS = frozenset(
    [
        "allow_bucket_creation",
        "allow_bucket_deletion",
        "allow_delayed_open",
        "anonymous",
        "application_name",
        "charset",
        "client_encoding",
        "connect_timeout",
        "dbname",
        "driver",
        "endpoint_override",
        "gssencmode",
        "host",
        "hostaddr",
        "keepalives",
        "mode",
        "options",
        "port",
        "region",
        "replication",
        "retry_limit_seconds",
        "scheme",
        "sslmode",
        "target_session_attrs",
        "timeout",
        "uri",
    ]
)
# A password may have blanks in it: a URI reaches to the last `@` of its line, but not into another URI.
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://(?:(?:(?!://)[^\n])*@)?\S*")
_NO_PART = "'\"`()<>,;"  # characters that stand around a URI in a sentence


def shown(uri: object) -> str:
    """A URI without its password and without parameters that may be secret. Paths stay as they are.

    Where a password has `@` or `/` in it, its end is not certain, and more is hidden than need be.

    >>> shown("postgresql+psycopg://ann:pa/ss@db:5432/flights?sslmode=require&sslpassword=x")
    'postgresql+psycopg://ann:***@db:5432/flights?sslmode=require&sslpassword=***'
    """
    text = str(uri)
    scheme, mark, rest = text.partition("://")
    if not mark:
        return text
    head, question, query = rest.partition("?")
    if "@" in query and ":" in head:  # is that `?` in a password, or the `@` in a parameter?
        return f"{scheme}://{HIDDEN}"
    named, at, place = head.rpartition("@")
    if at and not head.startswith("/"):
        user, colon, _ = named.partition(":")
        # Without a colon there is no password: the user stands there alone, in some URIs a container.
        head = f"{user}:{HIDDEN}@{place}" if colon else head
    query = "&".join(_parameter(part) for part in query.split("&"))
    return f"{scheme}://{head}{question}{query}"


def _parameter(part: str) -> str:
    name, equals, value = part.partition("=")
    if not equals:
        return HIDDEN if part else part
    if unquote(name).lower() not in _HARMLESS:
        return f"{name}={HIDDEN}"
    return f"{name}={_hide_parts(value)}"


def _hide_parts(value: str) -> str:
    """A parameter's text as it may be shown: an address may be a URL with a password of its own."""
    plain = unquote(value)
    if "://" in plain:
        safe = shown(plain)
        return value if safe == plain else quote(safe, safe="/:@*")
    return HIDDEN if re.search(r"(?i)passw|secret|token", plain) else value


def redact(text: str) -> str:
    """A text with every URI in it as it may be shown."""
    return _URI.sub(_redact_uri, text) if "://" in text else text


def _redact_uri(match: re.Match[str]) -> str:
    uri = match.group()
    core = uri.rstrip(_NO_PART + ".")
    return shown(core) + uri[len(core) :]


def redacted(value: object) -> object:
    """A value of an error's fields with every text in it redacted, also inside of lists and dicts."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redacted(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(redacted(item) for item in value) if type(value) in (list, tuple) else value
    return value


def without(text: object, uri: object) -> str:
    """A text that somebody else's code made of a URI (a driver, Arrow), without the URI's secrets."""
    shown = str(text)
    for secret in sorted(_secrets(str(uri)), key=len, reverse=True):
        shown = shown.replace(secret, HIDDEN)
    return redact(shown)


def as_cause(error: BaseException, uri: object) -> BaseException | None:
    """The error itself, to be the cause of another one.

    None where its text has a secret of the URI in it, or that of an error which a traceback shows before it.
    """
    shown: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in shown:
        if not without(each, uri) == redact(str(each)) == str(each):
            return None
        shown.append(each)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return error


def _secrets(uri: str) -> Iterable[str]:
    """The parts of a URI that may be secret, as they are written and decoded."""
    if shown(uri) == uri:
        return ()
    rest = uri.partition("://")[2]
    raw = {uri, rest.rpartition("@")[0].partition(":")[2]}
    raw.add(rest.partition("?")[0].rpartition("@")[0].partition(":")[2])
    for part in rest.partition("?")[2].split("&"):
        if _parameter(part) != part:
            value = part.partition("=")[2]
            raw |= {value, unquote(value).rpartition("=")[2], *_secrets(unquote(value))}
    return {
        secret for secret in raw | {unquote(secret) for secret in raw} if len(secret) > 2
    }  # others are in every text
