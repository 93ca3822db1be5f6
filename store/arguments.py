"""Checks of arguments that neither types nor Python's own errors cover.

Each function returns the value in the type that the rest of the store uses. A wrong type raises Python's own
`TypeError`, `ValueError` or `AttributeError`; a value out of bounds raises `InvalidOption` with the value and
the bounds. All checks run before anything is written.
"""

from __future__ import annotations

import json
import math
import operator
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from numbers import Real
from typing import Any, TypeAlias, TypedDict

import pyarrow as pa

from elasticscan.base.clock import seconds_of, zoned
from elasticscan.base.errors import InvalidOption, LimitExceeded
from elasticscan.base.formatting import brief, is_whole
from elasticscan.base.limits import (
    MAX_APPLICATION_BYTES,
    MAX_COLUMNS,
    MAX_NUMBER,
    MAX_PAGE_BYTES,
    MAX_PAGE_ROWS,
    MAX_USER_METADATA_BYTES,
    NAME_PATTERN,
    check_name,
)
from elasticscan.catalog import IdempotencyKey
from elasticscan.filters import with_parameters

COMPRESSIONS = ("none", "lz4", "zstd")

Names: TypeAlias = str | Sequence[str]
Columns: TypeAlias = Names | None
Condition: TypeAlias = str | None
Parameters: TypeAlias = Mapping[str, Any] | None
Shards: TypeAlias = Sequence[str] | Mapping[str, str]
Snapshot: TypeAlias = int | str | datetime | None
Note: TypeAlias = Mapping[str, str] | None
Txn: TypeAlias = tuple[str, int] | None


class Reading(TypedDict, total=False):
    """The keyword arguments of `Table.scan`."""

    parameters: Parameters
    index: str
    order_by: Columns
    limit: int | None
    snapshot: Snapshot
    page_rows: int
    page_bytes: int


def whole_number(option: str, value: Any, least: int = 0, most: int = MAX_NUMBER) -> int:
    """Return an integer of any type, NumPy's included, within bounds. Refuses True and 1.0."""
    number = -1 if isinstance(value, bool) else operator.index(value)
    if not least <= number <= most:
        raise _refusal(option, value, f"a whole number, {least} to {most}")
    return number


def page_limits(page_rows: Any, page_bytes: Any) -> tuple[int, int]:
    """Return the maximum rows and bytes of a page."""
    rows = whole_number("page_rows", page_rows, 1, MAX_PAGE_ROWS)
    return rows, whole_number("page_bytes", page_bytes, 1, MAX_PAGE_BYTES)


def file_form(option: str, value: Any) -> str | None:
    """Return the compression of a table's files: "lz4", "zstd", or None for None and "none"."""
    form = choice(option, "none" if value is None else text(option, value).strip().lower(), COMPRESSIONS)
    return None if form == "none" else form


def text(option: str, value: Any) -> str:
    """Return text that can be stored as UTF-8. Refuses lone surrogates."""
    if not isinstance(value, str) or not is_whole(value):
        raise _refusal(option, value, "text")
    return str(value)


def condition(option: str, value: Any, parameters: Any) -> str | None:
    """Return a condition as SQL text, with its parameters replaced by literals; None stays None."""
    if value is None:
        return None
    sql = text(option, value)
    return sql if parameters is None else with_parameters(sql, parameters)


def whole_or_none(option: str, value: Any) -> int | None:
    """Return an integer such as a limit, a slot or a commit number; None stays None."""
    return None if value is None else whole_number(option, value)


def past(option: str, value: Any) -> int | str | datetime:
    """Return a commit number, a tag's name, or a time with its zone. Parses numbers and times in text."""
    if isinstance(value, datetime):
        return zoned(option, value)
    if not isinstance(value, str):
        return whole_number(option, value)
    if re.fullmatch("[0-9]+", value):
        return whole_number(option, int(value[:20]))
    if not re.fullmatch(NAME_PATTERN, text(option, value)):
        with suppress(ValueError):
            return zoned(option, datetime.fromisoformat(value))
    return value


def snapshot(option: str, value: Any) -> Snapshot:
    """Return the same as `past`; None, which means the newest snapshot, stays None."""
    return None if value is None else past(option, value)


def choice(option: str, value: Any, allowed: Collection[str]) -> str:
    """Return the value if it is one of the allowed words."""
    if value not in allowed:
        raise _refusal(option, value, f"one of {', '.join(allowed)}")
    return str(value)


