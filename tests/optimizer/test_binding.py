"""Binding indexes, estimating, and choosing how to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import InvalidOption, NotFound
from elasticscan.base.key_encoding import END, encode_value, encode_values, index_hash, successor
from elasticscan.filters.expression import Expression, column_names
from elasticscan.filters.parser import parse_condition
from elasticscan.filters.predicate import Predicate
from elasticscan.filters.value_sets import column_sets
from elasticscan.metadata import (
    HASH,
    SORTED,
    Block,
    Fragment,
    FragmentStatistics,
    IndexInfo,
    IndexPhase,
    KeyHistogram,
    SlotInterval,
    StagedFragment,
    TableInfo,
)
from elasticscan.optimizer import choice
from elasticscan.optimizer.binding import MAX_RANGES, IndexCondition, bind
from elasticscan.optimizer.choice import Choice, choose
from elasticscan.optimizer.estimates import rows_to_read
from elasticscan.optimizer.keys import bind_key
from elasticscan.topology import SlotSet
from tests.base.examples import examples

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("a", pa.int32()),
        ("b", pa.int32()),
        ("c", pa.int32()),
        ("s", pa.string()),
        ("x", pa.float64()),
        ("list", pa.list_(pa.int32())),
    ]
)


def index(*columns: str, kind: str = SORTED, include: tuple[str, ...] = (), ready: bool = True) -> IndexInfo:
    name = f"{'hash_' if kind == HASH else ''}by_{'_'.join(columns)}"
    return IndexInfo(1, 1, name, kind, columns, include, IndexPhase.READY if ready else IndexPhase.BUILDING)


def condition(text: str | None) -> Expression | None:
    return None if text is None else parse_condition(text, SCHEMA)


def bound(text: str | None, info: IndexInfo) -> IndexCondition:
    found = bind(info, condition(text), SCHEMA)
    assert found is not None
    return found


def key(*values: Any) -> bytes:
    return b"".join(encode_value(pa.scalar(value, pa.int32())) for value in values)


def test_each_index_is_bound_as_far_as_equality_reaches() -> None:
    text = "a = 1 AND b > 2 AND b < 4"
    by_a_b, by_a_c, by_b = (bound(text, index(*columns)) for columns in (("a", "b"), ("a", "c"), ("b",)))

    assert by_a_b.ranges == ((key(1, 3), key(1, 4)),)
    assert (by_a_b.bound, by_a_b.text, by_a_b.remainder) == (2, "a = 1 AND b > 2 AND b < 4", None)

    assert by_a_c.ranges == ((key(1), key(2)),)
    assert (by_a_c.bound, by_a_c.text, by_a_c.remainder) == (1, "a = 1", "b > 2 AND b < 4")
    assert by_a_c.residual is not None
    assert column_names(by_a_c.residual) == {"b"}

    assert by_b.ranges == ((key(3), key(4)),)
    assert (by_b.bound, by_b.text, by_b.remainder) == (1, "b > 2 AND b < 4", "a = 1")


def test_without_a_condition_on_its_columns_all_of_a_sorted_index_is_read() -> None:
    for text in (None, "c = 1", "UPPER(s) = 'A'"):
        found = bound(text, index("a", "b"))
        assert (found.ranges, found.bound, found.text, found.remainder) == (((b"", END),), 0, "", text)


def test_what_an_or_leaves_possible_bounds_an_index_and_stays_to_be_checked() -> None:
    text = "a = 1 AND b = 2 OR a = 3 AND c > 4"
    found = bound(text, index("a"))
    assert found.ranges == ((key(1), key(2)), (key(3), key(4)))
    assert (found.text, found.remainder) == (text, text)
    both = bound(f"({text}) AND b < 9", index("a", "b"))
    assert both.text == f"({text}) AND b < 9"
    assert bound("s LIKE 'a%b'", index("s")).text == "s LIKE 'a%b'"
    assert bound("s LIKE 'a%b'", index("s")).remainder == "s LIKE 'a%b'"


def test_more_ranges_than_allowed_make_fewer_or_coarser_ones() -> None:
    many = ", ".join(map(str, range(0, 5_000, 2)))
    coarse = bound(f"a IN ({many}) AND b = 1", index("a", "b"))
    assert len(coarse.ranges) == MAX_RANGES
    assert coarse.bound == 1
    assert coarse.remainder == f"a IN ({many}) AND b = 1"
    assert coarse.text == f"a IN ({many})"[:200] + "..."
    some = ", ".join(map(str, range(0, 800, 2)))
    two = bound(f"a IN ({some}) AND b IN (1, 5, 9)", index("a", "b"))
    assert len(two.ranges) == 800
    assert two.remainder == "b IN (1, 5, 9)"
    assert bind(index("a", kind=HASH), condition(f"a IN ({many})"), SCHEMA) is None


def test_a_hash_index_needs_values_for_all_its_columns() -> None:
    info = index("a", "s", kind=HASH)
    for text in (None, "a = 1", "a = 1 AND s > 'x'", "a > 1 AND s = 'x'"):
        assert bind(info, condition(text), SCHEMA) is None
    found = bound("a IN (1, 2) AND s = 'x' AND b > 3", info)
    hashes = index_hash([pa.array([1, 2], pa.int32()), pa.array(["x", "x"])])
    keys = sorted(key(int(each)) for each in hashes)
    assert found.ranges == tuple((low, successor(low)) for low in keys)
    assert found.remainder == "a IN (1, 2) AND s = 'x' AND b > 3"
    assert found.text == "a IN (1, 2) AND s = 'x'"
    assert found.bound == 2


VALUES_OF_A_ROW = st.tuples(*(st.one_of(st.none(), st.integers(-1, 4)) for _ in "abc"))
CONJUNCTS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from("abc"), st.sampled_from(["=", "<", ">=", "<>", "<=>"]), st.integers(-1, 4)
        ).map(lambda three: f"{three[0]} {three[1]} {three[2]}"),
        st.tuples(st.sampled_from("abc"), st.lists(st.integers(-1, 4), min_size=1, max_size=3)).map(
            lambda two: f"{two[0]} IN ({', '.join(map(str, two[1]))})"
        ),
        st.sampled_from(
            [
                "a IS NULL",
                "b IS NULL OR b = 2",
                "a = 1 OR b = 2",
                "(a = 1 AND b = 2) OR (a = 3 AND c > 1)",
                "a < b",
            ]
        ),
    ),
    min_size=1,
    max_size=4,
)
INFOS = st.tuples(
    st.sampled_from([("a",), ("a", "b"), ("b", "a", "c"), ("c", "b")]),
    st.sampled_from([SORTED, SORTED, HASH]),
).map(lambda two: index(*two[0], kind=two[1]))


@settings(deadline=None, max_examples=examples(200))
@given(rows=st.lists(VALUES_OF_A_ROW, min_size=1, max_size=12), parts=CONJUNCTS, info=INFOS)
def test_ranges_and_remainder_together_keep_just_the_rows_of_the_condition(
    rows: list[tuple[int | None, ...]], parts: list[str], info: IndexInfo
) -> None:
    text = " AND ".join(f"({part})" for part in parts)
    schema = pa.schema([SCHEMA.field(name) for name in "abc"])
    batch = pa.record_batch(
        [pa.array(column, pa.int32()) for column in zip(*rows, strict=True)], schema=schema
    )
    found = bind(info, parse_condition(text, schema), schema)
    if found is None:
        assert info.kind == HASH
        return
    columns = [batch.column(name) for name in info.columns]
    if info.kind == HASH:
        columns = [pa.array(index_hash(columns))]
    keys = [encode_values(columns, row) for row in range(batch.num_rows)]
    inside = [any(low <= each < high for low, high in found.ranges) for each in keys]
    left = (
        Predicate(found.residual).mask(batch).to_pylist()
        if found.residual is not None
        else [True] * len(rows)
    )
    kept = Predicate.parse(text, schema).mask(batch).to_pylist()
    assert [here and rest is True for here, rest in zip(inside, left, strict=True)] == [
        each is True for each in kept
    ]
    assert all(low < high for low, high in found.ranges)
    assert all(one[1] <= two[0] for one, two in zip(found.ranges, found.ranges[1:], strict=False))


# ---------------------------------------------------------------------------------- estimates


def histogram_of(keys: Sequence[bytes], distinct: tuple[int, ...], steps: int = 64) -> KeyHistogram:
    ordered = sorted(keys)
    places = np.linspace(0, len(ordered) - 1, steps + 1).round().astype(int)
    return KeyHistogram(len(keys), distinct, tuple(ordered[place] for place in places))


def statistics_of(batches: Sequence[pa.RecordBatch]) -> FragmentStatistics:
    """What the storage layer would write of these record batches."""
    columns = {}
    for name in ("id", "a", "b", "s"):
        arrays = [batch.column(name) for batch in batches]
        keys = [[encode_value(each) for each in array] for array in arrays]
        blocks = []
        for some in keys:
            there = [each for each in some if each != b"\0"]
            blocks.append(Block(min(there), successor(max(there)), len(some) - len(there)))
        columns[name] = tuple(blocks)
    return FragmentStatistics(tuple(batch.num_rows for batch in batches), columns)


ROWS = 8_000


@pytest.fixture(autouse=True)
def _light_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real ones a table this small is read directly whatever the filter."""
    weights = {"DIRECT_COLUMN": 0.0, "SEEK": 20.0, "FETCH_ROW": 4.0, "ENTRY_FILTER": 0.5}
    weights |= {"MERGED_ENTRY": 0.0, "FETCH_SEGMENT": 0.0}
    for name, weight in weights.items():
        monkeypatch.setattr(choice, name, weight)
    monkeypatch.setattr(choice, "SORTED_ENTRY", 3.0)
    monkeypatch.setattr(choice, "HASH_ENTRY", 2.0)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """`id` counts, `a` has 100 values, `b` 1000 of which a tenth is null, `s` is 'x' in half of the rows."""
    numbers = np.arange(ROWS)
    b = pa.array(numbers % 1_000, pa.int32(), mask=numbers % 10 == 9)
    s = pa.array(["x" if each % 2 else f"k{each:05}" for each in numbers])
    x = pa.array(numbers / 7)
    nothing = pa.nulls(ROWS, pa.list_(pa.int32()))
    a = pa.array(numbers * 7919 % 100, pa.int32())
    return pa.table([pa.array(numbers), a, b, a, s, x, nothing], schema=SCHEMA)


