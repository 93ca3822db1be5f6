"""Checks of arguments that neither types nor Python's own errors cover.

Each function returns the value in the form that the code below works with, or raises `InvalidOption` with the
value that was given and the values that are allowed. They run before anything is written.
"""

from __future__ import annotations

import json
import math
import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from numbers import Real
from typing import Any, TypeAlias, TypedDict, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.clock import seconds_of, zoned
from elasticscan.base.errors import InvalidOption, LimitExceeded
from elasticscan.base.limits import (
    MAX_APPLICATION_BYTES,
    MAX_COLUMNS,
    MAX_NUMBER,
    MAX_PAGE_BYTES,
    MAX_PAGE_ROWS,
    MAX_USER_METADATA_BYTES,
    NAME_PATTERN,
)
from elasticscan.base.showing import brief, is_whole
from elasticscan.catalog import IdempotencyKey
from elasticscan.filters import sql_of_expression, with_parameters

Value = TypeVar("Value")

COMPRESSIONS = ("none", "lz4", "zstd")

# A condition: SQL text, or an expression of pyarrow's.
Condition: TypeAlias = str | pc.Expression
Names: TypeAlias = str | Sequence[str]
Filter: TypeAlias = Condition | None
Parameters: TypeAlias = Mapping[str, Any] | None
Snapshot: TypeAlias = int | str | datetime | None
Said: TypeAlias = Mapping[str, str] | None
Txn: TypeAlias = tuple[str, int] | None
Since: TypeAlias = int | None


class Reading(TypedDict, total=False):
    """The arguments of `scan` that are given by name."""

    parameters: Parameters
    index: str
    order_by: Names | None
    limit: int | None
    snapshot: Snapshot
    timestamp: str | datetime | None
    page_rows: int
    page_bytes: int


def whole_number(option: str, value: Any, least: int, most: int) -> int:
    """Return an integer of any kind, NumPy's included, within bounds; True and 1.0 are refused."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise _refusal(option, value, f"a whole number, {least} to {most}")
    return number


def page_limits(page_rows: Any, page_bytes: Any) -> tuple[int, int]:
    """Return the maximum rows and bytes of a page."""
    rows = whole_number("page_rows", page_rows, 1, MAX_PAGE_ROWS)
    return rows, whole_number("page_bytes", page_bytes, 1, MAX_PAGE_BYTES)


def file_form(option: str, value: Any) -> str | None:
    """Return the compression of a table's files: None (also for "none"), "lz4" or "zstd"."""
    form = value.strip().lower() if isinstance(value, str) else "none" if value is None else ""
    if form not in COMPRESSIONS:
        raise _refusal(option, value, "'none' (or None), 'lz4' or 'zstd'")
    return None if form == "none" else form


def text(option: str, value: Any) -> str:
    """Return text that can be stored: UTF-8 has no lone surrogates."""
    if not isinstance(value, str) or not is_whole(value):
        raise _refusal(option, value, "text")
    return str(value)


def condition(option: str, value: Any, parameters: Any, schema: Callable[[], pa.Schema]) -> str | None:
    """Return a condition as SQL text with its parameters as literals; None if there is none."""
    if parameters is not None and not isinstance(parameters, Mapping):
        raise _refusal("parameters", parameters, "a dict: values by the names that stand as :name")
    if value is None:
        return None
    if isinstance(value, pc.Expression):
        if parameters is not None:
            raise InvalidOption(
                "parameters are for SQL text; put the values into the expression", option="parameters"
            )
        return sql_of_expression(value, schema())
    if not isinstance(value, str):
        said = "SQL text, such as \"km > 1 AND city = 'Oslo'\", or an expression of pyarrow.compute"
        raise _refusal(option, value, said)
    checked = text(option, value)
    return checked if parameters is None else with_parameters(checked, parameters)


