"""Binding of conditions to the primary key: slots, ranges within them, and what is left to be checked."""

from __future__ import annotations

import random
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.hashing import slots_of
from elasticscan.base.key_encoding import encode_row
from elasticscan.filters.parser import parse_condition
from elasticscan.filters.predicate import Predicate
from elasticscan.metadata import TableInfo
from elasticscan.optimizer.binding import MAX_RANGES, KeyCondition, bind_key
from elasticscan.protocol import KeyList, KeyRanges
from elasticscan.topology import SlotSet
from tests.base.examples import examples
from tests.filters.generator import COLUMNS, SEEDS, about, column_of, evaluated, mask_of, random_rows
from tests.filters.generator import SCHEMA as SCHEMA_OF_ALL

SLOTS = 64
SCHEMA = pa.schema([("user", pa.int32()), ("at", pa.int64()), ("s", pa.string()), ("v", pa.float64())])


def table(primary_key: tuple[str, ...], shard_columns: int = 1, schema: pa.Schema = SCHEMA) -> TableInfo:
    return TableInfo(1, "t", schema, primary_key, primary_key[:shard_columns], None, 1, 1)


EVENTS = table(("user", "at", "s"))


def bound(text: str | None, info: TableInfo = EVENTS) -> KeyCondition:
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
        ("user = 1 AND at = 2 AND s = ''", [1], 3, None),
        ("(user = 1 AND at = 2) OR (user = 3 AND v = 4)", [1, 3], 1, None),
    ],
)
def test_values_of_the_shard_key_are_slots_and_other_key_columns_ranges(
    text: str, users: list[int], fixed: int, limited: str | None
) -> None:
    found = bound(text)
    assert found.slots == slots_with(*users)
    listed = found.keys.slots.tolist() if isinstance(found.keys, KeyList) else ranges_of(found).by_slot
    assert SlotSet.of((slot, slot + 1) for slot in listed or ()) == found.slots
    assert (found.fixed, found.limited) == (fixed, limited)


def test_what_limits_no_first_column_leaves_all_slots_and_what_no_row_can_be_none() -> None:
    for text in (None, "v = 1", "at > 3", "user = 5 OR v = 1", "user % 2 = 1"):
        found = bound(text)
        assert (found.slots, found.keys, found.text) == (SlotSet.span(0, SLOTS), None, "")
    for text in ("user = 1 AND user = 2", "user IS NULL", "user = 1.5", "at IS NULL", "FALSE"):
        assert not bound(text).slots


def test_a_condition_on_the_key_that_fixes_no_slot_makes_ranges_for_all_of_them() -> None:
    found = bound("user > 7 AND at = 1")
    assert found.slots == SlotSet.span(0, SLOTS)
    assert ranges_of(found).anywhere == ((b"\x80\0\0\x08", None),)
    assert (found.fixed, found.limited, found.text) == (0, "user", "user > 7")
    assert str(Predicate(found.residual)) == "at = 1"


def test_more_values_than_are_hashed_leave_all_slots() -> None:
    fits = bound(f"user BETWEEN 1 AND {MAX_RANGES}")
    beyond = bound(f"user BETWEEN 1 AND {MAX_RANGES + 1}")
    assert ranges_of(fits).by_slot is not None and ranges_of(fits).count == MAX_RANGES
    assert ranges_of(beyond).by_slot is None
    two = table(("user", "at"), 2)
    many = " AND ".join(f"{name} IN ({', '.join(map(str, range(40)))})" for name in two.primary_key)
    assert bound(many, two).slots == SlotSet.span(0, SLOTS)
    few = bound(f"user IN (1, 2) AND at IN ({', '.join(map(str, range(MAX_RANGES)))})")
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
    columns = dict(zip(SCHEMA_OF_ALL.names, batch.columns, strict=True))
    info = table(tuple(key), min(sharded_by, len(key)), SCHEMA_OF_ALL)
    found = bind_key(predicate.condition, info, SLOTS)
    slots = slots_of([columns[name] for name in info.shard_key], SLOTS).tolist()
    keys = [encode_row([columns[name] for name in key], row) for row in range(batch.num_rows)]
    inside = [reads(found, slot, encoded) for slot, encoded in zip(slots, keys, strict=True)]
    # Outside of the ranges nothing is evaluated: there the residual may fail.
    residual = found.residual and Predicate(found.residual)
    left = [
        here and (residual is None or mask_of(residual, batch.slice(row, 1))[0] is True)
        for row, here in enumerate(inside)
    ]
    assert left == [keep is True for keep in kept]
    if isinstance(found.keys, KeyRanges):
        for _, ranges in found.keys.within(0, SLOTS):
            assert all(high is None or low < high for low, high in ranges)
            assert all(one[1] is not None and one[1] <= two[0] for one, two in pairwise(ranges))
