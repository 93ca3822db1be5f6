"""Columns of a table, read from a sample of its values. Pure."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from elasticscan.base.errors import SchemaMismatch

_TYPES = (pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"))
# What a column of floats would change: a plus, leading zeros, more than 15 digits, or codes such as 12e4.
_NOT_FLOAT = r"^(?:\+|-0$|-?0[0-9]|-?[0-9]{16,}$|-?[0-9]+[eE][0-9]+$)"


def fields_of_hashes(values: list[list[bytes]], typed: bool) -> list[pa.Field]:
    """Return a column for each field: text, or if `typed` a type that holds all."""
    texts: dict[str, list[str]] = defaultdict(list)
    for value in values:
        for name, text in zip(value[::2], value[1::2], strict=True):
            texts[name.decode(errors="replace")].append(text.decode(errors="replace"))
    candidates = _TYPES if typed else ()
    return [pa.field(name, _kind_of(pa.array(found), candidates)) for name, found in sorted(texts.items())]


def _kind_of(texts: pa.Array, candidates: Sequence[pa.DataType]) -> pa.DataType:
    """Return the first type that holds all texts as they are written, else text."""
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
    """Return a column for each field of JSON objects, likewise.

    Raises:
        SchemaMismatch: the values are no objects, or have fields of several types.
    """
    # Arrow ends the process on texts that are all null.
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
