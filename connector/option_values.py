"""Parsers of options. Each takes an option's name and text, and raises `InvalidOption`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from elasticscan.base.errors import InvalidOption, LimitExceeded
from elasticscan.base.limits import MAX_NUMBER, NAME_PATTERN
from elasticscan.base.showing import brief
from elasticscan.store import application, check_tag_name, user_metadata

EARLIEST, LATEST = "earliest", "latest"

_BYTES = re.compile(r"([0-9]{1,19})\s*([kmgt]?)i?b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LAST_SECOND = datetime.max.replace(tzinfo=UTC).timestamp()
_DIGITS = re.compile(r"[0-9]{1,19}")  # Python refuses to read very long numbers at all


def bad_value(name: str, value: str, allowed: str) -> InvalidOption:
    return InvalidOption(f"option {name!r}={brief(value, 200)} must be {allowed}", option=name)


def some_text(name: str, text: str) -> str:
    if not text.strip():
        raise bad_value(name, text, "text that is not empty")
    return text


def application_name(name: str, text: str) -> str:
    return application(name, some_text(name, text))


def column_list(name: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len({part.lower() for part in names}) < len(names):
        raise bad_value(name, text, "distinct column names such as 'id, name'")
    return names


def index_name(name: str, text: str) -> str:
    """Check the form; the index itself is looked up when a read is planned."""
    index = text.strip().lower()  # names of indexes have no other letters
    if not re.fullmatch(NAME_PATTERN, index):
        raise bad_value(name, text, "'auto', 'none' or the name of an index")
    return index


def whole(least: int, most: int | None = None) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        digits = text.strip()
        number = int(digits) if _DIGITS.fullmatch(digits) else -1
        if number < least or (most is not None and number > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise bad_value(name, text, f"a whole number {bounds}")
        return number

    return parse


def first_commit(name: str, text: str) -> int | str:
    word = text.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    if not (word.isascii() and word.isdigit()):
        raise bad_value(name, text, "the number of a commit, 'earliest' or 'latest'")
    return whole(0, MAX_NUMBER)(name, text)


def flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise bad_value(name, text, "true or false")
    return text.strip().lower() == "true"


def byte_count(name: str, text: str) -> int:
    match = _BYTES.fullmatch(text.strip())
    size = int(match[1]) * _FACTORS[match[2].lower()] if match else 0
    if not 1 <= size <= MAX_NUMBER:
        raise bad_value(name, text, "a number of bytes of at least 1, such as 67108864, 64m or 1g")
    return size


def snapshot(name: str, text: str) -> int | str:
    """Return a commit number or a tag, which is looked up when a read is planned."""
    word = text.strip()
    if word.isascii() and word.isdigit():
        return whole(0)(name, word)
    try:
        return check_tag_name(word)
    except InvalidOption as error:
        raise bad_value(
            name,
            text,
            "a commit number or a tag; a time goes into 'timestampAsOf'",
        ) from error


def metadata_of_commit(name: str, text: str) -> dict[str, str]:
    """Parse a JSON object of texts."""
    try:
        return user_metadata(json.loads(text))
    except (ValueError, RecursionError, InvalidOption, LimitExceeded) as error:
        raise bad_value(name, text, 'a JSON object of texts, such as \'{"job": "nightly"}\'') from error


def is_iso_time(text: str) -> bool:
    """Return True for a date or a time as text; never for digits alone or for the name of a tag."""
    word = text.strip()
    try:
        datetime.fromisoformat(word)
    except ValueError:
        return False
    return not re.fullmatch(NAME_PATTERN, word)


def moment(name: str, text: str) -> float:
    """Return seconds since the epoch. Digits alone are seconds; a time without a zone is in UTC."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            time = datetime.fromisoformat(text.strip())
        except ValueError:
            seconds = math.nan
        else:
            seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds) or seconds > _LAST_SECOND:
        raise bad_value(
            name, text, "an ISO date or time such as '2026-01-31T12:00:00Z', or seconds since 1970"
        )
    return seconds


@dataclass(frozen=True, slots=True)
class PartialAggregates:
    """Aggregates that each task computes over its rows: texts as in `Table.aggregate`, and groups."""

    values: tuple[str, ...]
    by: tuple[str, ...]

    def text(self) -> str:
        return json.dumps({"values": self.values, "by": self.by})


def partial_aggregates(name: str, text: str) -> PartialAggregates:
    try:
        asked = json.loads(text)
    except (ValueError, RecursionError):
        asked = None
    if isinstance(asked, dict) and asked.keys() <= {"values", "by"}:
        values, by = asked.get("values", []), asked.get("by", [])
        if all(isinstance(part, list) and all(isinstance(one, str) for one in part) for part in (values, by)):
            every = [*values, *by]
            if every and len(set(every)) == len(every):
                return PartialAggregates(tuple(values), tuple(by))
    raise bad_value(name, text, 'a JSON object such as {"values": ["count(*)", "sum(km)"], "by": ["city"]}')
