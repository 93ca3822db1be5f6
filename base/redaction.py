"""URIs as they may be shown: without passwords, tokens and keys.

Catalog URLs and roots of shards may hold credentials, and so may what was meant for one: a URL that
lacks a slash, "host=db password=x". They pass through errors, logs, `status`, the
command line and Spark's event log, which more people read than may know them. So whatever puts a
URI into a text calls `shown`; and every error of ours goes through `redact`, whoever made its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from urllib.parse import quote, unquote

from elasticscan.base.showing import brief, printable

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
# Schemes whose paths may have any character in them, behind three slashes.
_OF_PATHS = frozenset(["file", "sqlite", "sqlite+pysqlite"])
_DATABASES = (
    "postgresql|postgres|pg|mysql|mariadb|sqlite|oracle|mssql|"
    "cockroachdb|redshift|duckdb|snowflake|mongodb|redis"
)
# What begins like the URL of a database, whatever follows; `word+word` names a driver.
_DATABASE = rf"(?:(?:{_DATABASES})(?:\+[\w.\-]*)?|[A-Za-z][\w.\-]*\+[\w.\-]+)"
_URL = re.compile(r"([^\s:/@=]*):(/*)(.*)", re.DOTALL)
_SHORT_URL = re.compile(rf"(?i:{_DATABASE}):(?!//)")
# "ann:hunter2@db": a user and a password, and before them perhaps a scheme.
_USERINFO = re.compile(r"[^\s:/@]*:(?:/*[^\s:/@]*:.*|[^/]*)@", re.DOTALL)
# Names of what is secret. A key is, where its name says whose it is: rows have keys, and there are keyspaces.
_SECRETIVE = (
    r"passw|passphrase|pwd|secret|token|credential|signature|"
    r"(?:access|account|api|auth|client|encryption|master|private|shared|signing|ssl|storage)[_.\-]?key"
)
_NAME = r"[\w.\-]"
_BEGIN = r"(?<![\w.\-/])"  # behind a slash it is a directory, of a partition
# A text may quote what quotes a value: it ends with the line's last quote or, without any, at a blank.
_VALUE = r"(?:\\*(?P<quote>['\"])[^\n]*(?P=quote)\S*|\\*['\"][^\n]*|(?:\\.|\S)+)"
_PAIR = rf"{_BEGIN}(?={_NAME}*(?i:{_SECRETIVE}))({_NAME}++\s*+=\s*+){_VALUE}"
_SECRET_PAIR = re.compile(_PAIR)
_QUOTED = r"'(?:[^'\\]|\\.)*'"
_ANY_PAIR = re.compile(
    rf"{_BEGIN}(?:(?P<fine>(?i:{'|'.join(sorted(_HARMLESS))})\s*=\s*(?:{_QUOTED}|[^\s;&']+))|"
    rf"({_NAME}++\s*+=\s*+)(?:{_QUOTED}\S*|'.*|(?:\\.|\S)+))",
    re.DOTALL,
)
# "host=db password=x", which drivers take as well as URLs, and "Server=db;Password=x".
_PAIRS = re.compile(rf"\s*{_NAME}+\s*=.*[\s;&]{_NAME}+\s*=", re.DOTALL)
# A password may have blanks in it: a URI reaches to the last `@` of its line, but not into another URI.
_IN_TEXT = re.compile(
    rf"(?P<uri>(?<![A-Za-z0-9+.\-])[A-Za-z0-9+.\-]++://(?:(?:(?!://)[^\n])*@)?\S*)|(?P<pair>{_PAIR})"
)
# What reaches to the last `@` of its line, or of its word; each is looked at once, for some are long.
_SHORT_IN_LINE = re.compile(rf"(?<![\w+.\-])(?i:{_DATABASE}):(?!//)(?=\S)")
_SHORT_IN_WORD = re.compile(r"(?<![\w+.\-])[A-Za-z][\w+.\-]*+:/?[^\s:/@]+:")
_LINES, _WORDS = re.compile(r"[^\n]+"), re.compile(r"\S+")
_LONG_CHARACTERS, _END = 1 << 18, 256
_LONG_WORD = re.compile(r"(?<![\w.\-])[\w.\-]{4096,}+")
_BETWEEN_PARTS = re.compile(r"[:/@?&=;,\s]+")
_NO_PART = "'\"`()<>,;"  # characters that stand around a URI in a sentence


def shown(uri: object) -> str:
    """A place without its password and without parameters that may be secret. Paths stay as they are.

    Where a password has `@` or `/` in it, its end is not certain, and more is hidden than need be.

    >>> shown("postgresql+psycopg://ann:pa/ss@db:5432/flights?sslmode=require&sslpassword=x")
    'postgresql+psycopg://ann:***@db:5432/flights?sslmode=require&sslpassword=***'
    >>> shown("host=db port=5432 user=ann password='x y'")
    'host=db port=5432 user=*** password=***'
    """
    text = str(uri)
    match = _URL.match(text)
    if match is not None and (match[2] or _SHORT_URL.match(text) or _USERINFO.match(text)):
        return _shown_url(*match.groups())
    if _PAIRS.match(text):
        return _ANY_PAIR.sub(lambda pair: pair["fine"] or f"{pair[2]}{HIDDEN}", text)
    return redact(text) if "://" in text else _SECRET_PAIR.sub(rf"\1{HIDDEN}", text)


def hides(uri: object, part: str | None) -> bool:
    """True if a part of a URI, such as the host that a driver finds in it, is not in what may be shown.

    Then what we take for a password is something else to the driver, which names it in its errors, or asks
    other machines for it.
    """
    if not part:
        return False
    return re.search(rf"(?<![\w.\-]){re.escape(part)}(?![\w.\-])", shown(uri).partition("://")[2]) is None


def is_address(text: str) -> bool:
    """True if a text without `://` was meant for the address of a server, which may have a password in it."""
    if _SHORT_URL.match(text) or _USERINFO.match(text) or _SECRET_PAIR.search(text):
        return True
    return bool(_PAIRS.match(text)) and shown(text) != text


def _shown_url(scheme: str, slashes: str, rest: str) -> str:
    if not slashes:  # which of the parts is the password is anybody's guess
        return f"{scheme}:{HIDDEN}"
    head, question, query = rest.partition("?")
    before = f"{scheme}:{slashes}"
    if "@" in query and ":" in head:  # is that `?` in a password, or the `@` in a parameter?
        return f"{before}{HIDDEN}"
    query = "&".join(_parameter(part) for part in query.split("&"))
    named, at, place = head.rpartition("@")
    if len(slashes) != 2 and (not at or scheme.lower() in _OF_PATHS):
        return f"{before}{head}{question}{query}"
    user, colon, _ = named.partition(":")
    # Without a colon there is no password: the user stands there alone, in some URIs a container.
    named = f"{user}:{HIDDEN}" if colon else named
    return f"{before}{named}{at}{_shown_host(place)}{question}{query}"


def _shown_host(place: str) -> str:
    """A host and what follows it; behind a colon stands a port, or else a password that lacks its `@`."""
    name, colon, port = place.partition("/")[0].rpartition(":")
    if not colon or port.isdigit() or not port or port.endswith("]"):
        return place
    return f"{name}:{HIDDEN}"


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
    """A text with every URI and every password in it as it may be shown.

    In a very long text, words lose their middle: to find what is secret in them takes a second for each
    million of letters, and nobody reads them.
    """
    if len(text) > _LONG_CHARACTERS:
        text = _LONG_WORD.sub(lambda word: f"{word[0][:_END]}…{word[0][-_END:]}", text)
    if "=" in text or "://" in text:
        text = _IN_TEXT.sub(_redact, text)
    if "@" in text and ":" in text:
        text = _LINES.sub(partial(_hide_short, _SHORT_IN_LINE), text)
        text = _WORDS.sub(partial(_hide_short, _SHORT_IN_WORD), text)
    return text


def _redact(match: re.Match[str]) -> str:
    found = match.group()
    if match["uri"] is None:
        return f"{found.partition('=')[0]}={HIDDEN}"
    core = found.rstrip(_NO_PART + ".")
    return shown(core) + found[len(core) :]


def _hide_short(beginning: re.Pattern[str], part: re.Match[str]) -> str:
    """A line or word without what begins like a URL and reaches to its last `@`, and a blank behind that."""
    text = part.group()
    begun, at = beginning.search(text), text.rfind("@")
    if begun is None or at < begun.end():
        return text
    rest = re.search(r"\s", text[at:])
    head = text[: text.index(":", begun.start())]
    return f"{head}:{HIDDEN}{'' if rest is None else text[at + rest.start() :]}"


def redacted(value: object, levels: int = 16) -> object:
    """A value of an error's fields with its texts redacted and printable, also inside of lists and dicts.

    What lies more `levels` deep is text: a caller may hand in what Python cannot follow to its end.
    """
    if isinstance(value, str):
        return printable(redact(value))
    if not isinstance(value, (dict, list, tuple)):
        return value
    if not levels:
        return printable(redact(brief(value)))
    if isinstance(value, dict):
        return {redacted(key, levels - 1): redacted(item, levels - 1) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(redacted(item, levels - 1) for item in value)
    return value


def without(text: object, uri: object) -> str:
    """A text that somebody else's code made of a URI (a driver, Arrow), without the URI's secrets."""
    shown = str(text)
    for secret in sorted(_secrets(str(uri)), key=len, reverse=True):
        shown = shown.replace(secret, HIDDEN)
    return redact(shown)


def as_cause(error: BaseException, uri: object) -> BaseException | None:
    """The error itself, to be the cause of another one, with the URI's secrets taken out of its texts.

    And out of those of all errors behind it: Python keeps them even where no traceback shows them. None where
    that could not be done.
    """
    errors: list[BaseException] = [error]
    for each in errors:  # which grows
        behind = (each.__cause__, each.__context__)
        errors += [other for other in behind if other is not None and other not in errors]
    cleaned = [_clean(each, uri) for each in errors]
    return error if all(cleaned) else None


def _clean(error: BaseException, uri: object) -> bool:
    """Take secrets out of what an error holds; false where one is left in its texts."""
    for name in [name for name, held in vars(error).items() if hasattr(type(held), "password")]:
        with suppress(AttributeError):
            setattr(error, name, None)  # a driver's connection, or a URL that was parsed
    arguments = tuple(without(held, uri) if isinstance(held, str) else held for held in error.args)
    if arguments != error.args:
        error.args = arguments
    for name in (*vars(error), "filename", "filename2", "reason", "strerror"):
        held = getattr(error, name, None)
        if isinstance(held, str) and held != without(held, uri):
            with suppress(AttributeError):  # one that is made of others
                setattr(error, name, without(held, uri))
    return all(without(text, uri) == text for text in (str(error), repr(error)))


def _secrets(uri: str) -> Iterable[str]:
    """The parts of a URI that may be secret, as they are written and decoded."""
    if shown(uri) == uri:
        return ()
    # Who reads a URI in another way than we do may quote any part of it: what is shown lacks those, too.
    lacking = set(_BETWEEN_PARTS.split(uri)) - set(_BETWEEN_PARTS.split(shown(uri)))
    rest = uri.partition(":")[2].lstrip("/")
    raw = lacking | {uri, rest.rpartition("@")[0].partition(":")[2]}
    raw.add(rest.partition("?")[0].rpartition("@")[0].partition(":")[2])
    for part in rest.partition("?")[2].split("&"):
        if _parameter(part) != part:
            value = part.partition("=")[2]
            raw |= {value, unquote(value).rpartition("=")[2], *_secrets(unquote(value))}
    return {
        secret for secret in raw | {unquote(secret) for secret in raw} if len(secret) > 2
    }  # others are in every text