@pytest.fixture(scope="module")
def statistics(table: pa.Table) -> list[FragmentStatistics]:
    batches = table.to_batches(max_chunksize=500)
    return [statistics_of(batches[:10]), statistics_of(batches[10:])]


def runs_of(table: pa.Table, info: IndexInfo) -> list[KeyHistogram]:
    columns = [table.column(name).combine_chunks() for name in info.columns]
    if info.kind == HASH:
        columns = [pa.array(index_hash(columns))]
    keys = [[encode_value(each) for each in column] for column in columns]
    prefixes = [
        [b"".join(row[:depth]) for row in zip(*keys, strict=True)] for depth in range(1, len(keys) + 1)
    ]
    half = ROWS // 2
    return [
        histogram_of(prefixes[-1][part], tuple(len(set(some[part])) for some in prefixes))
        for part in (slice(None, half), slice(half, None))
    ]


def fragment(number: int, unique: bool = True, width: int = 1) -> Fragment:
    slots = SlotSet.span(0, width)
    staged = StagedFragment(1, f"{number}", slots, 0, 0, unique, 0, False, 0, 0)
    return staged.entered(number, 1, 1, 1)


def alone(statistics: Sequence[FragmentStatistics]) -> tuple[list[SlotInterval], dict[int, Any]]:
    """Each fragment serves its slots by itself."""
    known = dict(enumerate(statistics))
    return [SlotInterval(0, 1, (fragment(number),)) for number in known], known


