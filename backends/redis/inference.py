"""Columns of a table, read from a sample of its values. Pure."""

from __future__ import annotations

import io
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pyarrow.json

from elasticscan.base.errors import SchemaMismatch
from elasticscan.store import guess_type

_TYPES = (pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"))


def fields_of_hashes(values: list[list[bytes]], typed: bool) -> list[pa.Field]:
    """Return a column for each field: text, or if `typed` a type that holds all."""
    texts: dict[str, list[str]] = defaultdict(list)
    for value in values:
        for name, text in zip(value[::2], value[1::2], strict=True):
            texts[name.decode(errors="replace")].append(text.decode(errors="replace"))
    candidates = _TYPES if typed else ()
    return [pa.field(name, guess_type(pa.array(found), candidates)) for name, found in sorted(texts.items())]


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
