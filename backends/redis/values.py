"""Values of keys as rows: hashes, strings, and strings that hold JSON; and columns, from a sample. Pure.

The answers for many keys become one Arrow column per field. If a text does not fit its column's type, or
an object its columns, the value is null in the mode PERMISSIVE, and an error in FAILFAST.
"""

from __future__ import annotations

import io
import json
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from elasticscan.backends.redis.names import expression_of, prefix_of, probe_of
from elasticscan.backends.redis.options import MODES, TableOptions
from elasticscan.base.errors import SchemaMismatch
from elasticscan.base.formatting import brief
from elasticscan.filters import Predicate

SAMPLED_FIELDS = 1_000
_FAR = (1 << 31) - 1
_GONE = -2  # the answer of PTTL for a missing key
_TYPES = (pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"))
# Texts that conversion to float would change: a plus, leading zeros, more than 15 digits, codes such as 12e4.
_NOT_FLOAT = r"^(?:\+|-0$|-?0[0-9]|-?[0-9]{16,}$|-?[0-9]+[eE][0-9]+$)"


@dataclass(frozen=True, slots=True)
class KeySpace:
    """The keys of a table, and the conversion of their values to rows.

    Attributes:
        options: of the table.
        fields: the columns: the key, the columns of values, and the time to live if it was requested.
        start: the beginning of names, which the key's column omits.
        conditions: parts of the scan's filter that depend only on the key's column.
        probe_end: the end of the names of probes, a random text that no key has.
    """

    options: TableOptions
    fields: pa.Schema
    start: bytes = b""
    conditions: tuple[Predicate, ...] = ()
    probe_end: bytes = field(default_factory=lambda: b":elasticscan:" + os.urandom(6).hex().encode())

    @property
    def prefix(self) -> bytes:
        """The beginning of all names, and of probes."""
        return prefix_of(self.options.keys_pattern.encode())

    def probe(self, slot: int) -> bytes:
        return probe_of(self.prefix, slot, self.probe_end)

    def select(self, names: pa.Table) -> pa.Table:
        """Return the names that belong to the table and meet the conditions."""
        expression = expression_of(self.options.keys_pattern.encode())
        matches = pc.starts_with if expression is None else pc.match_substring_regex
        names = names.filter(matches(names.column("name"), expression or self.prefix))
        for condition in self.conditions:
            keys = self.keys(names.column("name").combine_chunks())
            names = names.filter(condition.mask(pa.record_batch([keys], schema=self.schema([self.key]))))
        return names

    @property
    def key(self) -> str:
        return str(self.fields.names[0])

    def schema(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([self.fields.field(name) for name in columns])

    def _stored(self, columns: Sequence[str]) -> list[str]:
        """Return the columns other than the key's and the time to live."""
        return [name for name in columns if name not in (self.key, self.options.ttl_column)]

    def commands(self, names: Sequence[bytes], columns: Sequence[str]) -> list[tuple[bytes, ...]]:
        """Return the commands that read keys, one for each."""
        stored = [name.encode() for name in self._stored(columns)]
        if not stored:
            return [(b"EXISTS", name) for name in names]
        if self.options.model == "hash":
            return [(b"HMGET", name, *stored) for name in names]
        if self.options.model == "sample":
            return [(b"HSCAN", name, b"0", b"COUNT", b"%d" % SAMPLED_FIELDS) for name in names]
        return [(b"GET", name) for name in names]

    def read(
        self, names: pa.Array, values: Sequence[Any], left: Sequence[Any] | None, columns: Sequence[str]
    ) -> tuple[pa.RecordBatch, NDArray[np.bool_]]:
        """Return a row for each key, and a mask of the keys that exist; other rows are arbitrary."""
        stored = self._stored(columns)
        if not stored:
            values = [value or None for value in values]
        elif self.options.model == "sample":
            values = [(value and value[1]) or None for value in values]
        there = np.array([value is not None for value in values], np.bool_)
        arrays = dict(zip(stored, self._columns(stored, values), strict=True))
        if self.key in columns:
            arrays[self.key] = self.keys(names)
        if left is not None:
            times = pa.array(left, pa.int64())
            there &= np.array([time not in (None, _GONE) for time in left], np.bool_)
            arrays[str(self.options.ttl_column)] = pc.if_else(pc.greater_equal(times, 0), times, None)
        rows = pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=self.schema(columns))
        return rows, there

    def _columns(self, stored: Sequence[str], values: Sequence[Any]) -> list[pa.Array]:
        """Return an array for each column that values hold."""
        if not stored:
            return []
        if self.options.model == "hash":
            nothing = [None] * len(stored)
            rows = [value or nothing for value in values]
            columns = zip(*rows, strict=True) if rows else [()] * len(stored)
            texts = [pa.array(column, pa.binary()) for column in columns]
            return [self._texts(name, text) for name, text in zip(stored, texts, strict=True)]
        if self.options.model == "sample":
            return [pa.array(values, self.fields.field(stored[0]).type)]
        text = pa.array(values, pa.binary())
        return (
            [self._texts(stored[0], text)] if self.options.model == "string" else self._objects(stored, text)
        )

    def keys(self, names: pa.Array) -> pa.Array:
        """Return the key's column. Raises `SchemaMismatch` if a name does not fit its type."""
        kind = self.fields.field(self.key).type
        keys = pc.binary_slice(names, len(self.start), _FAR)  # without an end, Arrow 26 fails
        try:
            return _cast(keys, kind)
        except pa.ArrowInvalid as error:
            raise SchemaMismatch(
                f"a key does not fit column {self.key!r} of type {kind}: {error!s:.200}; declare it binary",
                column=self.key,
            ) from None

    def _texts(self, column: str, texts: pa.Array) -> pa.Array:
        kind = self.fields.field(column).type
        return self._read(column, texts, kind, partial(_cast, kind=kind))

    def _objects(self, columns: Sequence[str], texts: pa.Array) -> list[pa.Array]:
        """Parse a JSON object from each text; return its fields.

        Arrow parses each text as the field of an enclosing object. If the text is itself an object, it makes
        exactly one row, so other texts are refused first.
        """
        kind = pa.struct(self.schema(columns))
        schema = pa.schema([pa.field("value", kind)])
        options = pa.json.ParseOptions(schema, newlines_in_values=True, unexpected_field_behavior="ignore")

        def read(part: pa.Array) -> pa.Array:
            values = part.fill_null(b"{}").to_pylist()
            if not all(isinstance(json.loads(value.decode()), dict) for value in values):
                raise ValueError("it is no object")
            text = b"\n".join(b'{"value":%b}' % value for value in values)
            limits = pa.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
            return pa.json.read_json(io.BytesIO(text), limits, options).column("value").combine_chunks()

        found = self._read("value", texts, kind, read)
        return [pc.struct_field(found, [at]) for at in range(len(columns))]

    def _read(
        self, column: str, texts: pa.Array, kind: pa.DataType, read: Callable[[pa.Array], pa.Array]
    ) -> pa.Array:
        """Read texts in as few parts as possible. A single text that cannot be read is null, or an error."""
        if not len(texts):
            return pa.nulls(0, kind)
        try:
            return read(texts)
        except (ValueError, NotImplementedError, RecursionError) as error:  # Arrow's errors are subclasses
            if len(texts) > 1:
                half = len(texts) // 2
                parts = (texts[:half], texts[half:])
                return pa.concat_arrays([self._read(column, part, kind, read) for part in parts])
            if self.options.mode != MODES[0]:
                raise SchemaMismatch(
                    f"a value of column {column!r} is no {kind}: {brief(texts[0].as_py())} ({error!s:.200}); "
                    "read with mode PERMISSIVE, or correct it",
                    column=column,
                ) from None
            return pa.nulls(1, kind)


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    return texts.cast(kind) if pa.types.is_binary(kind) else texts.cast(pa.string()).cast(kind)


def fields_of_hashes(values: list[list[bytes]], typed: bool) -> list[pa.Field]:
    """Return a column for each field: text, or, if `typed`, the first type that fits all values."""
    texts: dict[str, list[str]] = defaultdict(list)
    for value in values:
        for name, text in zip(value[::2], value[1::2], strict=True):
            texts[name.decode(errors="replace")].append(text.decode(errors="replace"))
    candidates = _TYPES if typed else ()
    return [pa.field(name, _kind_of(pa.array(found), candidates)) for name, found in sorted(texts.items())]


def _kind_of(texts: pa.Array, candidates: Sequence[pa.DataType]) -> pa.DataType:
    """Return the first type that represents all texts without a change, else text."""
    for kind in candidates:
        with suppress(pa.ArrowInvalid):
            values = texts.cast(kind)
            if pa.types.is_floating(kind):
                changed = pc.or_(pc.is_inf(values), pc.match_substring_regex(texts, _NOT_FLOAT))
            elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
                changed = pc.not_equal(values.cast(pa.string()), pc.utf8_lower(texts))
            else:
                return kind
            if not pc.any(changed).as_py():
                return kind
    return pa.string()


def fields_of_objects(values: list[bytes], typed: bool) -> list[pa.Field]:
    """Return a column for each field of JSON objects, with types as in `fields_of_hashes`.

    Raises:
        SchemaMismatch: the values are not objects, or a field has several types.
    """
    # Texts that are all `null` would make Arrow end the process.
    text = b"\n".join(value for value in values if value.lstrip().startswith(b"{"))
    parse: Any = pa.json.ParseOptions(newlines_in_values=True)
    try:
        found = pa.json.read_json(io.BytesIO(text), pa.json.ReadOptions(block_size=len(text) + 1), parse)
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(
            f"the sampled values are no JSON objects of one form: {error!s:.200}; give a schema"
        ) from None
    nested = pa.types.is_nested
    return [each if typed or nested(each.type) else each.with_type(pa.string()) for each in found.schema]
