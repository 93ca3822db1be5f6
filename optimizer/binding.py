"""Binding of conditions to an index or to the primary key: the keys to read, and the residual that is left.

A sorted index is bound column by column. Single values (`= 5`, `IN (1, 2)`, `IS NULL`) leave the next
column to be bound too, anything else is the last: with `a = 1 AND b > 2 AND b < 4`, an index on
(a, b) is read from (1, 2) to (1, 4), one on (a, c) where a is 1, one on (b) from 2 to 4. A hash index
needs single values for all of its columns.

The primary key is bound likewise within each slot. Where a condition leaves few values for each column of the
shard key, their combinations are hashed, as a write hashes them: rows with others lie in other slots.
`id IN (4, 7)` leaves two slots of thousands, and `id BETWEEN 10 AND 12` over whole numbers three; with the
primary key (user, at), `user = 5 AND at > '2024-01-01'` is one range in one slot.

Parts of the condition that hold for every key in the ranges are not checked again; what remains is
the residual. Two values may have one hash, so with a hash index everything remains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pyarrow as pa

from elasticscan.base.hashing import slots_of
from elasticscan.base.key_encoding import END, can_be_encoded, encode_value, index_hash, successor, value_of
from elasticscan.filters import (
    EVERYTHING,
    NOT_NULL,
    ColumnDomain,
    Expression,
    KeySet,
    all_of,
    axis_of,
    column_names,
    normalise,
    parts_of,
    shortened,
    single_values,
    to_text,
    value_set,
)
from elasticscan.metadata import HASH, IndexInfo, TableInfo
from elasticscan.protocol import KeyList, KeyRange, KeyRanges
from elasticscan.topology import SlotSet

MAX_RANGES = 1_000

Ranges = tuple[tuple[bytes, bytes], ...]
_ALL: Ranges = ((b"", END),)


@dataclass(frozen=True, slots=True)
class IndexCondition:
    """A condition bound to an index.

    Attributes:
        ranges: [low, high) over the index key, disjoint and ascending; none if nothing can match.
        bound: how many columns the ranges fix or limit; 0 reads the whole index.
        text: the conditions that make the ranges, for people; empty for the whole index.
        residual: what must be checked of each entry still, if anything.
    """

    index: IndexInfo
    ranges: Ranges
    bound: int
    text: str
    residual: Expression | None


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


def bind(index: IndexInfo, condition: Expression | None, schema: pa.Schema) -> IndexCondition | None:
    """Return the part of the index that has every row for which the condition is true.

    None if the index is of no use for it: a hash index without a value for each of its columns.
    """
    conjuncts = _Conjuncts(condition, schema)
    if conjuncts.impossible():
        return IndexCondition(index, (), len(index.columns), "FALSE", None)
    columns = [conjuncts.keys(name) for name in index.columns]
    if index.kind == HASH:
        ranges = _hash_ranges(columns, [schema.field(name).type for name in index.columns])
        if ranges is None:
            return None
        used, implied = columns, []
    else:
        used = _take_columns(columns)
        ranges = tuple((values + low, values + high) for values, low, high in _spans(used)) if used else _ALL
        implied = _unchanged(index.columns, used, columns)
    text = conjuncts.text_limiting(index.columns[: len(used)])
    return IndexCondition(index, ranges, len(used), text, conjuncts.residual(implied))


def bind_key(condition: Expression | None, table: TableInfo, slots: int) -> KeyCondition:
    """Return the slots and keys of all rows for which a condition is true, of a store with so many slots."""
    conjuncts = _Conjuncts(condition, table.schema)
    columns = [_without_null(conjuncts.keys(name)) for name in table.primary_key]
    if conjuncts.impossible() or any(keys.is_empty for keys in columns):
        return KeyCondition(SlotSet(), KeyRanges(by_slot={}), text="FALSE")
    names, types = table.primary_key, [table.schema.field(name).type for name in table.primary_key]
    values, slots_read = _values_of(columns, table), SlotSet.span(0, slots)
    hashed = len(values or ())
    keys: KeyList | KeyRanges
    if values is None:
        used = _take_columns(columns)
        if not used:
            return KeyCondition(slots_read, residual=condition)
        keys = KeyRanges(tuple(_key_ranges(b"", used)))
    else:
        homes = slots_of(_combinations(values, types[:hashed]), slots)
        slots_read = SlotSet.of((slot, slot + 1) for slot in homes.tolist())
        behind = _take_columns(columns[hashed:], MAX_RANGES // len(homes))
        # Taken value by value, the sets of the shard key are what they were.
        used = [*columns[:hashed], *behind]
        if len(used) == len(columns) and all(part.singles for part in behind):
            every = _combinations([*values, *behind], types)
            of_each = np.repeat(homes, len(every[0]) // len(homes))
            keys = KeyList.of(of_each, pa.RecordBatch.from_arrays(every, names=list(names)))
        else:
            by_slot: dict[int, tuple[KeyRange, ...]] = {}
            for slot, of_slot in zip(homes.tolist(), product(*(v.intervals for v in values)), strict=True):
                prefix = b"".join(value.key[1:] for value in of_slot)
                by_slot[slot] = (*by_slot.get(slot, ()), *_key_ranges(prefix, behind))
            keys = KeyRanges(by_slot=by_slot)
    fixed = hashed + next((n for n, part in enumerate(used[hashed:]) if not part.singles), len(used) - hashed)
    return KeyCondition(
        slots=slots_read,
        keys=keys,
        fixed=fixed,
        limited=names[fixed] if fixed < len(used) else None,
        text=conjuncts.text_limiting(names[: len(used)]),
        residual=conjuncts.residual(_unchanged(names, used, columns)),
    )


def _unchanged(names: Sequence[str], used: Sequence[KeySet], columns: Sequence[KeySet]) -> list[str]:
    """Return the columns whose sets were taken as they are, so that nothing of them is left to check."""
    return [name for name, part, keys in zip(names, used, columns, strict=False) if part == keys]


class _Conjuncts:
    """The parts of a condition that all have to be true."""

    def __init__(self, condition: Expression | None, schema: pa.Schema) -> None:
        self.schema = schema
        self.parts = () if condition is None else parts_of(condition)
        self.names = [column_names(part) for part in self.parts]
        self._domains: dict[str, list[ColumnDomain]] = {}
        self._keys: dict[str, KeySet] = {}

    def impossible(self) -> bool:
        names = set().union(*self.names) or {*self.schema.names[:1]}
        return any(self.keys(name).is_empty for name in sorted(names))

    def keys(self, name: str) -> KeySet:
        """Return the values of a column with which all parts can be true."""
        if name not in self._keys:
            axis = axis_of(self.schema.field(name).type)
            keys = KeySet.intersection_of([domain.keys for domain in self.domains(name)])
            self._keys[name] = normalise(keys, axis) if axis else keys
        return self._keys[name]

    def domains(self, name: str) -> list[ColumnDomain]:
        if name not in self._domains:
            field = self.schema.field(name)
            self._domains[name] = [value_set(part, field) for part in self.parts]
        return self._domains[name]

    def residual(self, columns: list[str]) -> Expression | None:
        """Return what may still be false when these columns have values of their key sets."""
        left = [
            part
            for at, part in enumerate(self.parts)
            if not any(self.domains(name)[at].exact for name in columns)
        ]
        return all_of(left) if left else None

    def text_limiting(self, columns: Sequence[str]) -> str:
        """Return the parts that limit these columns, cut where they are long."""
        texts = [
            f"({to_text(part)})" if len(self.parts) > 1 and part.op == "OR" else to_text(part)
            for at, part in enumerate(self.parts)
            if any(self.domains(name)[at].keys != EVERYTHING for name in columns)
        ]
        return shortened(" AND ".join(texts))


def _take_columns(columns: Sequence[KeySet], room: int = MAX_RANGES) -> list[KeySet]:
    """Return the sets of the first columns, coarser where they would make more ranges than `room`."""
    used: list[KeySet] = []
    for keys in columns:
        if keys == EVERYTHING:
            break
        used.append(keys.coarsened(room))
        if used[-1] != keys or not keys.singles:
            break
        room //= len(keys.intervals)
    return used


def _spans(columns: Sequence[KeySet], skip: int = 0) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield (prefix, low, high) of the ranges of the last column, after all values of the ones before it.

    Value keys begin with a byte that tells them from nulls, which primary keys do without (`skip`).
    """
    fixed = [[interval.key[skip:] for interval in keys.intervals] for keys in columns[:-1]]
    for prefix in map(b"".join, product(*fixed)):
        for low, high, _ in columns[-1].intervals:
            yield prefix, low, high