def past(option: str, value: Any) -> int | str | datetime:
    """Return a commit number, the name of a tag, or a time with its zone, also given as ISO text."""
    if isinstance(value, datetime):
        return zoned(option, value)
    if not isinstance(value, str):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            allowed = "a commit number, a tag or a time: 17, 'before_the_merger' or '2026-03-01T12:00Z'"
            raise _refusal(option, value, allowed)
        return whole_number(option, value, 0, MAX_NUMBER)
    if not re.fullmatch(NAME_PATTERN, text(option, value)):
        with suppress(ValueError):
            return zoned(option, datetime.fromisoformat(value))
    return value


def snapshot(value: Any) -> int | str | datetime | None:
    """Return a commit number, the name of a tag, or a time; None for the newest."""
    return None if value is None else past("snapshot", value)


def snapshot_or_time(value: Any, timestamp: Any) -> int | str | datetime | None:
    """Return a snapshot as it was named, or the time whose newest commit is meant."""
    if timestamp is None:
        return snapshot(value)
    if value is not None:
        raise InvalidOption("snapshot and timestamp both say when; give one of them", option="timestamp")
    if isinstance(timestamp, datetime):
        return zoned("timestamp", timestamp)
    with suppress(ValueError):
        return zoned("timestamp", datetime.fromisoformat(text("timestamp", timestamp)))
    raise _refusal("timestamp", timestamp, "a datetime with its zone, or text such as '2026-03-01T12:00Z'")


def choice(option: str, value: Any, allowed: Iterable[str]) -> str:
    """Return one of a few words."""
    words = tuple(allowed)
    if value not in words:
        raise _refusal(option, value, f"one of {', '.join(words)}")
    return str(value)


def or_none(check: Callable[..., Value], option: str, value: Any, *bounds: int) -> Value | None:
    """Apply another check to a value that may be left out."""
    return None if value is None else check(option, value, *bounds)


def callback(option: str, value: Any) -> None:
    """Refuse what cannot be called before the work begins, not when it is first called."""
    if value is not None and not callable(value):
        raise _refusal(option, value, "a function, or None")


def place(option: str, value: Any) -> str:
    """Return a path or a URL as text."""
    path = os.fspath(value)
    if not path or not isinstance(path, str) or "\0" in path:
        raise _refusal(option, value, "the path of a directory or a URL, as text")
    return text(option, path)


def names(option: str, value: Any, allowed: str = "a list of names") -> list[str]:
    """Return a list of names; a single text or a mapping is refused."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _refusal(option, value, allowed)
    items = list(islice(value, MAX_COLUMNS + 1))  # no more, for an endless iterable never ends
    if len(items) > MAX_COLUMNS:
        raise _refusal(option, value, f"a list of at most {MAX_COLUMNS} names")
    return [text(option, name) for name in items]


def columns(option: str, value: Any) -> list[str]:
    """Return a list of names, also of a single name."""
    return [text(option, value)] if isinstance(value, str) else names(option, value)


def sources(option: str, value: Any) -> tuple[str, ...]:
    """Return the paths of files: one or several."""
    if isinstance(value, str | os.PathLike):
        return (place(option, value),)
    places = tuple(place(option, item) for item in value) if isinstance(value, Sequence) else ()
    if not places:
        raise _refusal(option, value, "a path, a pattern or a URI, or a list of at least one of them")
    return places


def types(option: str, value: Any) -> dict[str, pa.DataType]:
    """Return Arrow's types by the names of columns; each may be given by its name."""
    if not (value is None or isinstance(value, Mapping)):
        raise _refusal(option, value, "a dict of Arrow's types, such as {'zip': 'string'}")
    return {
        text(option, name): arrow_type(f"{option}[{name!r}]", kind) for name, kind in (value or {}).items()
    }


