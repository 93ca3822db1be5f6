"""Binding of conditions to an index: the key ranges to read, and the residual that is left to check.

A sorted index is bound column by column. Single values (`= 5`, `IN (1, 2)`, `IS NULL`) leave the next
column to be bound too, anything else is the last: with `a = 1 AND b > 2 AND b < 4`, an index on
(a, b) is read from (1, 2) to (1, 4), one on (a, c) where a is 1, one on (b) from 2 to 4. A hash index
needs single values for all of its columns.

Parts of the condition that hold for every key in the ranges are not checked again; what remains is
the residual. Two values may have one hash, so with a hash index everything remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import pyarrow as pa

from elasticscan.base.key_encoding import END, can_be_encoded, encode_value, index_hash, successor, value_of
from elasticscan.filters import (
    EVERYTHING,
    ColumnDomain,
    Expression,
    KeySet,
    all_of,
    axis_of,
    column_names,
    normalise,
    parts_of,
    shortened,
    to_text,
    value_set,
)
from elasticscan.metadata import HASH, IndexInfo

MAX_RANGES = 1_000

Ranges = tuple[tuple[bytes, bytes], ...]


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

    @property
    def remainder(self) -> str | None:
        """The residual as SQL text, for people."""
        return None if self.residual is None else to_text(self.residual)


def bind(index: IndexInfo, condition: Expression | None, schema: pa.Schema) -> IndexCondition | None:
    """Return the part of the index that has every row for which the condition is true.

    None if the index is of no use for it: a hash index without a value for each of its columns.
    """
    conjuncts = Conjuncts(condition, schema)
    if conjuncts.impossible():
        return IndexCondition(index, (), len(index.columns), "FALSE", None)
    columns = [conjuncts.keys(name) for name in index.columns]
    if index.kind == HASH:
        ranges = _hash_ranges(columns, [schema.field(name).type for name in index.columns])
        if ranges is None:
            return None
        used, implied = columns, []
    else:
        used = take_columns(columns)
        ranges = _ranges(used)
        implied = [name for name, *two in zip(index.columns, used, columns, strict=False) if two[0] == two[1]]
    text = conjuncts.text_limiting(index.columns[: len(used)])
    return IndexCondition(index, ranges, len(used), text, conjuncts.residual(implied))


class Conjuncts:
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


def take_columns(columns: Sequence[KeySet], room: int = MAX_RANGES) -> list[KeySet]:
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


def _ranges(columns: list[KeySet]) -> Ranges:
    if not columns:
        return ((b"", END),)
    fixed = [[interval.key for interval in keys.intervals] for keys in columns[:-1]]
    return tuple(
        (prefix + low, prefix + high)
        for prefix in map(b"".join, product(*fixed))
        for low, high, _ in columns[-1].intervals
    )


def _hash_ranges(columns: list[KeySet], types: list[pa.DataType]) -> Ranges | None:
    count = 1
    for keys, kind in zip(columns, types, strict=True):
        count *= len(keys.intervals)
        if not keys.singles or count > MAX_RANGES or not can_be_encoded(kind):
            return None
    hashes = sorted({int(value) for value in index_hash(combinations(columns, types))})
    keys_of_hashes = [encode_value(pa.scalar(value, pa.int32())) for value in hashes]
    return tuple((key, successor(key)) for key in keys_of_hashes)


def combinations(columns: Sequence[KeySet], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Every combination of the single values of some columns, as rows, ascending."""
    values = [
        pa.concat_arrays([pa.repeat(value_of(interval.key, kind), 1) for interval in keys.intervals])
        for keys, kind in zip(columns, types, strict=True)
    ]
    rows = list(product(*(range(len(column)) for column in values)))
    return [column.take(pa.array(at)) for column, at in zip(values, zip(*rows, strict=True), strict=True)]
