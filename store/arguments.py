"""Checks of arguments, before anything is done.

Each function returns the value in the one form that the code behind works with, or raises
`InvalidOption`, which says what was given and what is allowed. Python passes on whatever it is
given: without these, a wrong type would show deep below, as an error of Arrow or of the database,
or not at all (a text is a sequence of names too).
"""

from __future__ import annotations

import json
import math
import operator
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from numbers import Real
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.clock import Clock, SystemClock, zoned
from elasticscan.base.errors import InvalidOption, LimitExceeded
from elasticscan.base.limits import (
    MAX_APPLICATION_BYTES,
    MAX_COLUMNS,
    MAX_ID,
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

_LONGEST_PLACE = 64 << 10
COMPRESSIONS = ("none", "lz4", "zstd")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

# A condition: SQL text, or an expression of pyarrow's.
Condition: TypeAlias = str | pc.Expression


def whole_number(option: str, value: Any, least: int, most: int) -> int:
    """An integer of any kind, NumPy's included; True and 1.0 are none."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise _refusal(option, value, f"a whole number, {least} to {most}")
    return number


def page_limits(page_rows: Any, page_bytes: Any) -> tuple[int, int]:
    """The most rows and bytes of a page."""
    rows = whole_number("page_rows", page_rows, 1, MAX_PAGE_ROWS)
    return rows, whole_number("page_bytes", page_bytes, 1, MAX_PAGE_BYTES)


def flag(option: str, value: Any) -> bool:
    """True or False, and nothing that merely counts as such: "no" would be true."""
    if not isinstance(value, bool):
        raise _refusal(option, value, "True or False")
    return value


def file_form(option: str, value: Any) -> str | None:
    """The form of a table's files: None, also as "none", or "lz4" or "zstd"."""
    form = value.strip().lower() if isinstance(value, str) else "none" if value is None else ""
    if form not in COMPRESSIONS:
        raise _refusal(option, value, "'none' (or None), 'lz4' or 'zstd'")
    return None if form == "none" else form


def text(option: str, value: Any) -> str:
    """Text that can be stored: UTF-8 has no lone surrogates."""
    if not isinstance(value, str) or not is_whole(value):
        raise _refusal(option, value, "text")
    return str(value)


def condition(option: str, value: Any, parameters: Any, schema: Callable[[], pa.Schema]) -> str | None:
    """SQL text, with the values of its parameters, also of an expression of pyarrow's; None for none."""
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


def moment(option: str, value: Any) -> datetime:
    """A time with its zone, which may be text of ISO's form."""
    if isinstance(value, datetime):
        return zoned(option, value)
    with suppress(ValueError):
        return zoned(option, datetime.fromisoformat(text(option, value)))
    raise _refusal(option, value, "a datetime with its zone, or text such as '2026-03-01T12:00Z'")


def snapshot_or_time(snapshot: Any, timestamp: Any) -> int | str | datetime | None:
    """A snapshot as it was named, or the newest at a time."""
    if timestamp is None:
        return None if snapshot is None else past("snapshot", snapshot)
    if snapshot is not None:
        raise InvalidOption("snapshot and timestamp both say when; give one of them", option="timestamp")
    return moment("timestamp", timestamp)


def choice(option: str, value: Any, allowed: Iterable[str]) -> str:
    """One of a few words."""
    words = tuple(allowed)
    if text(option, value) not in words:
        raise _refusal(option, value, f"one of {', '.join(words)}")
    return str(value)


def or_none(check: Callable[..., Value], option: str, value: Any, *bounds: int) -> Value | None:
    """As another check, of what may be left out."""
    return None if value is None else check(option, value, *bounds)


def callback(option: str, value: Any) -> None:
    """A function, or None; found out before the work that it is told of."""
    if value is not None and not callable(value):
        raise _refusal(option, value, "a function, or None")


def clock(value: Any) -> Clock:
    """The machine's clock, or one that tests turn; "r" and "w", the second argument of files, are none."""
    if value is not None and not callable(getattr(value, "now", None)):
        raise _refusal("clock", value, "left out; read_only=True opens a store to read it")
    given: Clock | None = value
    return given or SystemClock()


def place(option: str, value: Any) -> str:
    """A directory or a URL."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path or "\0" in path:
        own = "; write store.uri" if hasattr(value, "uri") else ""
        raise _refusal(option, value, f"the path of a directory or a URL, as text{own}")
    if len(path) > _LONGEST_PLACE:  # not shown, since a password may be cut so that nobody knows it
        raise InvalidOption(
            f"{option} has {len(path):,} characters; no path or URL has more than {_LONGEST_PLACE:,}",
            option=option,
        )
    return text(option, path)


def names(option: str, value: Any, allowed: str = "a list of names") -> list[str]:
    """A list of names; one text, or a mapping, is none."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        listed = [part.strip() for part in value.split(",")] if isinstance(value, str) else None
        raise _refusal(option, value, allowed if listed is None else f"{allowed}: {brief(listed)}")
    items = list(islice(value, MAX_COLUMNS + 1))  # no more, for an endless iterable never ends
    if len(items) > MAX_COLUMNS:
        raise _refusal(option, value, f"a list of at most {MAX_COLUMNS} names")
    if not all(isinstance(name, str) for name in items):
        raise _refusal(option, value, f"{allowed}, each of them text")
    return [text(option, name) for name in items]


def columns(option: str, value: Any) -> list[str]:
    """Columns: a list of names, or a single name."""
    return [text(option, value)] if isinstance(value, str) else names(option, value)


def aggregates(option: str, value: Any) -> list[str]:
    """Aggregates: a list of texts, or a single text."""
    if isinstance(value, str):
        return [text(option, value)]
    return names(option, value, "a list of aggregates, such as ['count(*) AS n', 'sum(km)']")


def sources(option: str, value: Any) -> tuple[str, ...]:
    """Places of files: one or several."""
    if hasattr(value, "__arrow_c_stream__") or hasattr(value, "read") or isinstance(value, Mapping):
        message = (
            "a path; rows in memory are written by create_table(name, rows, primary_key) or upsert(rows)"
        )
        raise _refusal(option, value, message)
    several = isinstance(value, Iterable) and not isinstance(value, (str, os.PathLike, bytes))
    places = tuple(place(option, item) for item in (value if several else [value]))
    if not places:
        raise _refusal(option, value, "a path, a pattern or a URI, or a list of at least one of them")
    return places


def types(option: str, value: Any) -> dict[str, pa.DataType]:
    """Arrow's types by the names of columns; each may be given by its name."""
    if not (value is None or isinstance(value, Mapping)):
        raise _refusal(option, value, "a dict of Arrow's types, such as {'zip': 'string'}")
    return {
        text(option, name): arrow_type(f"{option}[{name!r}]", kind) for name, kind in (value or {}).items()
    }


def arrow_type(option: str, value: Any) -> pa.DataType:
    """A type of Arrow's, or its name."""
    found = value
    with suppress(ValueError):
        found = pa.type_for_alias(value) if isinstance(value, str) else value
    if not isinstance(found, pa.DataType):
        said = "one of Arrow's types, such as int64, double, bool, date32 or timestamp[us]"
        raise _refusal(option, value, said)
    return found


def delimiter(option: str, value: Any) -> str:
    """One character between fields of CSV."""
    if len(text(option, value)) != 1 or value in '\r\n"':
        raise _refusal(option, value, "one character, such as ';', '|' or a tab")
    return str(value)


def shards(value: Any) -> tuple[list[str], dict[str, str]]:
    """Names of shards, and the roots of those that were given one."""
    if isinstance(value, Mapping):
        listed = names("shards", list(value))
        roots = {name: place(f"shards[{name!r}]", value[name]) for name in listed}
    else:
        listed, roots = names("shards", value, "a list of names, such as ['s1', 's2']"), {}
    if not listed:
        raise _refusal("shards", value, "a list of at least one name, or a mapping of names to roots")
    twice = [name for name, times in Counter(listed).items() if times > 1]
    if twice:
        raise InvalidOption(
            f"shards={brief(value)}: {twice[0]!r} is named twice; name each once", option="shards"
        )
    return listed, roots


def roots(option: str, value: Any) -> dict[str, str]:
    """Roots of shards by their names; none where none is given."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _refusal(option, value, "a dict: roots by the names of their shards")
    return shards(value)[1] if value else {}


def seconds(option: str, value: Any) -> float:
    """A finite span of time, 0 or more."""
    return _finite(option, value, "a finite number of seconds, 0 or more")


def period(option: str, value: Any) -> float:
    """Seconds of a timedelta, or of text with its unit; a number alone is refused, except 0."""
    allowed = "a time with its unit, s, m, h or d, as in 30s, 90m, 12h or 7d"
    if isinstance(value, str):
        written = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])|0", value.lower(), re.ASCII)
        number = math.nan if written is None else float(written[1] or 0) * _UNITS[written[2] or "s"]
        if not math.isfinite(number):
            raise InvalidOption(f"{option}={brief(value, 40)} must be {allowed}, or 0", option=option)
        return number
    if isinstance(value, timedelta):
        return _finite(option, value.total_seconds(), "0 or more")
    if not isinstance(value, bool) and isinstance(value, Real) and value == 0:
        return 0.0
    raise _refusal(option, value, f"{allowed}, or a timedelta, or 0; a number does not say of what")


def share(option: str, value: Any) -> float:
    """A part of a whole."""
    return _finite(option, value, "a number from 0 to 1", most=1.0)


def tablet(option: str, value: Any) -> int:
    """The id of a tablet."""
    return whole_number(option, value, 0, MAX_ID)


def speed(option: str, value: Any) -> float | None:
    """Bytes in a second, or None for as many as there can be."""
    allowed = "a finite number greater than 0, or None"
    number = None if value is None else _finite(option, value, allowed)
    if number == 0:
        raise _refusal(option, value, allowed)
    return number


def transaction(value: Any) -> IdempotencyKey | None:
    """The pair (application, version) under which a write is done once."""
    if value is None:
        return None
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        is_condition = isinstance(value, str) and any(sign in value for sign in "<>=")
        message = "; a condition is given as where='…'" if is_condition else ""
        raise _refusal("txn", value, f"a pair, an application's name and a version: ('nightly', 7){message}")
    return IdempotencyKey(application("txn[0]", value[0]), whole_number("txn[1]", value[1], 0, MAX_NUMBER))


def application(option: str, value: Any) -> str:
    """The name under which writes are done once; PostgreSQL would refuse others during the commit."""
    name = text(option, value)
    if not name or "\0" in name or len(name.encode()) > MAX_APPLICATION_BYTES:
        said = f"a name of 1 to {MAX_APPLICATION_BYTES:,} bytes, without a zero byte"
        raise _refusal(option, value, said)
    return name


def past(option: str, value: Any) -> int | str | datetime:
    """A commit number, the name of a tag, or a time with its zone, which may be text of ISO's form."""
    if isinstance(value, datetime):
        return zoned(option, value)
    allowed = "a commit number, a tag or a time"
    if isinstance(value, float):
        allowed += "; of seconds since 1970, as a commit's created_at"
        raise _refusal(option, value, f"{allowed}, make a time: datetime.fromtimestamp(seconds, UTC)")
    if not isinstance(value, str):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise _refusal(option, value, f"{allowed}: 17, 'before_the_merger' or '2026-03-01T12:00Z'")
        return whole_number(option, value, 0, MAX_NUMBER)
    if not re.fullmatch(NAME_PATTERN, text(option, value)):
        with suppress(ValueError):
            return zoned(option, datetime.fromisoformat(value))
    return value


def user_metadata(value: Any) -> dict[str, str]:
    """A small dict of texts: what a writer says of its commit."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(
        isinstance(part, str) for pair in value.items() for part in pair
    ):
        raise _refusal("user_metadata", value, "a dict of texts, such as {'job': 'nightly'}")
    said = {text("user_metadata", key): text("user_metadata", word) for key, word in value.items()}
    size = len(json.dumps(said))
    if size > MAX_USER_METADATA_BYTES:
        raise LimitExceeded(
            f"user_metadata takes {size:,} bytes as JSON, and at most {MAX_USER_METADATA_BYTES:,} are kept "
            "with a commit; keep the rest elsewhere, and name its place",
            size=size,
            most=MAX_USER_METADATA_BYTES,
        )
    return said


def snapshot(value: Any) -> int | str | datetime | None:
    """A commit number, the name of a tag, or a time; None for the newest."""
    return None if value is None else past("snapshot", value)


def _finite(option: str, value: Any, allowed: str, most: float = sys.float_info.max) -> float:
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:  # an integer beyond the range of floats
        number = math.inf
    if not 0 <= number <= most:
        raise _refusal(option, value, allowed)
    return number


def _refusal(option: str, value: Any, allowed: str) -> InvalidOption:
    return InvalidOption(f"{option}={brief(value)} ({type(value).__name__}) must be {allowed}", option=option)