def _hash_ranges(columns: list[KeySet], types: list[pa.DataType]) -> Ranges | None:
    count = 1
    for keys, kind in zip(columns, types, strict=True):
        count *= len(keys.intervals)
        if not keys.singles or count > MAX_RANGES or not can_be_encoded(kind):
            return None
    hashes = sorted({int(value) for value in index_hash(_combinations(columns, types))})
    keys_of_hashes = [encode_value(pa.scalar(value, pa.int32())) for value in hashes]
    return tuple((key, successor(key)) for key in keys_of_hashes)


def _combinations(columns: Sequence[KeySet], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Every combination of the single values of some columns, as rows, ascending."""
    values = [
        pa.concat_arrays([pa.repeat(value_of(interval.key, kind), 1) for interval in keys.intervals])
        for keys, kind in zip(columns, types, strict=True)
    ]
    rows = list(product(*(range(len(column)) for column in values)))
    return [column.take(pa.array(at)) for column, at in zip(values, zip(*rows, strict=True), strict=True)]


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


def _key_ranges(prefix: bytes, columns: Sequence[KeySet]) -> Iterator[KeyRange]:
    """Yield the ranges of keys that begin with some values, and go on with values of these columns."""
    if not columns:
        yield prefix, _after(prefix)
        return
    for values, low, high in _spans(columns, 1):
        begin = prefix + values
        yield begin + low[1:], begin + high[1:] if high < END else _after(begin)


def _after(prefix: bytes) -> bytes | None:
    """Return the end of all keys that begin with a prefix; None where nothing lies beyond."""
    return successor(prefix) if prefix.strip(b"\xff") else None
