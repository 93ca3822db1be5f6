"""Value sets against the evaluator: no row that a filter keeps has its key outside of the set."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.key_encoding import END, VALUES, encode_value, value_of
from elasticscan.filters.bounds import keeps_order, single_values
from elasticscan.filters.key_sets import EVERYTHING, KeySet
from elasticscan.filters.parser import parse_condition
from elasticscan.filters.predicate import Predicate
from elasticscan.filters.value_sets import ColumnDomain, value_set
from tests.base.examples import examples
from tests.filters.generator import (
    CONDITIONS,
    DAY,
    NAN,
    SCHEMA,
    SEEDS,
    TESTS_OF_A_COLUMN,
    evaluated,
    random_rows,
)


def found_in(text: str, name: str) -> ColumnDomain:
    return value_set(parse_condition(text, SCHEMA), SCHEMA.field(name))


def keys_of(values: list[Any], kind: pa.DataType) -> list[bytes]:
    return [encode_value(pa.scalar(value, kind)) for value in values]


def holds(keys: KeySet, key: bytes) -> bool:
    return keys.overlaps(key, key + b"\0")


@settings(deadline=None, max_examples=examples(400))
@given(text=st.one_of(CONDITIONS, TESTS_OF_A_COLUMN), seed=SEEDS)
def test_every_row_that_a_filter_keeps_has_its_key_in_the_set_of_each_column(text: str, seed: int) -> None:
    batch = random_rows(random.Random(seed), 20)
    made = evaluated(text, batch)
    if made is None:
        return
    predicate, kept = made
    for field, column in zip(SCHEMA, batch.columns, strict=True):
        found = value_set(predicate.condition, field)
        plain = column.dictionary_decode() if pa.types.is_dictionary(field.type) else column
        for key, keep in zip(map(encode_value, plain), kept, strict=True):
            inside = holds(found.keys, key)
            assert inside or keep is not True, (field.name, key)
            assert not found.exact or inside == (keep is True), (field.name, key)


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("(i = 1 AND l = 2) OR (i = 3 AND l > 4)", "i", [1, 3]),
        ("i >= 5 AND i <= 5", "i", [5]),
        ("i = 1 + 2", "i", [3]),
        ("i > 2147483646 + (2 - 2)", "i", [2**31 - 1]),
        ("i < 1 + CAST(NULL AS INT)", "i", []),
        ("i = 2.5", "i", []),
        ("i IS NULL OR i <=> 7", "i", [None, 7]),
        ("flag IS NOT TRUE", "flag", [None, False]),
        ("f = 0.5 OR f = -0.0D", "f", [0.0, 0.5]),
        ("d > CAST('Infinity' AS DOUBLE)", "d", [NAN]),
        ("s LIKE 'abc' OR s <= ''", "s", ["", "abc"]),
        ("fix > X'FFFE'", "fix", [b"\xff\xff"]),
        ("NOT i IN (1, NULL)", "i", []),
        ("NOT ((i IN (1, NULL)) IS NULL)", "i", [1]),
    ],
)
def test_single_values_are_found(text: str, name: str, values: list[Any]) -> None:
    kind = SCHEMA.field(name).type
    found = single_values(found_in(text, name).keys, kind, len(values))
    assert found is not None
    assert repr([value_of(key, kind).as_py() for key in found]) == repr(values)
    assert not values or single_values(found_in(text, name).keys, kind, len(values) - 1) is None


@pytest.mark.parametrize(
    ("text", "low", "high", "exact"),
    [
        ("i < 2.5", VALUES, keys_of([3], pa.int32())[0], True),
        ("i > 1.5 AND i <= 9999999999", keys_of([2], pa.int32())[0], END, True),
        ("day >= TIMESTAMP '1970-01-01 00:00:01'", keys_of([1], pa.date32())[0], END, True),
        ("CAST(us AS DATE) = '1970-01-01'", *keys_of([0, DAY], pa.timestamp("us")), True),
        ("s LIKE 'a\\\\_%'", b"\1a_", b"\1a`", True),
        ("s LIKE 'ab_%c'", b"\1ab", b"\1ac", False),
    ],
)
def test_bounds_are_those_of_the_stored_type(text: str, low: bytes, high: bytes, exact: bool) -> None:
    (name,) = Predicate.parse(text, SCHEMA).columns
    found = found_in(text, name)
    assert found.keys.intervals == ((low, high),)
    assert found.exact is exact


def test_what_is_not_understood_leaves_everything_possible() -> None:
    for text, name in (
        ("upper(s) = 'A'", "s"),
        ("CAST(l AS INT) = 5", "l"),
        ("named = 'a'", "named"),
        ("i + 1 = 2", "i"),
        ("i = 2147483647 + 1", "i"),
        ("i = 1 DIV 0", "i"),
    ):
        assert found_in(text, name) == ColumnDomain(EVERYTHING, exact=False), text
    assert not found_in("i > 5 AND l = 1", "i").exact
    assert found_in("i > 5 AND i < 3 AND l = 1", "i").exact


@pytest.mark.parametrize(
    ("source", "target", "kept"),
    [
        (pa.decimal128(10, 2), pa.decimal128(10, 1), True),
        (pa.decimal128(10, 2), pa.decimal128(9, 1), False),  # 99999999.99 becomes 100000000.0
        (pa.int64(), pa.decimal128(20, 1), True),
        (pa.int64(), pa.decimal128(18, 0), False),
        (pa.int64(), pa.float32(), True),
        (pa.int64(), pa.int32(), False),
        (pa.float64(), pa.int64(), False),
        (pa.int32(), pa.bool_(), False),
        (pa.int32(), pa.string(), False),
        (pa.binary(), pa.string(), False),
    ],
)
def test_conversions_that_may_fail_or_turn_values_round_are_not_followed(
    source: pa.DataType, target: pa.DataType, kept: bool
) -> None:
    assert keeps_order(source, target) is kept


def test_a_long_list_is_looked_up_as_far_as_that_is_quick() -> None:
    halves = found_in(f"i IN ({', '.join(f'{each}.0' for each in range(0, 2_000, 2))}, 7.5)", "i")
    assert len(halves.keys.intervals) == 1_000
    assert halves.exact
    huge = ", ".join(f"{10**18 + each}D" for each in range(0, 300_000, 1_000))
    assert found_in(f"l IN ({huge})", "l") == ColumnDomain(EVERYTHING, exact=False)
    assert found_in(f"NOT l = {10**18}D", "l").exact


@pytest.mark.long
def test_long_chains_take_no_square_time() -> None:
    found = found_in(" AND ".join(f"i <> {each}" for each in range(0, 8000, 2)), "i")
    assert len(found.keys.intervals) == 4001  # nulls are not among them
    assert found.exact
    found = found_in(" OR ".join(f"i = {each}" for each in range(0, 8000, 2)), "i")
    assert len(found.keys.intervals) == 4000


PROBES = st.tuples(st.integers(0, 1), st.integers(0, 9)).map(bytes)
BOUNDS = st.lists(PROBES | st.just(END), min_size=2, max_size=2).map(sorted)
SETS = st.lists(BOUNDS.map(tuple), max_size=4).map(KeySet.of)


@settings(deadline=None, max_examples=examples(200))
@given(one=SETS, two=SETS, key=PROBES, other=PROBES)
def test_sets_obey_the_laws_of_sets(one: KeySet, two: KeySet, key: bytes, other: bytes) -> None:
    assert holds(one | two, key) == (holds(one, key) or holds(two, key))
    assert holds(one & two, key) == (holds(one, key) and holds(two, key))
    assert holds(one.complement(), key) != holds(one, key)
    assert holds(one.coarsened(1), key) or not holds(one, key)
    low, high = sorted((key, other))
    assert one.overlaps(low, high) == (not (one & KeySet.of([(low, high)])).is_empty)
    for each in (one | two, one & two, one.complement()):
        assert all(left[1] < right[0] for left, right in pairwise(each.intervals))
