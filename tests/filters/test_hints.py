"""SQL of other systems in a condition is refused with what to write in its place."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from elasticscan.base.errors import ColumnNotFound, FilterError
from elasticscan.filters import Predicate
from elasticscan.filters.hints import FUNCTIONS
from elasticscan.filters.parameters import with_parameters

SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("at", pa.timestamp("us", "UTC"))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("at < now()", "hand in the time, as filter='at < :now'"),
        ("at < CURRENT_TIMESTAMP", "hand in the time"),
        ("at > current_date() - 7", "hand in the time"),
        ("at > date_sub(at, 7)", "compare with the bounds of a span"),
        ("date_trunc('day', at) = at", "compare with the bounds of a span"),
        ("token(id) > 5", "leave it out"),
        ("id = ObjectId('5')", "keys are values of a column"),
        ("id > rand()", "a condition gives the same rows each time"),
        ("id = 5 ALLOW FILTERING", "leave ALLOW FILTERING out"),
        ("id > 1 && id < 5", "write AND"),
        ("city ~ 'O.*'", "write city RLIKE 'O.*'"),
        ("id > 1 LIMIT 3", "the argument limit"),
        ("id > 1 ORDER BY id", "the argument order_by"),
        ("SELECT * FROM t", "a filter is a condition alone"),
        ("WHERE id > 1", "leave the word WHERE out"),
        ("{'id': 1}", "write SQL: id = 7 AND km > 1"),
        ("id, city", "the argument or option columns"),
        ("city CONTAINS 'x'", "write contains(city, 'sl')"),
        ("id = %s", "written :name, and given in parameters={…}"),
        ("city", "the argument or option columns"),
    ],
)
def test_words_of_other_systems_are_reported_with_those_of_a_condition(text: str, message: str) -> None:
    with pytest.raises(FilterError, match=re.escape(message)):
        Predicate.parse(text, SCHEMA)


@pytest.mark.parametrize("word", ["now", "localtimestamp", "sysdate"])
def test_the_time_of_the_call_is_no_column(word: str) -> None:
    with pytest.raises(ColumnNotFound, match=f"there is no column {word}, and a condition has no clock"):
        Predicate.parse(f"at < {word}", SCHEMA)
    Predicate.parse(f"{word} < 3", pa.schema([(word, pa.int64())]))


@pytest.mark.parametrize(
    ("text", "message"), [("city == None", "and write km IS NULL"), ("id = nan", "and write isnan(km)")]
)
def test_no_value_is_no_column(text: str, message: str) -> None:
    with pytest.raises(ColumnNotFound, match=re.escape(message)):
        Predicate.parse(text, SCHEMA)


def test_what_is_met_within_quotes_is_no_word() -> None:
    with pytest.raises(FilterError) as refused:
        Predicate.parse("city = 'WHERE && LIMIT 3' city", SCHEMA)
    assert refused.value.message.endswith("Unexpected token")


def test_what_is_reported_of_the_time_works() -> None:
    text = with_parameters("at < :now", {"now": datetime(2026, 1, 31, 12, tzinfo=UTC)})
    rows = pa.record_batch([[1], ["x"], [datetime(2026, 1, 31, tzinfo=UTC)]], schema=SCHEMA)
    for form in (text, "at < TIMESTAMP '2026-01-31 12:00:00Z'"):
        assert Predicate.parse(form, SCHEMA).mask(rows).to_pylist() == [True]


def test_no_function_that_there_is_has_a_hint() -> None:
    with pytest.raises(FilterError) as refused:
        Predicate.parse("nothing_like_it(id) = 1", SCHEMA)
    there = refused.value.message.partition("functions ")[2].split(", ")
    assert "coalesce" in there
    assert FUNCTIONS.keys() & set(there) == set()
