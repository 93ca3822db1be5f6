"""URIs without passwords, tokens and keys, as errors, logs, `status` and Spark's event log may show them.

A URI that parses loses its password and the value of every parameter that is not known to be harmless. What
looks like one and does not parse is hidden whole. `ElasticScanError` applies `redact` to each text, so a
place that forgets `shown` leaks nothing.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from elasticscan.base.formatting import brief, printable

HIDDEN = "***"

# Drivers know more parameters than these; the value of any other may be a secret.
_HARMLESS = re.compile(
    r"(?:application_name|connect_timeout|endpoint_override|host|port|region|scheme|sslmode)=[\w.,:/\-]*",
    re.IGNORECASE,
)
_HOST = r"(?:\[[^\]]*\]|[^\s:@,\[\]]*)(?::[0-9]{1,5})?"
_NETLOC = re.compile(rf"(?:([^\s:\[\]]*)(:.*)?@)?({_HOST}(?:,{_HOST})*)", re.DOTALL)  # user, password, hosts
# A password may contain blanks and `://`: a URI reaches to the last `@` of its line, not into the next URI.
_NEXT = r"[\s'\"`(<,;=][A-Za-z][\w+.\-]*+://"
_URI = re.compile(rf"(?<![\w+.\-])[\w+.\-]*+://(?:(?:(?!{_NEXT})[^\n])*@)?\S*(?<!['\"`()<>,;.:])")
_DRIVER = re.compile(  # without slashes: only the driver knows where its password begins and ends
    r"(?<![\w+.\-])(?:[a-z][\w.\-]*+\+[\w.\-]++|postgres(?:ql)?|pg|mysql|mariadb|sqlite|oracle|mssql|"
    r"cockroachdb|redshift|duckdb|snowflake|mongodb|redis):(?!//)",
    re.IGNORECASE,
)
# What begins with user:password@host, or has several pairs as in "host=db key=x".
_UNPARSED = re.compile(r"[^\s:/@]*:[^@]*@|\s*[\w.\-]+\s*=.*[\s;&][\w.\-]+\s*=", re.DOTALL)
_USER = re.compile(r"(?<!\S)([^\s:]*+:)(?!//)\S*@\S*")
_PAIR = re.compile(  # not after a slash: `/token=1/` is the directory of a partition
    r"(?<![\w.\-/])(?=[\w.\-]*(?i:passw|passphrase|pwd|secret|token|credential|signature|"
    r"(?:access|account|api|auth|client|encryption|master|private|shared|signing|ssl|storage)[_.\-]?key))"
    r"([\w.\-]++\s*+=)(?:\s*\\*['\"][^\n]*|\s*+(?:\\.|\S)+)"
)
_VALUES = re.compile(r"://[^:@/?]*:|@|[?&][^=&]*=")


def shown(uri: object) -> str:
    """Return a URI with its possible secrets hidden; a path is returned unchanged.

    >>> shown("postgresql+psycopg://ann:secret@db:5432/flights?sslmode=require&sslpassword=x")
    'postgresql+psycopg://ann:***@db:5432/flights?sslmode=require&sslpassword=***'
    >>> shown("postgresql+psycopg://ann:pa/ss@db/flights"), shown("host=db password='x y'")
    ('postgresql+psycopg://***', '***')
    """
    text = str(uri)
    scheme, slashes, rest = text.partition("://")
    if slashes and re.fullmatch(r"[A-Za-z][\w+.\-]*", scheme):
        return f"{scheme}://{_without_secrets(rest)}"
    if slashes or _UNPARSED.match(text) or _DRIVER.match(text) or _PAIR.search(text):
        return HIDDEN
    return text


def _without_secrets(rest: str) -> str:
    """Return the part after a URI's scheme with its secrets hidden, or `HIDDEN`."""
    try:
        url = urlsplit(f"//{rest}", allow_fragments=False)
    except ValueError:
        return HIDDEN
    netloc = _NETLOC.fullmatch(url.netloc)
    # An unquoted `/` or `?` in a password looks like the beginning of the path or of the parameters.
    if netloc is None or ("@" in url.path + url.query and ":" in url.netloc + url.path):
        return HIDDEN
    user, password, hosts = netloc.groups()
    named = "" if user is None else f"{user}:{HIDDEN}@" if password else f"{user}@"
    query = "&".join(map(_parameter, url.query.split("&")))
    return f"{named}{hosts}{url.path}{'?' if query else ''}{query}"


def _parameter(part: str) -> str:
    if not part or _HARMLESS.fullmatch(unquote(part)):
        return part
    name, equals, _ = part.partition("=")
    return f"{name}={HIDDEN}" if equals else HIDDEN


def hides(uri: object, part: str | None) -> bool:
    """Return whether `shown` hides a part of a URI, such as the host that a driver finds in it.

    The driver then reads the URI differently, and would name the part in errors or send it to other machines.
    """
    if not part:
        return False
    return re.search(rf"(?<![\w.\-]){re.escape(part)}(?![\w.\-])", shown(uri).partition("://")[2]) is None


def redact(text: str) -> str:
    """Return a text with every URI and every password in it hidden."""
    return re.sub(r"[^\n]+", _redact_line, text)


def _redact_line(match: re.Match[str]) -> str:
    line = match.group()
    found = _DRIVER.search(line)
    if found and "@" in line[found.end() :]:
        line = f"{line.partition(':')[0]}:{HIDDEN}"
    line = _URI.sub(lambda uri: shown(uri.group()), line)
    return _PAIR.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1{HIDDEN}", line))


def redacted(value: object, levels: int = 16) -> object:
    """Return a field of an error with all texts redacted and printable, in nested lists and dicts as well."""
    if isinstance(value, (dict, list, tuple)) and not levels:
        value = brief(value)
    if isinstance(value, str):
        return printable(redact(value))
    if isinstance(value, dict):
        return {redacted(key, levels - 1): redacted(item, levels - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(redacted(item, levels - 1) for item in value)
    return value


def without(text: object, uri: object) -> str:
    """Return the text of another library's error about a URI, without the URI's secrets.

    Two characters would be in every text.
    """
    safe, hidden = str(text), _quotable(str(uri)) - _quotable(shown(uri))
    for secret in sorted(hidden, key=len, reverse=True):
        safe = safe.replace(secret, HIDDEN) if len(secret) > 2 else safe
    return redact(safe)


def _quotable(uri: str) -> set[str]:
    """Return the parts of a URI that a driver may quote: it, its values and their words, also unquoted."""
    values = {uri, *_VALUES.split(uri)}
    values |= {unquote(value) for value in values}
    return values | {word for value in values for word in re.split(r"\W+", value)}


def as_cause(error: BaseException, uri: object) -> BaseException | None:
    """Return the error as a cause for another one, without the URI's secrets; None if it keeps one.

    The errors behind it go: Python keeps them even where no traceback shows them.
    """
    error.__cause__ = error.__context__ = None
    error.args = tuple(without(held, uri) if isinstance(held, str) else held for held in error.args)
    for name in ("filename", "filename2", "reason", "strerror"):
        if isinstance(held := getattr(error, name, None), str):
            setattr(error, name, without(held, uri))
    vars(error).clear()  # a driver's connection, or a parsed URL
    return error if all(without(text, uri) == text for text in (str(error), repr(error))) else None