def test_a_fragment_without_statistics_counts_with_all_of_its_rows() -> None:
    hidden = replace(fragment(0), rows=7)
    assert rows_to_read([SlotInterval(0, 1, (hidden,))], {}, {}) == (7, 7)
    assert rows_to_read([SlotInterval(0, 1, (hidden, replace(hidden, id=1)))], {}, {}) == (14, 14)


def test_where_versions_may_meet_all_are_read_as_soon_as_one_may_match() -> None:
    def of(low: int, high: int) -> FragmentStatistics:
        blocks = (Block(key(low), key(low + 1), 0), Block(key(high), key(high + 1), 0))
        return FragmentStatistics((10, 10), {"a": blocks})

    known = {1: of(1, 5), 2: of(7, 9), 3: of(1, 5)}
    wide = fragment(2, width=2)
    apart = [SlotInterval(0, 1, (fragment(1),)), SlotInterval(0, 1, (fragment(2),))], known
    meeting = [SlotInterval(0, 1, (fragment(1), wide)), SlotInterval(1, 2, (wide,))], known
    several_versions = [SlotInterval(0, 1, (fragment(3, unique=False),))], known
    limits = column_sets(condition("a = 5"), SCHEMA)
    assert rows_to_read(*apart, limits)[1] == 10
    assert rows_to_read(*meeting, limits)[1] == 20 + 10
    assert rows_to_read(*several_versions, limits)[1] == 20
    nothing = column_sets(condition("a = 100"), SCHEMA)
    assert [rows_to_read(*each, nothing)[1] for each in (apart, meeting, several_versions)] == [0, 0, 0]


