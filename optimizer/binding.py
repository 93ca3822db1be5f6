"""Binding of conditions to an index or to the primary key: the keys to read, and the residual.

A sorted index is bound column by column. If a column has few possible values (`= 5`, `IN (1, 2)`, `IS NULL`),
the next column is bound too; a column with a range is the last one. With `a = 1 AND b > 2 AND b < 4`, an
index on (a, b) is read from (1, 2) to (1, 4), an index on (a, c) where a is 1, and an index on (b) from 2 to
4. A hash index needs single values for all of its columns.

The primary key is bound in the same way within each slot. If each column of the shard key has few possible
values, their combinations are hashed, as in a write, and only their slots are read: `id IN (4, 7)` reads two
slots of thousands, `id BETWEEN 10 AND 12` over whole numbers three. With the primary key (user, at),
`user = 5 AND at > '2024-01-01'` is one range in one slot.

A part of the condition that is true for every key in the ranges is not checked again. The other parts are the
residual. With a hash index that is the whole condition, since two values may have the same hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pyarrow as pa

from elasticscan.base.hashing import slots_of
from elasticscan.base.key_encoding import END, encode_value, index_hash, successor, value_of
from elasticscan.filters import (
    EVERYTHING,
    NOT_NULL,
    Expression,
    KeySet,
    all_of,
    column_names,
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
_FEW_NEIGHBOURS = 16  # successive values of a column that are read one by one: each costs a search

Ranges = tuple[tuple[bytes, bytes], ...]
_Values = list[bytes]  # the value keys of single values


@dataclass(frozen=True, slots=True)
class IndexCondition:
    """A condition bound to an index.

    Attributes:
        ranges: [low, high) over the index key, disjoint and ascending; none if nothing can match.
        bound: the number of columns that the ranges fix or limit; 0 for the whole index.
        text: the conditions of the ranges, for people; empty for the whole index.
        residual: the condition to check for each entry; None if there is none.
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
        slots: the slots of all rows for which the condition is true.
        keys: the primary keys of these rows, or ranges of keys; None if the condition limits no key.
        fixed: the number of columns of the primary key with single values.
        limited: the next column, if it is limited to a range.
        text: the conditions on the keys, for people.
        residual: the condition to check for each row with these keys; None if there is none.
    """

    slots: SlotSet
    keys: KeyList | KeyRanges | None = None
    fixed: int = 0
    limited: str | None = None
    text: str = ""
    residual: Expression | None = None


def bind(index: IndexInfo, condition: Expression | None, schema: pa.Schema) -> IndexCondition | None:
    """Return the part of the index with all rows for which the condition is true.

    Returns None for a hash index if the condition does not give single values of all its columns.
    """
    conjuncts = _Conjuncts(condition, schema)
    if conjuncts.impossible():
        return IndexCondition(index, (), len(index.columns), "FALSE", None)
    columns = [conjuncts.keys(name) for name in index.columns]
    types = [schema.field(name).type for name in index.columns]
    ranges: Ranges
    if index.kind == HASH:
        values = _values_of(columns, types)
        if values is None:
            return None
        used, ranges, implied = len(columns), _hash_ranges(values, types), tuple[str, ...]()
    else:
        fixed, last = _take_columns(columns, types)
        used, implied = len(fixed) + (last != EVERYTHING), _unchanged(index.columns, columns, fixed, last)
        ranges = tuple((low, high or END) for low, high in _ranges(fixed, last))
    text = conjuncts.text_limiting(index.columns[:used])
    return IndexCondition(index, ranges, used, text, conjuncts.residual(implied))


def bind_key(condition: Expression | None, table: TableInfo, slots: int) -> KeyCondition:
    """Return the slots and keys of all rows for which a condition is true; the store has `slots` slots."""
    conjuncts = _Conjuncts(condition, table.schema)
    names, types = table.primary_key, [table.schema.field(name).type for name in table.primary_key]
    columns = [conjuncts.keys(name) & NOT_NULL for name in names]  # a key is never null
    if conjuncts.impossible() or any(keys.is_empty for keys in columns):
        return KeyCondition(SlotSet(), KeyRanges(by_slot={}), text="FALSE")
    columns = [EVERYTHING if keys == NOT_NULL else keys for keys in columns]
    hashed, slots_read = len(table.shard_key), SlotSet.span(0, slots)
    values = _values_of(columns[:hashed], types[:hashed])
    keys: KeyList | KeyRanges | None
    if values is None:
        fixed, last = _take_columns(columns, types)
        is_limited = bool(fixed) or last != EVERYTHING
        keys = KeyRanges(tuple(_ranges(fixed, last, skip=1))) if is_limited else None
    else:
        hashes = slots_of(_combinations(values, types[:hashed]), slots)
        slots_read = SlotSet.of((slot, slot + 1) for slot in hashes.tolist())
        room, is_list = MAX_RANGES // len(hashes), EVERYTHING not in columns
        others, last = _take_columns(columns[hashed:], types[hashed:], room, is_list)
        fixed = [*values, *others]
        if len(fixed) == len(columns):
            every = _combinations(fixed, types)
            slot_of_key = np.repeat(hashes, len(every[0]) // len(hashes))
            keys = KeyList.of(slot_of_key, pa.RecordBatch.from_arrays(every, names=list(names)))
        else:
            by_slot: dict[int, tuple[KeyRange, ...]] = {}
            for slot, shard_key in zip(hashes.tolist(), product(*values), strict=True):
                ranges = _ranges([*([key] for key in shard_key), *others], last, skip=1)
                by_slot[slot] = (*by_slot.get(slot, ()), *ranges)
            keys = KeyRanges(by_slot=by_slot)
    used = len(fixed) + (last != EVERYTHING)
    return KeyCondition(
        slots=slots_read,
        keys=keys,
        fixed=len(fixed),
        limited=names[len(fixed)] if used > len(fixed) else None,
        text=conjuncts.text_limiting(names[:used]),
        residual=conjuncts.residual(_unchanged(names, columns, fixed, last)),
    )


def _unchanged(
    names: tuple[str, ...], columns: Sequence[KeySet], fixed: Sequence[_Values], last: KeySet
) -> tuple[str, ...]:
    """Return the columns whose ranges are exactly their possible values, so that nothing needs a check."""
    at = len(fixed)
    return names[: at + (columns[at : at + 1] == [last])]


class _Conjuncts:
    """The parts of a condition: the operands of its AND."""

    def __init__(self, condition: Expression | None, schema: pa.Schema) -> None:
        self.parts = () if condition is None else parts_of(condition)
        names = set().union(*map(column_names, self.parts)) or {*schema.names[:1]}
        # For each column, the values with which each part can be true.
        self.domains = {name: [value_set(part, schema.field(name)) for part in self.parts] for name in names}
        self._keys = {
            name: KeySet.intersection_of(domain.keys for domain in domains)
            for name, domains in self.domains.items()
        }

    def impossible(self) -> bool:
        return any(keys.is_empty for keys in self._keys.values())

    def keys(self, name: str) -> KeySet:
        """Return the values of a column with which all parts can be true."""
        return self._keys.get(name, EVERYTHING)

    def residual(self, columns: Sequence[str]) -> Expression | None:
        """Return the parts that may be false although these columns have values of their key sets."""
        known = [self.domains[name] for name in columns if name in self.domains]
        unproven = [part for at, part in enumerate(self.parts) if not any(of[at].exact for of in known)]
        return all_of(unproven) if unproven else None

    def text_limiting(self, columns: Sequence[str]) -> str:
        """Return the text of the parts that limit these columns, cut if it is long."""
        known = [self.domains[name] for name in columns if name in self.domains]
        texts = [
            f"({to_text(part)})" if len(self.parts) > 1 and part.op == "OR" else to_text(part)
            for at, part in enumerate(self.parts)
            if any(of[at].keys != EVERYTHING for of in known)
        ]
        return shortened(" AND ".join(texts))


def _values_of(columns: Sequence[KeySet], types: Sequence[pa.DataType]) -> list[_Values] | None:
    """Return the values of each column; None if there are too many combinations."""
    room, values = MAX_RANGES, list[_Values]()
    for keys, kind in zip(columns, types, strict=True):
        few = None if keys == EVERYTHING else single_values(keys, kind, room)
        if few is None:
            return None
        values.append(few)
        room //= len(few)
    return values


def _take_columns(
    columns: Sequence[KeySet], types: Sequence[pa.DataType], room: int = MAX_RANGES, is_list: bool = False
) -> tuple[list[_Values], KeySet]:
    """Return the single values of the first columns, and the set of the next column, for up to `room` ranges.

    Successive values are one range, unless they are few and the next column is also limited, or a list of
    keys is wanted (`is_list`).
    """
    fixed: list[_Values] = []
    for keys, following, kind in zip(columns, [*columns, EVERYTHING][1:], types, strict=True):
        most = len(keys.intervals) + (_FEW_NEIGHBOURS if is_list or following != EVERYTHING else 0)
        few = None if keys == EVERYTHING else single_values(keys, kind, min(room, most))
        if few is None:
            return fixed, keys.coarsened(room)
        fixed.append(few)
        room //= len(few)
    return fixed, EVERYTHING


def _ranges(fixed: Sequence[_Values], last: KeySet, skip: int = 0) -> Iterator[KeyRange]:
    """Yield the ranges of keys with these values of the first columns, and a value of `last` in the next one.

    The first byte of a value key distinguishes it from null. Primary keys have no such byte (`skip`).
    """
    for prefix in map(b"".join, product(*([key[skip:] for key in values] for values in fixed))):
        after = successor(prefix) if prefix.strip(b"\xff") else None  # nothing lies beyond
        for low, high in last.intervals:
            yield prefix + low[skip:], prefix + high[skip:] if high < END else after


def _hash_ranges(values: Sequence[_Values], types: Sequence[pa.DataType]) -> Ranges:
    hashes = sorted({int(value) for value in index_hash(_combinations(values, types))})
    keys_of_hashes = [encode_value(pa.scalar(value, pa.int32())) for value in hashes]
    return tuple((key, successor(key)) for key in keys_of_hashes)


def _combinations(columns: Sequence[_Values], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Return every combination of the values of columns, as ascending rows."""
    values = [
        pa.concat_arrays([pa.repeat(value_of(key, kind), 1) for key in keys])
        for keys, kind in zip(columns, types, strict=True)
    ]
    rows = list(product(*(range(len(column)) for column in values)))
    return [column.take(pa.array(at)) for column, at in zip(values, zip(*rows, strict=True), strict=True)]
