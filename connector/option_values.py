"""Forms of options. Each turns an option's name and text into its value, or raises `InvalidOption`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from elasticscan.base.errors import InvalidOption, UsageError
from elasticscan.base.formatting import brief
from elasticscan.base.limits import MAX_NUMBER, check_name
from elasticscan.store import check_tag_name, user_metadata, whole_number

EARLIEST, LATEST = "earliest", "latest"

_BYTES = re.compile(r"([0-9]{1,19})\s*([kmgt]?)i?b?")
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LAST_SECOND = datetime.max.replace(tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True)
class OptionForm:
    """A form of texts.

    Attributes:
        parse: text -> value; raises an error of a user or of Python's for a text that has another form.
        allowed: what the text must be, for the error.
    """

    parse: Callable[[str], Any]
    allowed: str

    def __call__(self, name: str, text: str) -> Any:
        try:
            text.encode()  # no lone surrogate
            return self.parse(text)
        except (UsageError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
            raise bad_value(name, text, self.allowed) from None


def bad_value(name: str, value: str, allowed: str) -> InvalidOption:
    return InvalidOption(f"option {name!r}={brief(value, 200)} must be {allowed}", option=name)


def whole(least: int, most: int = MAX_NUMBER) -> OptionForm:
    return OptionForm(
        lambda text: whole_number("", int(text), least, most), f"a whole number from {least} to {most}"
    )


def _some_text(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len({part.lower() for part in names}) < len(names):
        raise ValueError
    return names


def _first_commit(text: str) -> int | str:
    word = text.strip().lower()
    return word if word in (EARLIEST, LATEST) else whole_number("", int(word), 0, MAX_NUMBER)


def _byte_count(text: str) -> int:
    match = _BYTES.fullmatch(text.strip().lower())
    return whole_number("", int(match[1]) * _FACTORS[match[2]] if match else 0, 1, MAX_NUMBER)


def _snapshot(text: str) -> int | str:
    """Return a commit number or a tag, which is looked up when a read is planned."""
    word = text.strip()
    return whole_number("", int(word), 0, MAX_NUMBER) if word.isdecimal() else check_tag_name(word)


def _moment(text: str) -> float:
    """Return seconds since the epoch. Digits alone are seconds; a time without a zone is in UTC."""
    try:
        seconds = float(text)
    except ValueError:
        time = datetime.fromisoformat(text.strip())
        seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds) or seconds > _LAST_SECOND:
        raise ValueError
    return seconds


@dataclass(frozen=True, slots=True)
class PartialAggregates:
    """Aggregates that each task computes over its rows: texts as in `Table.aggregate`, and groups."""

    values: tuple[str, ...]
    by: tuple[str, ...]

    def text(self) -> str:
        return json.dumps({"values": self.values, "by": self.by})


def _partial_aggregates(text: str) -> PartialAggregates:
    asked = json.loads(text)
    values, by = asked.pop("values", []), asked.pop("by", [])
    every = [*values, *by]
    is_list_of_texts = isinstance(values, list) and isinstance(by, list) and set(map(type, every)) == {str}
    if asked or not is_list_of_texts or len(set(every)) < len(every):
        raise ValueError
    return PartialAggregates(tuple(values), tuple(by))


some_text = OptionForm(_some_text, "text that is not empty")
column_list = OptionForm(_columns, "distinct column names such as 'id, name'")
index_name = OptionForm(  # the index itself is looked up when a read is planned
    lambda text: check_name("index", text.strip().lower()), "'auto', 'none' or the name of an index"
)
first_commit = OptionForm(_first_commit, "the number of a commit, 'earliest' or 'latest'")
flag = OptionForm(lambda text: {"true": True, "false": False}[text.strip().lower()], "true or false")
byte_count = OptionForm(_byte_count, "a number of bytes of at least 1, such as 67108864, 64m or 1g")
snapshot = OptionForm(_snapshot, "a commit number or a tag; a time goes into 'timestampAsOf'")
moment = OptionForm(_moment, "an ISO date or time such as '2026-01-31T12:00:00Z', or seconds since 1970")
metadata_of_commit = OptionForm(
    lambda text: user_metadata(json.loads(text)), 'a JSON object of texts, such as \'{"job": "nightly"}\''
)
partial_aggregates = OptionForm(
    _partial_aggregates, 'a JSON object such as {"values": ["count(*)", "sum(km)"], "by": ["city"]}'
)