def test_blocks_that_cannot_match_are_known_from_their_bounds(statistics: list[FragmentStatistics]) -> None:
    assert rows_to_read(*alone(statistics), column_sets(condition("id < 1000"), SCHEMA))[1] == 1_000
    assert (
        rows_to_read(*alone(statistics), column_sets(condition("id = 1000 OR id = 7999"), SCHEMA))[1] == 1_000
    )
    assert rows_to_read(*alone(statistics), column_sets(condition("a = 1 AND FALSE"), SCHEMA))[1] == 0
    assert rows_to_read(*alone(statistics), column_sets(condition("x = 1"), SCHEMA))[1] == ROWS
    assert rows_to_read(*alone(statistics), column_sets(None, SCHEMA)) == (ROWS, ROWS)


# ------------------------------------------------------------------------------------- choosing


def chosen(
    text: str | None,
    table: pa.Table,
    statistics: list[FragmentStatistics],
    infos: Sequence[IndexInfo],
    *,
    columns: Sequence[str] = ("id", "a", "b", "s"),
    option: str = "auto",
) -> Choice:
    indexes = [(info, runs_of(table, info)) for info in infos]
    return choose(condition(text), SCHEMA, ("id",), columns, *alone(statistics), indexes, option)


def test_the_index_wins_with_selective_filters_and_the_direct_scan_with_others(
    table: pa.Table, statistics: list[FragmentStatistics]
) -> None:
    infos = [index("a"), index("a", kind=HASH), index("b")]
    few = chosen("a = 5", table, statistics, infos)
    assert few.candidate.access == "hash_by_a"  # as selective as the sorted one, and cheaper
    assert few.candidate.rows_scanned == pytest.approx(80, rel=0.1)
    assert few.index == infos[1]
    assert few.bound is not None
    some = chosen("a < 3", table, statistics, infos)
    assert some.candidate.access == "by_a"
    assert some.candidate.rows_scanned == pytest.approx(240, rel=0.3)
    most = chosen("a > 5", table, statistics, infos)
    assert (most.candidate.access, most.bound, most.index) == ("direct", None, None)
    assert chosen(None, table, statistics, infos).candidate.access == "direct"
    assert [each.access for each in most.candidates] == ["direct", "by_a", "hash_by_a", "by_b"]
    assert [each.usable for each in most.candidates] == [True, True, False, True]


def test_blocks_that_are_skipped_make_the_direct_scan_cheaper(
    table: pa.Table, statistics: list[FragmentStatistics]
) -> None:
    found = chosen("id < 400", table, statistics, [index("id")], columns=("id", "s"))
    assert found.candidate.access == "direct"
    assert found.candidate.rows_scanned == 500


def test_entries_that_hold_all_columns_are_cheaper(
    table: pa.Table, statistics: list[FragmentStatistics]
) -> None:
    bare, full = index("a"), index("a", include=("b", "s"))
    for text in ("a < 15", "a < 15 AND b = 7"):
        one, other = (chosen(text, table, statistics, [info]) for info in (bare, full))
        assert (one.candidate.access, one.candidates[1].covered) == ("direct", False)
        assert (other.candidate.access, other.candidate.covered) == ("by_a", True)
    # What the remainder needs has to be there, too.
    assert not chosen("a < 15 AND x > 1", table, statistics, [full]).candidates[1].covered