def arrow_type(option: str, value: Any) -> pa.DataType:
    """Return a type of Arrow's, also of its name."""
    found = value
    with suppress(ValueError):
        found = pa.type_for_alias(value) if isinstance(value, str) else value
    if not isinstance(found, pa.DataType):
        said = "one of Arrow's types, such as int64, double, bool, date32 or timestamp[us]"
        raise _refusal(option, value, said)
    return found


def delimiter(option: str, value: Any) -> str:
    """Return the one character between fields of CSV."""
    if len(text(option, value)) != 1 or value in '\r\n"':
        raise _refusal(option, value, "one character, such as ';', '|' or a tab")
    return str(value)


def shards(value: Any) -> tuple[list[str], dict[str, str]]:
    """Return the names of shards, and their roots as far as they are given."""
    if isinstance(value, Mapping):
        listed = names("shards", list(value))
        found = {name: place(f"shards[{name!r}]", value[name]) for name in listed}
    else:
        listed, found = names("shards", value, "a list of names, such as ['s1', 's2']"), {}
    if not listed:
        raise _refusal("shards", value, "a list of at least one name, or a mapping of names to roots")
    twice = [name for name, times in Counter(listed).items() if times > 1]
    if twice:
        raise InvalidOption(f"shards: {twice[0]!r} is named twice; name each once", option="shards")
    return listed, found


def roots(option: str, value: Any) -> dict[str, str]:
    """Return the roots of shards by their names; none if none is given."""
    if value is not None and not isinstance(value, Mapping):
        raise _refusal(option, value, "a dict: roots by the names of their shards")
    return shards(value)[1] if value else {}


def number(option: str, value: Any, least: float = 0, most: float = MAX_NUMBER) -> float:
    """Return a number within bounds, as of seconds, bytes per second or a share."""
    found = math.nan
    with suppress(OverflowError):  # an integer beyond the range of floats
        if not isinstance(value, bool) and isinstance(value, Real):
            found = float(value)
    if not least <= found <= most:
        raise _refusal(option, value, f"a number, {least} to {most}")
    return found


def period(option: str, value: Any) -> float:
    """Return the seconds of a timedelta, or of text with its unit; a number alone is refused."""
    if isinstance(value, str):
        return seconds_of(option, value)
    if isinstance(value, timedelta):
        return number(option, value.total_seconds())
    raise _refusal(option, value, "a text as in 30s, 90m, 12h or 7d, or a timedelta")


def transaction(value: Any) -> IdempotencyKey | None:
    """Return the pair (application, version) under which a write is done once."""
    if value is None:
        return None
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise _refusal("txn", value, "a pair, an application's name and a version: ('nightly', 7)")
    return IdempotencyKey(application("txn[0]", value[0]), whole_number("txn[1]", value[1], 0, MAX_NUMBER))


def application(option: str, value: Any) -> str:
    """Return the name under which writes are done once; PostgreSQL would refuse others at the commit."""
    name = text(option, value)
    if not name or "\0" in name or len(name.encode()) > MAX_APPLICATION_BYTES:
        said = f"a name of 1 to {MAX_APPLICATION_BYTES:,} bytes, without a zero byte"
        raise _refusal(option, value, said)
    return name


def user_metadata(value: Any) -> dict[str, str]:
    """Return a small dict of texts that a commit keeps."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _refusal("user_metadata", value, "a dict of texts, such as {'job': 'nightly'}")
    said = {text("user_metadata", key): text("user_metadata", word) for key, word in value.items()}
    size = len(json.dumps(said))
    if size > MAX_USER_METADATA_BYTES:
        raise LimitExceeded(
            f"user_metadata takes {size:,} bytes as JSON, and at most {MAX_USER_METADATA_BYTES:,} are kept "
            "with a commit; keep the rest elsewhere",
            size=size,
            most=MAX_USER_METADATA_BYTES,
        )
    return said


def _refusal(option: str, value: Any, allowed: str) -> InvalidOption:
    return InvalidOption(f"{option}={brief(value)} ({type(value).__name__}) must be {allowed}", option=option)