def place(option: str, value: Any) -> str:
    """Return a path or a URL as text."""
    path = text(option, os.fspath(value))
    if not path or "\0" in path:
        raise _refusal(option, value, "the path of a directory or a URL")
    return path


def places(option: str, value: Any) -> list[str]:
    """Return a list of paths or URLs. Refuses an empty list: an overwrite with no files removes all rows."""
    given = value if isinstance(value, list | tuple) else [value]
    if not given:
        raise _refusal(option, value, "a path, a URL, or a list of at least one")
    return [place(option, each) for each in given]


def names(option: str, value: Any) -> list[str]:
    """Return a list of names; a single name becomes a list of one. Refuses a mapping."""
    if isinstance(value, Mapping):
        raise _refusal(option, value, "a list of names")
    items = [value] if isinstance(value, str) else list(islice(value, MAX_COLUMNS + 1))
    if len(items) > MAX_COLUMNS:  # `islice` above: the iterable may be endless
        raise _refusal(option, value, f"a list of at most {MAX_COLUMNS} names")
    return [text(option, name) for name in items]


def columns(option: str, value: Any) -> list[str] | None:
    """Return the same as `names`; None, which means the default columns, stays None."""
    return None if value is None else names(option, value)


def types(option: str, value: Any) -> dict[str, pa.DataType]:
    """Return Arrow types by column name. A type may be given by its name; None gives an empty dict."""
    given = {} if value is None else value
    return {text(option, name): arrow_type(f"{option}[{name!r}]", kind) for name, kind in given.items()}


def arrow_type(option: str, value: Any) -> pa.DataType:
    """Return an Arrow type, given as a type or by its name."""
    with suppress(ValueError):  # no type has this name
        return pa.field("", value).type
    raise _refusal(option, value, "one of Arrow's types, such as int64, double, bool or timestamp[us]")


def shards(value: Any) -> tuple[list[str], dict[str, str]]:
    """Return the names of shards, and the given roots by name."""
    given = names("shards", list(value) if isinstance(value, Mapping) else value)
    listed = [check_name("shard", name) for name in given]
    if not listed or len(set(listed)) < len(listed):
        raise _refusal("shards", value, "a list of different names, or a mapping of names to roots")
    return listed, roots("shards", value) if isinstance(value, Mapping) else {}


def roots(option: str, value: Any) -> dict[str, str]:
    """Return the roots of shards by their names; None gives an empty dict."""
    given = {} if value is None else value
    return {text(option, name): place(f"{option}[{name!r}]", root) for name, root in given.items()}


def number(option: str, value: Any, most: float = MAX_NUMBER) -> float:
    """Return a number from 0 to a bound, such as seconds or a share."""
    real: Any = math.nan if isinstance(value, bool) or not isinstance(value, Real) else value
    if not 0 <= real <= most:
        raise _refusal(option, value, f"a number, 0 to {most}")
    return float(real)


def period(option: str, value: Any) -> float | None:
    """Return the seconds of a timedelta or of text with a unit; None, the store's default, stays None."""
    if isinstance(value, timedelta):
        return number(option, value.total_seconds())
    return None if value is None else seconds_of(option, text(option, value))


def transaction(value: Any) -> IdempotencyKey | None:
    """Return the pair (application, version) that identifies a write, so that it is not repeated."""
    if value is None:
        return None
    name, version = value
    return IdempotencyKey(application("txn[0]", name), whole_number("txn[1]", version))


def application(option: str, value: Any) -> str:
    """Return the name of an application. PostgreSQL would refuse a longer one, or one with a zero byte."""
    name = text(option, value)
    if not name or "\0" in name or len(name.encode()) > MAX_APPLICATION_BYTES:
        raise _refusal(option, value, f"a name of 1 to {MAX_APPLICATION_BYTES:,} bytes, without a zero byte")
    return name


def user_metadata(value: Any) -> dict[str, str]:
    """Return the dict of texts that is stored with a commit. Checks its size."""
    given = {} if value is None else value
    metadata = {text("user_metadata", key): text("user_metadata", word) for key, word in given.items()}
    size = len(json.dumps(metadata))
    if size > MAX_USER_METADATA_BYTES:
        raise LimitExceeded(
            f"user_metadata may take {MAX_USER_METADATA_BYTES:,} bytes as JSON, not {size:,}; shorten it",
            size=size,
            most=MAX_USER_METADATA_BYTES,
        )
    return metadata


def _refusal(option: str, value: Any, allowed: str) -> InvalidOption:
    return InvalidOption(f"{option}={brief(value)} ({type(value).__name__}) must be {allowed}", option=option)