def test_a_range_behind_fixed_columns_is_estimated(
    table: pa.Table, statistics: list[FragmentStatistics]
) -> None:
    found = chosen("a = 5 AND id < 4000", table, statistics, [index("a", "id")])
    assert found.candidate.condition == "a = 5 AND id < 4000"
    assert found.candidate.rows_scanned == pytest.approx(40, rel=0.5)
    both = chosen("a IN (5, 6) AND id = 7", table, statistics, [index("a", "id")])
    assert both.candidates[1].rows_scanned == pytest.approx(4, abs=1)  # two values in two runs


def test_an_option_forces_an_index_or_none(table: pa.Table, statistics: list[FragmentStatistics]) -> None:
    infos = [index("a"), index("b", kind=HASH)]
    assert chosen("a = 5", table, statistics, infos, option="none").candidate.access == "direct"
    forced = chosen("a > 5", table, statistics, infos, option="by_a")
    assert (forced.candidate.access, forced.bound.ranges) == ("by_a", ((key(6), END),))
    whole = chosen(None, table, statistics, infos, option="by_a")
    assert (whole.bound.ranges, whole.candidate.rows_scanned) == (((b"", END),), ROWS)
    with pytest.raises(NotFound, match="did you mean 'by_a'"):
        chosen("a = 5", table, statistics, infos, option="by_aa")
    with pytest.raises(NotFound, match=r"Table\.indexes"):
        chosen("a = 5", table, statistics, [], option="by_aa")
    with pytest.raises(InvalidOption, match="needs the values of all its columns"):
        chosen("b > 1", table, statistics, infos, option="hash_by_b")


def by_key(text: str, option: str = "auto") -> Choice:
    """A table of a million rows in 100 slots, each in two fragments, and a sorted index of its key."""
    numbers = [key(0), key(1_000_000)]
    statistics = FragmentStatistics((500_000,), {"a": (Block(*numbers, 0),)})
    fragments = tuple(
        replace(fragment(number, width=100), id=number, rows=500_000, slots_written=100) for number in (1, 2)
    )
    table = TableInfo(1, "t", SCHEMA, ("a", "b"), ("a",), None, 1, 1)
    return choose(
        condition(text),
        SCHEMA,
        table.primary_key,
        ("a", "b"),
        [SlotInterval(0, 100, fragments)],
        {1: statistics, 2: statistics},
        [],
        option,
        key=bind_key(condition(text), table, 100),
    )


@pytest.mark.parametrize(
    ("text", "access", "rows"),
    [
        ("a = 5 AND b = 7", "key", 2),
        ("a IN (5, 6) AND b IN (7, 8)", "key", 8),
        ("a = 5", "key", 10_000 / 3),
        ("a = 5 AND b > 1", "key", 10_000 / 3),
        ("a = 5 AND c > 1", "key", 10_000 / 3),
        ("a > 900000", "key", 100_000),
        ("a > 100", "direct", 1_000_000),
        ("a BETWEEN 100 AND 50000 AND b = 1", "key", 50_000),
    ],
)
def test_keys_are_sought_where_that_costs_less_than_reading_their_slots(
    monkeypatch: pytest.MonkeyPatch, text: str, access: str, rows: float
) -> None:
    monkeypatch.setattr(choice, "KEY_SEEK", 4_000.0)
    found = by_key(text)
    assert found.candidate.access == access
    (sought,) = (each for each in found.candidates if each.access == "key")
    assert sought.rows_scanned == pytest.approx(rows, rel=0.01)
    assert by_key(text, "none").candidate.access == "direct"
    assert by_key(text, "key").by_key


def test_a_direct_scan_of_some_slots_is_priced_by_these_alone() -> None:
    (direct, *_) = by_key("a IN (5, 6) AND c = 1").candidates
    assert direct.rows_scanned == pytest.approx(20_000)


def test_without_a_condition_on_the_key_there_is_no_path_by_key() -> None:
    assert [each.access for each in by_key("c = 1").candidates] == ["direct"]
    with pytest.raises(InvalidOption, match="limits no a"):
        by_key("c = 1", "key")


def test_nothing_is_read_where_no_key_is_left() -> None:
    assert [each.cost for each in by_key("a = 1 AND a = 2").candidates] == [0.0, 0.0]
