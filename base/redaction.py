"""URIs without passwords, tokens and keys, as errors, logs, `status` and Spark's event log may show them.

A URI that parses loses its password and the value of every parameter that is not known to be harmless. A
text that looks like a URI with credentials and does not parse is hidden whole. `ElasticScanError` applies
`redact` to each text, so a place that forgets `shown` leaks nothing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from urllib.parse import unquote, urlsplit

from elasticscan.base.showing import brief, printable

HIDDEN = "***"

# Drivers know more parameters than this list; the value of any other may be a secret.
_HARMLESS = frozenset(
    [
        "application_name",
        "connect_timeout",
        "endpoint_override",
        "host",
        "port",
        "region",
        "scheme",
        "sslmode",
    ]
)
_PATH_SCHEMES = frozenset(["file", "sqlite", "sqlite+pysqlite"])  # their paths may contain `@` and `:`
_DRIVER = (
    r"(?:[A-Za-z][\w.\-]*\+[\w.\-]+|(?i:postgres(?:ql)?|pg|mysql|mariadb|sqlite|oracle|mssql|cockroachdb|"
    r"redshift|duckdb|snowflake|mongodb|redis)):(?!//)"
)
# A driver without slashes, user:password@host, or pairs as in "host=db password=x".
_UNPARSED = re.compile(rf"{_DRIVER}|[^\s:/@]*:[^@]*@|\s*[\w.\-]+\s*=.*[\s;&][\w.\-]+\s*=", re.DOTALL)
_SECRET_PAIR = re.compile(  # not after a slash: `/token=1/` is the directory of a partition
    r"(?<![\w.\-/])(?=[\w.\-]*(?i:passw|passphrase|pwd|secret|token|credential|signature|"
    r"(?:access|account|api|auth|client|encryption|master|private|shared|signing|ssl|storage)[_.\-]?key))"
    r"([\w.\-]++\s*+=)(?:\s*\\*['\"][^\n]*|\s*+(?:\\.|\S)+)"
)
# A password may contain blanks: a URI reaches to the last `@` of its line, but not into the next URI.
_URI = re.compile(
    r"(?P<uri>(?<![A-Za-z0-9+.\-])[A-Za-z0-9+.\-]++://(?:(?:(?!://)[^\n])*@)?\S*)"
    rf"|(?<![\w+.\-]){_DRIVER}(?=\S)"
)
_LINES, _WORDS = re.compile(r"[^\n]+"), re.compile(r"\S+")
_SEPARATORS = re.compile(r"[:/@?&=;,\s]+")


def shown(uri: object) -> str:
    """Return a URI or path without what may be secret in it; paths are returned as they are.

    >>> shown("postgresql+psycopg://ann:secret@db:5432/flights?sslmode=require&sslpassword=x")
    'postgresql+psycopg://ann:***@db:5432/flights?sslmode=require&sslpassword=***'
    >>> shown("postgresql+psycopg://ann:pa/ss@db/flights"), shown("host=db password='x y'")
    ('postgresql+psycopg://***', '***')
    """
    text = str(uri)
    if re.match(r"[A-Za-z][A-Za-z0-9+.\-]*://", text):
        return _shown_url(text)
    if _UNPARSED.match(text) or _SECRET_PAIR.search(text):
        scheme = re.match(r"[\w+.\-]*:", text)
        return f"{scheme.group() if scheme else ''}{HIDDEN}"
    return redact(text) if "://" in text else text


def _shown_url(text: str) -> str:
    scheme = text.partition("://")[0]
    try:
        url = urlsplit(text, allow_fragments=False)
        url.port  # noqa: B018 - raises where the part after the colon is no port
    except ValueError:
        return f"{scheme}://{HIDDEN}"
    is_path = scheme.lower() in _PATH_SCHEMES and not url.netloc
    if not is_path and "@" in url.path + url.query and ":" in url.netloc + url.path:
        return f"{scheme}://{HIDDEN}"  # an unquoted `/` or `?` in a password looks the same
    named, at, host = url.netloc.rpartition("@")
    user, colon, _ = named.partition(":")
    query = "&".join(map(_parameter, url.query.split("&")))
    netloc = f"{user}{colon}{HIDDEN if colon else ''}{at}{host}"
    return f"{scheme}://{netloc}{url.path}{'?' if query else ''}{query}"


def _parameter(part: str) -> str:
    name, equals, value = part.partition("=")
    if name.lower() in _HARMLESS and re.fullmatch(r"[\w.,:/\-]*", unquote(value)):
        return part
    return f"{name}={HIDDEN}" if equals else HIDDEN if part else part


def hides(uri: object, part: str | None) -> bool:
    """Return whether `shown` hides a part of a URI, such as the host that a driver finds in it.

    The driver then reads the URI differently, and would name the part in errors or send it to other machines.
    """
    if not part:
        return False
    return re.search(rf"(?<![\w.\-]){re.escape(part)}(?![\w.\-])", shown(uri).partition("://")[2]) is None


def redact(text: str) -> str:
    """Return a text with every URI and every password in it hidden."""
    if ":" in text:
        text = _WORDS.sub(_hide_user, _LINES.sub(_hide_uris, text))
    return _SECRET_PAIR.sub(rf"\1{HIDDEN}", text) if "=" in text else text


def _hide_uris(match: re.Match[str]) -> str:
    """Redact the URIs of a line; where a driver without slashes has an `@` behind it, hide the rest."""
    line, done, parts = match.group(), 0, []
    for found in _URI.finditer(line):
        if found["uri"]:
            uri = found["uri"].rstrip("'\"`()<>,;.:")
            parts += [line[done : found.start()], shown(uri)]
            done = found.start() + len(uri)
        elif "@" in line[found.end() :]:
            colon = line.index(":", line.rfind(" ", done, found.start()) + 1)  # maybe of `user:` before it
            return f"{''.join(parts)}{line[done : colon + 1]}{HIDDEN}"
    return "".join(parts) + line[done:]


def _hide_user(match: re.Match[str]) -> str:
    """Hide `user:password@host` without a scheme."""
    word = match.group()
    colon = word.find(":")
    return word if "://" in word or not 0 <= colon < word.rfind("@") else f"{word[: colon + 1]}{HIDDEN}"


def redacted(value: object, levels: int = 16) -> object:
    """Return a field of an error with all texts redacted and printable, in nested lists and dicts as well."""
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
    """Return the text of another library's error about a URI, without the URI's secrets."""
    safe = str(text)
    for secret in sorted(_secrets(str(uri)), key=len, reverse=True):
        safe = safe.replace(secret, HIDDEN)
    return redact(safe)


def _secrets(uri: str) -> set[str]:
    """Return the hidden parts of a URI, quoted and unquoted; two characters would be in every text."""
    hidden = shown(uri)
    if hidden == uri:
        return set()
    parts = {part for text in (uri, unquote(uri)) for part in _SEPARATORS.split(text)}
    parts |= {uri, *re.findall(r"=([^&]*)", uri)}
    with suppress(ValueError):
        parts.add(urlsplit(uri).password or "")
    parts |= {unquote(part) for part in parts}
    shown_parts = set(_SEPARATORS.split(hidden)) | set(_SEPARATORS.split(unquote(hidden)))
    return {part for part in parts - shown_parts if len(part) > 2}


def as_cause(error: BaseException, uri: object) -> BaseException | None:
    """Return the error as a cause for another one, with the URI's secrets removed from its whole chain.

    Python keeps errors behind an error even where no traceback shows them. None if one keeps a secret.
    """
    errors: list[BaseException] = [error]
    for each in errors:  # which grows
        behind = (each.__cause__, each.__context__)
        errors += [other for other in behind if other is not None and other not in errors]
    cleaned = [_clean(each, uri) for each in errors]
    return error if all(cleaned) else None


def _clean(error: BaseException, uri: object) -> bool:
    """Remove secrets from the texts of an error; return False if one is left."""
    arguments = tuple(without(held, uri) if isinstance(held, str) else held for held in error.args)
    if arguments != error.args:
        error.args = arguments
    for name in (*vars(error), "filename", "filename2", "reason", "strerror"):
        held = getattr(error, name, None)
        with suppress(AttributeError):  # a property
            if hasattr(type(held), "password"):
                setattr(error, name, None)  # a driver's connection, or a parsed URL
            elif isinstance(held, str) and held != without(held, uri):
                setattr(error, name, without(held, uri))
    return all(without(text, uri) == text for text in (str(error), repr(error)))
