"""Binding indexes and primary keys, estimating, and choosing how to read."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.hashing import slots_of
from elasticscan.base.key_encoding import END, encode_row, encode_value, encode_values, index_hash
from elasticscan.filters import Expression, to_text
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
    StagedFragment,
    TableInfo,
)
from elasticscan.optimizer.binding import MAX_RANGES, IndexCondition, KeyCondition, bind, bind_key
from elasticscan.optimizer.choice import Choice, choose, rows_to_read
from elasticscan.protocol import KeyList, KeyRanges
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.filters.generator import COLUMNS, SEEDS, about, column_of, evaluated, mask_of, random_rows
from tests.filters.generator import SCHEMA as ALL_COLUMNS

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


def table(primary_key: tuple[str, ...], schema: pa.Schema = SCHEMA, sharded_by: int = 1) -> TableInfo:
    return TableInfo(1, "t", schema, primary_key, primary_key[:sharded_by], None, 1, 1)


def index(*columns: str, kind: str = SORTED, include: tuple[str, ...] = (), ready: bool = True) -> IndexInfo:
    name = f"{'hash_' if kind == HASH else ''}by_{'_'.join(columns)}"
    return IndexInfo(1, 1, name, kind, columns, include, IndexPhase.READY if ready else IndexPhase.BUILDING)


def condition(text: str | None) -> Expression | None:
    return None if text is None else parse_condition(text, SCHEMA)


def bound(text: str | None, info: IndexInfo) -> IndexCondition:
    found = bind(info, condition(text), SCHEMA)
    assert found is not None
    return found


def remainder_of(found: IndexCondition) -> str | None:
    return found.residual and to_text(found.residual)


def key(*values: Any) -> bytes:
    return b"".join(encode_value(pa.scalar(value, pa.int32())) for value in values)


BOTH = "a >= 1 AND a <= 2 AND b = 3"
EITHER = "a = 1 AND b = 2 OR a = 3 AND c > 4"


@pytest.mark.parametrize(
    ("text", "columns", "ranges", "bound_columns", "used", "remainder"),
    [
        ("a = 1 AND b > 2 AND b < 4", "ab", [(key(1, 3), key(1, 4))], 2, "a = 1 AND b > 2 AND b < 4", None),
        ("a = 1 AND b > 2 AND b < 4", "ac", [(key(1), key(2))], 1, "a = 1", "b > 2 AND b < 4"),
        ("a = 1 AND b > 2 AND b < 4", "b", [(key(3), key(4))], 1, "b > 2 AND b < 4", "a = 1"),
        (None, "ab", [(b"", END)], 0, "", None),
        ("UPPER(s) = 'A'", "ab", [(b"", END)], 0, "", "UPPER(s) = 'A'"),
        ("a BETWEEN 1 AND 2 AND b = 3", "ab", [(key(n, 3), key(n, 4)) for n in (1, 2)], 2, BOTH, None),
        ("a BETWEEN 1 AND 2 AND b = 3", "ac", [(key(1), key(3))], 1, "a >= 1 AND a <= 2", "b = 3"),
        # What an OR leaves possible is to be checked in any case.
        (EITHER, "a", [(key(1), key(2)), (key(3), key(4))], 1, EITHER, EITHER),
        ("s LIKE 'a%b'", "s", [(b"\1a", b"\1b")], 1, "s LIKE 'a%b'", "s LIKE 'a%b'"),
    ],
)
def test_an_index_is_bound_as_far_as_equality_reaches(
    text: str | None,
    columns: str,
    ranges: list[tuple[bytes, bytes]],
    bound_columns: int,
    used: str,
    remainder: str | None,
) -> None:
    found = bound(text, index(*columns))
    assert list(found.ranges) == ranges
    assert (found.bound, found.text, remainder_of(found)) == (bound_columns, used, remainder)


def test_more_ranges_than_allowed_make_fewer_or_coarser_ones() -> None:
    many, some = (", ".join(map(str, range(0, end, 2))) for end in (5_000, 800))
    coarse = bound(f"a IN ({many}) AND b = 1", index("a", "b"))
    assert (len(coarse.ranges), coarse.bound) == (MAX_RANGES, 1)
    assert remainder_of(coarse) == f"a IN ({many}) AND b = 1"
    assert coarse.text == f"a IN ({many})"[:200] + "..."
    two = bound(f"a IN ({some}) AND b IN (1, 5, 9)", index("a", "b"))
    assert (len(two.ranges), remainder_of(two)) == (800, "b IN (1, 5, 9)")
    assert bind(index("a", kind=HASH), condition(f"a IN ({many})"), SCHEMA) is None


def test_a_hash_index_needs_values_for_all_its_columns() -> None:
    info = index("a", "s", kind=HASH)
    for text in (None, "a = 1", "a = 1 AND s > 'x'", "a > 1 AND s = 'x'"):
        assert bind(info, condition(text), SCHEMA) is None
    for values in ("a IN (1, 2)", "a >= 1 AND a <= 2"):
        found = bound(f"{values} AND s = 'x' AND b > 3", info)
        assert (len(found.ranges), found.bound, found.text) == (2, 2, f"{values} AND s = 'x'")
        assert remainder_of(found) == f"{values} AND s = 'x' AND b > 3"  # two keys may have one hash


def assert_kept(
    kept: Sequence[Any], rows: pa.RecordBatch, inside: Sequence[bool], residual: Expression | None
) -> None:
    """Assert that the rows in the ranges that meet the residual are just those of the condition."""
    left = Predicate(residual) if residual else None
    # Outside of the ranges nothing is evaluated: there the residual may fail.
    found = [
        here and (left is None or mask_of(left, rows.slice(row, 1))[0] is True)
        for row, here in enumerate(inside)
    ]
    assert found == [each is True for each in kept]


@settings(deadline=None, max_examples=examples(300))
@given(kind=st.sampled_from([SORTED, SORTED, HASH]), seed=SEEDS)
def test_ranges_and_remainder_together_keep_just_the_rows_of_the_condition(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    names = chance.sample(
        [name for name in COLUMNS if name not in ("named", "seen", "u")], chance.randint(1, 3)
    )
    batch = random_rows(chance, 12)
    made = evaluated(about(chance, [*names, *chance.choice([[], ["l"]])]), batch)
    if made is None:
        return
    predicate, kept = made
    found = bind(index(*names, kind=kind), predicate.condition, batch.schema)
    if found is None:
        assert kind == HASH
        return
    columns = [batch.column(name) for name in names]
    if kind == HASH and found.ranges:
        columns = [pa.array(index_hash(columns))]
    keys = [encode_values(columns, row) for row in range(batch.num_rows)]
    inside = [any(low <= each < high for low, high in found.ranges) for each in keys]
    assert_kept(kept, batch, inside, found.residual)
    assert all(low < high for low, high in found.ranges)
    assert all(one[1] <= two[0] for one, two in pairwise(found.ranges))


# ---------------------------------------------------------------------------------- estimates


ROWS, BLOCK, HALF = 8_000_000, 500_000, 4_000_000


def big_key(value: int) -> bytes:
    return encode_value(pa.scalar(value, pa.int64()))


def blocks_of(start: int, end: int) -> FragmentStatistics:
    """A fragment of some of the rows: `id` counts, so each block has values that no other block has."""
    starts = range(start, end, BLOCK)
    blocks = tuple(Block(big_key(first), big_key(first + BLOCK), 0) for first in starts)
    return FragmentStatistics((BLOCK,) * len(starts), {"id": blocks})


STATISTICS = [blocks_of(0, 10 * BLOCK), blocks_of(10 * BLOCK, ROWS)]


def fragment(number: int, unique: bool = True, start: int = 0, end: int = 1) -> Fragment:
    slots = SlotSet.span(start, end)
    staged = StagedFragment(1, f"{number}", slots, 0, 0, unique, 0, False, 0, 0)
    return staged.entered(number, 1, 1)


def to_read(
    fragments: Sequence[Fragment], known: dict[int, FragmentStatistics], text: str | None
) -> tuple[float, float]:
    return rows_to_read(fragments, SlotSet.span(0, 2), known, column_sets(condition(text), SCHEMA))


ALONE = [fragment(0), fragment(1, start=1, end=2)], dict(enumerate(STATISTICS))


def test_a_fragment_without_statistics_counts_with_all_of_its_rows() -> None:
    hidden = replace(fragment(0), rows=7)
    assert to_read([hidden], {}, None) == (7, 7)
    assert to_read([hidden, replace(hidden, id=1)], {}, None) == (14, 14)


def test_where_versions_may_meet_all_are_read_as_soon_as_one_may_match() -> None:
    def of(low: int, high: int) -> FragmentStatistics:
        blocks = (Block(key(low), key(low + 1), 0), Block(key(high), key(high + 1), 0))
        return FragmentStatistics((10, 10), {"a": blocks})

    known = {1: of(1, 5), 2: of(7, 9), 3: of(1, 5)}
    apart = [fragment(1), fragment(2, start=1, end=2)]
    meeting = [fragment(1), fragment(2, end=2)]
    several_versions = [fragment(3, unique=False)]
    for fragments, rows in ((apart, 10), (meeting, 20 + 10), (several_versions, 20)):
        assert to_read(fragments, known, "a = 5")[1] == rows
        assert to_read(fragments, known, "a = 100")[1] == 0


# ------------------------------------------------------------------------------------- choosing


BY_A, HASH_A, BY_B, HASH_B = index("a"), index("a", kind=HASH), index("b"), index("b", kind=HASH)
FULL, A_AND_ID, BY_ID = index("a", include=("b", "s")), index("a", "id"), index("id")


def chosen(text: str | None, entries: Mapping[IndexInfo, float], option: str = "auto") -> Choice:
    """The choice where so many entries of each index are in the ranges of a condition, if it limits them."""
    indexes, columns = [(info, [HALF, HALF]) for info in entries], ("id", "a", "b", "s")
    key, count = KeyCondition(SlotSet.span(0, 2)), lambda info, _: entries[info]
    return choose(condition(text), table(("id",)), columns, *ALONE, indexes, option, count, 2, key)


@pytest.mark.parametrize(
    ("text", "entries", "option", "access", "rows"),
    [
        ("a = 5", {BY_A: 8_000, BY_B: 0}, "auto", "by_a", 8_000),
        ("a = 5 AND b > 3", {BY_A: 8_000, HASH_A: 8_000, BY_B: ROWS}, "auto", "hash_by_a", 8_000),  # cheaper
        ("a < 3", {BY_A: 24_000, HASH_A: 0, BY_B: 0}, "auto", "by_a", 24_000),
        ("a > 5", {BY_A: ROWS, HASH_A: 0, BY_B: 0}, "auto", "direct", ROWS),
        (None, {BY_A: 0, HASH_A: 0, BY_B: 0}, "auto", "direct", ROWS),
        ("id < 400000", {BY_ID: BLOCK}, "auto", "direct", BLOCK),  # other blocks are skipped
        ("id = 1000000 OR id = 7999999", {}, "auto", "direct", 2 * BLOCK),
        ("a < 30", {BY_A: 240_000}, "auto", "direct", ROWS),
        ("a < 30", {FULL: 240_000}, "auto", "by_a", 240_000),  # entries that hold all columns are cheaper
        ("a < 30 AND b = 7", {FULL: 240_000}, "auto", "by_a", 240_000),
        ("a = 5 AND id < 4000000", {A_AND_ID: 4_000}, "auto", "by_a_id", 4_000),
        ("a = 5", {BY_A: 8_000, HASH_B: 0}, "none", "direct", ROWS),
        ("a > 5", {BY_A: 7_952_000, HASH_B: 0}, "by_a", "by_a", 7_952_000),
        (None, {BY_A: 0, HASH_B: 0}, "by_a", "by_a", ROWS),
    ],
)
def test_the_index_wins_with_selective_filters_and_the_direct_scan_with_others(
    text: str | None, entries: Mapping[IndexInfo, float], option: str, access: str, rows: float
) -> None:
    found = chosen(text, entries, option)
    assert found.candidate.access == access
    assert found.candidate.rows_scanned == pytest.approx(rows, rel=0.3)
    assert [each.access for each in found.candidates] == ["direct", *(info.name for info in entries)]
    assert (found.bound.index.name if found.bound else "direct") == access


def by_key(text: str, option: str = "auto") -> Choice:
    """A table of two million rows in 100 slots, each in two fragments, and a sorted index of its key."""
    numbers = [key(0), key(1_000_000)]
    statistics = FragmentStatistics((1_000_000,), {"a": (Block(*numbers, 0),)})
    fragments = tuple(
        replace(fragment(number, end=100), rows=1_000_000, slots_written=100) for number in (1, 2)
    )
    info, known = table(("a", "b")), {1: statistics, 2: statistics}
    bound = bind_key(condition(text), info, 100)
    return choose(condition(text), info, ("a", "b"), fragments, known, [], option, lambda *_: 0.0, 1, bound)


@pytest.mark.parametrize(
    ("text", "access", "rows"),
    [
        ("a = 5 AND b = 7", "key", 2),
        ("a IN (5, 6) AND b IN (7, 8)", "key", 8),
        ("a = 5", "key", 20_000 / 3),
        ("a = 5 AND b > 1", "key", 20_000 / 3),
        ("a = 5 AND c > 1", "key", 20_000 / 3),
        ("a > 900000", "key", 200_000),
        ("a > 100 AND c > 1", "direct", 2_000_000),
        ("a BETWEEN 100 AND 50000 AND b = 1", "key", 100_000),
    ],
)
def test_keys_are_sought_where_that_costs_less_than_reading_their_slots(
    text: str, access: str, rows: float
) -> None:
    found = by_key(text)
    assert found.candidate.access == access
    (sought,) = (each for each in found.candidates if each.access == "key")
    assert sought.rows_scanned == pytest.approx(rows, rel=0.01)
    assert by_key(text, "none").candidate.access == "direct"
    assert by_key(text, "key").candidate.kind == "key"


def test_a_path_by_key_needs_a_condition_on_it_and_reads_nothing_where_no_key_is_left() -> None:
    (direct, *_) = by_key("a IN (5, 6) AND c = 1").candidates
    assert direct.rows_scanned == pytest.approx(40_000)
    assert [each.access for each in by_key("c = 1").candidates] == ["direct"]
    assert [each.cost for each in by_key("a = 1 AND a = 2").candidates] == [0.0, 0.0]


# ------------------------------------------------------------------------------- primary keys


SLOTS = 64
EVENT_COLUMNS = pa.schema([("user", pa.int32()), ("at", pa.int64()), ("s", pa.string()), ("v", pa.float64())])


EVENTS = table(("user", "at", "s"), EVENT_COLUMNS)


def bound_key(text: str | None, info: TableInfo = EVENTS) -> KeyCondition:
    return bind_key(None if text is None else parse_condition(text, info.schema), info, SLOTS)


def slots_with(*users: int) -> SlotSet:
    slots = slots_of([pa.array(users, pa.int32())], SLOTS)
    return SlotSet.of((slot, slot + 1) for slot in slots.tolist())


def reads(condition: KeyCondition, slot: int, key: bytes) -> bool:
    """True if a row is in the ranges; without any, in the slots."""
    if slot not in condition.slots:
        return False
    keys = condition.keys
    if keys is None:
        return True
    if isinstance(keys, KeyList):
        listed = [encode_row(keys.keys.columns, at) for at in range(keys.count)]
        return (slot, key) in zip(keys.slots.tolist(), listed, strict=True)
    ((_, ranges),) = keys.within(slot, slot + 1)
    return any(low <= key and (high is None or key < high) for low, high in ranges)


def ranges_of(condition: KeyCondition) -> KeyRanges:
    assert isinstance(condition.keys, KeyRanges)
    return condition.keys


@pytest.mark.parametrize(
    ("text", "users", "fixed", "limited"),
    [
        ("user = 5", [5], 1, None),
        ("user IN (4, 7, 4) AND v > 2", [4, 7], 1, None),
        ("user > 9.5 AND user < 12.5D", [10, 11, 12], 1, None),
        ("user = 5 AND at > 3", [5], 1, "at"),
        ("user IN (1, 2) AND at IN (3, 4) AND s LIKE 'a%'", [1, 2], 2, "s"),
        ("user = 1 AND at BETWEEN 3 AND 4", [1], 1, "at"),
        ("user = 1 AND at = 2 AND s = ''", [1], 3, None),
        ("(user = 1 AND at = 2) OR (user = 3 AND v = 4)", [1, 3], 1, None),
    ],
)
def test_values_of_the_shard_key_are_slots_and_other_key_columns_ranges(
    text: str, users: list[int], fixed: int, limited: str | None
) -> None:
    found = bound_key(text)
    assert found.slots == slots_with(*users)
    listed = found.keys.slots.tolist() if isinstance(found.keys, KeyList) else ranges_of(found).by_slot
    assert SlotSet.of((slot, slot + 1) for slot in listed or ()) == found.slots
    assert (found.fixed, found.limited) == (fixed, limited)


def test_what_limits_no_first_column_leaves_all_slots_and_what_no_row_can_be_none() -> None:
    for text in (None, "v = 1", "at > 3", "user = 5 OR v = 1", "user % 2 = 1"):
        found = bound_key(text)
        assert (found.slots, found.keys, found.text) == (SlotSet.span(0, SLOTS), None, "")
    for text in ("user = 1 AND user = 2", "user IS NULL", "user = 1.5", "at IS NULL", "FALSE"):
        assert not bound_key(text).slots


def test_a_condition_on_the_key_that_fixes_no_slot_makes_ranges_for_all_of_them() -> None:
    found = bound_key("user > 7 AND at = 1")
    assert found.slots == SlotSet.span(0, SLOTS)
    assert ranges_of(found).anywhere == ((b"\x80\0\0\x08", None),)
    assert (found.fixed, found.limited, found.text) == (0, "user", "user > 7")
    assert str(Predicate(found.residual)) == "at = 1"


def test_more_values_than_are_hashed_leave_all_slots() -> None:
    fits = bound_key(f"user BETWEEN 1 AND {MAX_RANGES}")
    beyond = bound_key(f"user BETWEEN 1 AND {MAX_RANGES + 1}")
    assert ranges_of(fits).by_slot is not None and ranges_of(fits).count == MAX_RANGES
    assert ranges_of(beyond).by_slot is None
    two = table(("user", "at"), EVENT_COLUMNS, 2)
    many = " AND ".join(f"{name} IN ({', '.join(map(str, range(40)))})" for name in two.primary_key)
    assert bound_key(many, two).slots == SlotSet.span(0, SLOTS)
    few = bound_key(f"user IN (1, 2) AND at IN ({', '.join(map(str, range(MAX_RANGES)))})")
    assert few.slots == slots_with(1, 2) and ranges_of(few).count <= MAX_RANGES


KEY_COLUMNS = [name for name in COLUMNS if name not in ("f", "d", "u", "named", "seen")]


@settings(deadline=None, max_examples=examples(300))
@given(
    key=st.lists(st.sampled_from(KEY_COLUMNS), min_size=1, max_size=3, unique=True),
    sharded_by=st.integers(1, 3),
    seed=SEEDS,
)
def test_rows_in_the_ranges_that_meet_the_residual_are_just_those_of_the_condition(
    key: list[str], sharded_by: int, seed: int
) -> None:
    chance = random.Random(seed)
    batch, more = random_rows(chance, 9), chance.choice([[], ["l", "d"], list(COLUMNS)])
    for name in key:  # which is never null
        at = batch.schema.names.index(name)
        batch = batch.set_column(at, name, column_of(name, [chance.randrange(99) for _ in range(9)]))
    made = evaluated(about(chance, [*key, *more]), batch)
    if made is None:
        return
    predicate, kept = made
    columns = dict(zip(ALL_COLUMNS.names, batch.columns, strict=True))
    info = table(tuple(key), ALL_COLUMNS, min(sharded_by, len(key)))
    found = bind_key(predicate.condition, info, SLOTS)
    slots = slots_of([columns[name] for name in info.shard_key], SLOTS).tolist()
    keys = [encode_row([columns[name] for name in key], row) for row in range(batch.num_rows)]
    inside = [reads(found, slot, encoded) for slot, encoded in zip(slots, keys, strict=True)]
    assert_kept(kept, batch, inside, found.residual)
    if isinstance(found.keys, KeyRanges):
        for _, ranges in found.keys.within(0, SLOTS):
            assert all(high is None or low < high for low, high in ranges)
            assert all(one[1] is not None and one[1] <= two[0] for one, two in pairwise(ranges))
