"""URIs without passwords, tokens and keys, as errors, logs, `status` and Spark's event log may show them.

A URI that parses loses its password and the value of every parameter that is not known to be harmless. What
looks like one and does not parse is hidden whole. `ElasticScanError` applies `redact` to each text, so a
place that forgets `shown` leaks nothing.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from elasticscan.base.formatting import brief, printable

HIDDEN = "***"
_AFTER = rf"\1{HIDDEN}"  # replaces what comes after a name

# The value of a parameter; drivers know more than these harmless ones, and any other may be a secret.
_VALUE = re.compile(
    r"(?<![^&])(?=[^&])(?!(?i:application_name|connect_timeout|endpoint_override|host|port|region|scheme|"
    r"sslmode)=(?:[\w.,:/\-]|%2C|%2F|%3A)*(?![^&]))([^&=]*=)?[^&]*"
)
_PLACE = re.compile(  # user, password, hosts with ports, and a path
    r"(?:([^\s:/\[\]]*)(:[^/]*)?@)?((?:[^\s:@/\[\]]|\[[^\]]*\]|:[0-9]{1,5}(?=[,/]|$))*(?:/.*)?)", re.DOTALL
)
# A password may contain blanks and `://`: a URI reaches to the last `@` of its line, not into the next URI.
_NEXT = r"[\s'\"`(<,;=][A-Za-z][\w+.\-]*+://"
_URI = re.compile(rf"(?<![\w+.\-])[\w+.\-]*+://(?:(?:(?!{_NEXT})[^\n])*@)?\S*(?<!['\"`()<>,;.:])")
# Without slashes only the driver knows where its password begins and ends: then the line is hidden.
_DRIVER = (
    r"(?<![\w+.\-])(?i:[a-z][\w.\-]*+\+[\w.\-]++|postgres(?:ql)?|pg|mysql|mariadb|sqlite|oracle|mssql|"
    r"cockroachdb|redshift|duckdb|snowflake|mongodb|redis):(?!//)"
)
_LINE = re.compile(rf"^(?=(?>.*?{_DRIVER}).*@)([^:\n]*:).*", re.MULTILINE)
# What begins with a driver or user:password@host, or has several pairs as in "host=db key=x".
_UNPARSED = re.compile(rf"{_DRIVER}|[^\s:/@]*:[^@]*@|\s*[\w.\-]+\s*=.*[\s;&][\w.\-]+\s*=", re.DOTALL)
_USER = re.compile(r"(?<!\S)([^\s:]*+:)(?!//)\S*@\S*")
_NAME = (
    r"(?=[\w.\-]*(?i:passw|passphrase|pwd|secret|token|credential|signature|"
    r"(?:access|account|api|auth|client|encryption|master|private|shared|signing|ssl|storage)[_.\-]?key))"
    r"([\w.\-]++"
)
# Not after a slash: `/token=1/` is the directory of a partition.
_PAIR = re.compile(rf"(?<![\w.\-/]){_NAME}\s*+=)(?:\s*\\*['\"][^\n]*|\s*+(?:\\.|\S)+)")
# Outside of a URL's parameters a value may contain blanks, so it ends with its line.
_REST = re.compile(rf"(?<![\w.\-/?&]){_NAME}=)(?!\*{{3}}(?:\W|$))\S[^\n]*")


def shown(uri: object) -> str:
    """Return a URI with its possible secrets hidden; a path is returned unchanged.

    >>> shown("postgresql+psycopg://ann:secret@db:5432/flights?sslmode=require&sslpassword=x")
    'postgresql+psycopg://ann:***@db:5432/flights?sslmode=require&sslpassword=***'
    >>> shown("postgresql+psycopg://ann:pa/ss@db/flights"), shown("host=db password='x y'")
    ('postgresql+psycopg://***', '***')
    """
    text = str(uri)
    scheme, slashes, rest = text.partition("://")
    if not slashes:
        return HIDDEN if _UNPARSED.match(text) or _PAIR.search(text) else text
    if not re.fullmatch(r"[A-Za-z][\w+.\-]*", scheme):
        return HIDDEN
    place, mark, query = rest.partition("?")
    found = _PLACE.fullmatch(place)
    # An unquoted `/` or `?` in a password looks like the beginning of the path or of the parameters.
    if found is None or _PAIR.search(place) or ("@" in found[3] + query and ":" in place):
        return f"{scheme}://{HIDDEN}"
    user = "" if found[1] is None else f"{found[1]}:{HIDDEN}@" if found[2] else f"{found[1]}@"
    return f"{scheme}://{user}{found[3]}{mark}{_VALUE.sub(_AFTER, query)}"


def redact(value: Any, levels: int = 16) -> Any:
    """Return a text with every URI and every password in it hidden, and printable.

    So are all texts in nested lists and dicts, as fields of errors are; what is deeper becomes a text.
    """
    if isinstance(value, (dict, list, tuple)) and not levels:
        value = brief(value)
    if isinstance(value, str):
        text = _URI.sub(lambda found: shown(found[0]), _REST.sub(_AFTER, _LINE.sub(_AFTER, value)))
        return printable(_PAIR.sub(_AFTER, _USER.sub(_AFTER, text)))
    if isinstance(value, dict):
        return {redact(key, levels - 1): redact(item, levels - 1) for key, item in value.items()}
    return type(value)(redact(item, levels - 1) for item in value) if type(value) in (list, tuple) else value


def without(text: object, uri: object) -> str:
    """Return the text of another library's error about a URI, without the URI's secrets."""
    safe = str(text)
    for secret in sorted(_quotable(str(uri)) - _quotable(shown(uri)), key=len, reverse=True):
        safe = safe.replace(secret, HIDDEN) if len(secret) > 2 else safe  # others would be in every text
    return str(redact(safe))


def _quotable(uri: str) -> set[str]:
    """Return the parts of a URI that a driver may quote: it, its values and their words, also unquoted."""
    values = {uri, *re.split(r"://[^:@/?]*:|@|[?&][^=&]*=", uri)}
    values |= set(map(unquote, values))
    return {part for value in values for part in (value, *re.split(r"\W+", value))}


def as_cause(error: BaseException, uri: object) -> BaseException | None:
    """Return the error as a cause for another one, without the URI's secrets; None if it keeps one.

    The errors behind it go: Python keeps them even where no traceback shows them.
    """
    error.__cause__ = error.__context__ = None
    vars(error).clear()  # a driver's connection, or a parsed URL
    error.args = tuple(without(held, uri) if isinstance(held, str) else held for held in error.args)
    for name in ("filename", "filename2", "reason", "strerror"):
        if isinstance(held := getattr(error, name, None), str):
            setattr(error, name, without(held, uri))
    return error if all(without(text, uri) == text for text in (str(error), repr(error))) else None
