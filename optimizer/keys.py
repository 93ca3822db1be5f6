"""Binding of conditions to the primary key: slots that can hold matching rows, and ranges of keys in them.

Where a condition leaves few values for each column of the shard key, their combinations are hashed, as a
write hashes them: rows with others lie in other slots. `id IN (4, 7)` leaves two slots of thousands, and
`id BETWEEN 10 AND 12` over whole numbers three. Keys within a slot are bound column by column, as those of
a sorted index are (`binding`): with the primary key (user, at), `user = 5 AND at > '2024-01-01'` is one
range in one slot. A condition on the primary key that fixes no slot makes the same ranges for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pyarrow as pa

from elasticscan.base.hashing import slots_of
from elasticscan.base.key_encoding import END, successor
from elasticscan.filters import EVERYTHING, NOT_NULL, Expression, KeySet, single_values
from elasticscan.metadata import TableInfo
from elasticscan.optimizer.binding import MAX_RANGES, Conjuncts, combinations, take_columns
from elasticscan.protocol import KeyList, KeyRange, KeyRanges
from elasticscan.topology import SlotSet


@dataclass(frozen=True, slots=True)
class KeyCondition:
    """A condition bound to the primary key.

    Attributes:
        slots: all rows for which the condition is true are in these.
        keys: the primary keys of such rows, or ranges of them; None if the condition limits none.
        fixed: how many columns of the primary key these fix to single values.
        limited: the column that they limit to a range after those, if any.
        text: the conditions on the keys, for people.
        residual: the condition that rows with these keys have to meet still, if any.
    """

    slots: SlotSet
    keys: KeyList | KeyRanges | None = None
    fixed: int = 0
    limited: str | None = None
    text: str = ""
    residual: Expression | None = None


def bind_key(condition: Expression | None, table: TableInfo, slots: int) -> KeyCondition:
    """Return the slots and keys of all rows for which a condition is true, of a store with so many slots."""
    conjuncts = Conjuncts(condition, table.schema)
    columns = [_without_null(conjuncts.keys(name)) for name in table.primary_key]
    if conjuncts.impossible() or any(keys.is_empty for keys in columns):
        return KeyCondition(SlotSet(), KeyRanges(by_slot={}), text="FALSE")
    values = _values_of(columns, table)
    if values is None:
        used = take_columns(columns)
        if not used:
            return KeyCondition(SlotSet.span(0, slots), residual=condition)
        anywhere = tuple(_ranges(b"", used))
        return _condition(conjuncts, table, columns, used, KeyRanges(anywhere), SlotSet.span(0, slots))
    types = [table.schema.field(name).type for name in table.primary_key]
    shards = combinations(values, types[: len(values)])
    hashed = slots_of(shards, slots)
    here = SlotSet.of((slot, slot + 1) for slot in hashed.tolist())
    behind = take_columns(columns[len(values) :], MAX_RANGES // len(hashed))
    # Taken value by value, the sets of the shard key are what they were.
    used = [*columns[: len(values)], *behind]
    if len(used) == len(columns) and all(keys.singles for keys in behind):
        every = combinations([*values, *behind], types)
        of_each = np.repeat(hashed, len(every[0]) // len(hashed))
        listed = KeyList.of(of_each, pa.RecordBatch.from_arrays(every, names=list(table.primary_key)))
        return _condition(conjuncts, table, columns, used, listed, here, len(values))
    by_slot: dict[int, list[KeyRange]] = {}
    for slot, shard_key in zip(hashed.tolist(), product(*(keys.intervals for keys in values)), strict=True):
        prefix = b"".join(value.key[1:] for value in shard_key)
        by_slot.setdefault(slot, []).extend(_ranges(prefix, behind))
    ranges = KeyRanges(by_slot={slot: tuple(by_slot[slot]) for slot in sorted(by_slot)})
    return _condition(conjuncts, table, columns, used, ranges, here, len(values))


def _without_null(keys: KeySet) -> KeySet:
    """Return the values of a key column, which is never null."""
    rest = keys & NOT_NULL
    return EVERYTHING if rest == NOT_NULL else rest


def _values_of(columns: Sequence[KeySet], table: TableInfo) -> list[KeySet] | None:
    """Return the values of each column of the shard key; None unless they make few combinations."""
    room, values = MAX_RANGES, []
    for name, keys in zip(table.shard_key, columns, strict=False):
        few = None if keys == EVERYTHING else single_values(keys, table.schema.field(name).type, room)
        if few is None:
            return None
        values.append(few)
        room //= len(few.intervals)
    return values


def _ranges(prefix: bytes, columns: Sequence[KeySet]) -> Iterator[KeyRange]:
    """Yield the ranges of keys that begin with some values, and go on with values of these columns.

    Value keys begin with a byte that tells them from nulls, which primary keys do without.
    """
    if not columns:
        yield prefix, _after(prefix)
        return
    fixed = [[interval.key[1:] for interval in keys.intervals] for keys in columns[:-1]]
    for values in product(*fixed):
        begin = prefix + b"".join(values)
        for low, high, _ in columns[-1].intervals:
            yield begin + low[1:], begin + high[1:] if high < END else _after(begin)


def _after(prefix: bytes) -> bytes | None:
    """Return the end of all keys that begin with a prefix; None where nothing lies beyond."""
    return successor(prefix) if prefix.strip(b"\xff") else None


def _condition(
    conjuncts: Conjuncts,
    table: TableInfo,
    columns: Sequence[KeySet],
    used: Sequence[KeySet],
    listed: KeyList | KeyRanges,
    slots: SlotSet,
    hashed: int = 0,
) -> KeyCondition:
    """Return slots and keys; `used` are the sets of the first key columns, `hashed` those of the slots."""
    names = table.primary_key[: len(used)]
    fixed = hashed + next((n for n, keys in enumerate(used[hashed:]) if not keys.singles), len(used) - hashed)
    exact = [name for name, part, keys in zip(names, used, columns, strict=False) if part == keys]
    return KeyCondition(
        slots=slots,
        keys=listed,
        fixed=fixed,
        limited=names[fixed] if fixed < len(used) else None,
        text=conjuncts.text_limiting(names),
        residual=conjuncts.residual(exact),
    )
