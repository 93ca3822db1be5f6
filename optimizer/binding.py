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

from elasticscan.base.value_keys import END, can_be_encoded, encode_value, index_hash, successor
from elasticscan.filters import (
    EVERYTHING,
    And,
    ColumnDomain,
    Expression,
    KeySet,
    Literal,
    Or,
    axis_of,
    column_names,
    computed_type,
    decode_key,
    normalise,
    quote_name,
    to_sql,
    to_text,
    value_set,
)
from elasticscan.metadata import HASH, IndexInfo

MAX_RANGES = 1_000
_SHOWN_VALUES = 5
_SHOWN_CHARACTERS = 200

Ranges = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class IndexCondition:
    """A condition bound to an index.

    Attributes:
        ranges: [low, high) over the index key, disjoint and ascending; none if nothing can match.
        bound: how many columns the ranges fix or limit; 0 reads the whole index.
        fixed: how many of those are fixed to single values: all of them, or all but the last.
        text: the ranges, for people; empty for the whole index.
        residual: what must be checked of each entry still, if anything.
    """

    index: IndexInfo
    ranges: Ranges
    bound: int
    fixed: int
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
        return IndexCondition(index, (), len(index.columns), len(index.columns), "FALSE", None)
    columns = [conjuncts.keys(name) for name in index.columns]
    if index.kind == HASH:
        ranges = _hash_ranges(columns, [schema.field(name).type for name in index.columns])
        if ranges is None:
            return None
        bound = fixed = len(columns)
        used, remaining = columns, conjuncts.parts
    else:
        used = take_columns(columns)
        ranges = _ranges(used)
        bound, fixed = len(used), sum(keys.singles for keys in used)
        implied = [name for name, *two in zip(index.columns, used, columns, strict=False) if two[0] == two[1]]
        remaining = conjuncts.not_implied_by(implied)
    text = " AND ".join(
        conjuncts.text_of(name, keys) for name, keys in zip(index.columns, used, strict=False)
    )
    residual = remaining[0] if len(remaining) == 1 else And(remaining) if remaining else None
    return IndexCondition(index, ranges, bound, fixed, text, residual)


class Conjuncts:
    """The parts of a condition that all have to be true."""

    def __init__(self, condition: Expression | None, schema: pa.Schema) -> None:
        self.schema = schema
        self.parts: tuple[Expression, ...] = ()
        if condition is not None:
            self.parts = condition.parts if isinstance(condition, And) else (condition,)
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

    def not_implied_by(self, columns: list[str]) -> tuple[Expression, ...]:
        """Return the parts that may still be false when these columns have values of their key sets."""
        return tuple(
            part
            for at, part in enumerate(self.parts)
            if not any(self.domains(name)[at].exact for name in columns)
        )

    def text_of(self, name: str, keys: KeySet) -> str:
        """Return the limits of one column, in the words of the condition where its parts say exactly that."""
        parts = [
            (part, domain)
            for part, domain in zip(self.parts, self.domains(name), strict=True)
            if domain.keys != EVERYTHING
        ]
        if keys == self.keys(name) and all(domain.exact for _, domain in parts):
            among = len(self.parts) > 1
            texts = [
                f"({to_text(part)})" if among and isinstance(part, Or) else to_text(part) for part, _ in parts
            ]
            text = " AND ".join(texts)
            if len(text) <= _SHOWN_CHARACTERS:
                return text
        return f"{quote_name(name)} {_describe(keys, self.schema.field(name).type)}"


def _describe(keys: KeySet, stored: pa.DataType) -> str:
    count = len(keys.intervals)
    if not keys.singles:
        return f"IN ({count} range{'s' if count > 1 else ''})"
    if count > _SHOWN_VALUES:
        return f"IN ({count} values)"
    kind = computed_type(stored)
    try:
        values = [
            decode_key(interval.key, stored).cast(kind, safe=False).as_py() for interval in keys.intervals
        ]
    except (OverflowError, ValueError):  # Python's years end at 9999.
        return f"IN ({count} values)"
    return f"IN ({', '.join(to_sql(Literal(value, kind, implicit=True)) for value in values)})"


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
        pa.concat_arrays([pa.repeat(decode_key(interval.key, kind), 1) for interval in keys.intervals])
        for keys, kind in zip(columns, types, strict=True)
    ]
    rows = list(product(*(range(len(column)) for column in values)))
    return [column.take(pa.array(at)) for column, at in zip(values, zip(*rows, strict=True), strict=True)]
