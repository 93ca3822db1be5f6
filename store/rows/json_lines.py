"""Lines of JSON as rows: read a block at a time, each value in the type of the table's column.

`pyarrow.dataset` reads them in the types that it guesses from a file's first block, and skips fields
that come later; so `pyarrow.json` reads them here. A field that the beginning does not have ends the load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyarrow import fs

from elasticscan.base.limits import BATCH_ROWS, MAX_NESTING

# A time of day in ISO 8601 that ends with its zone.
_ZONE = r"[ T]\d\d.*(?:Z|[+-]\d\d(?::?\d\d)?)$"


def columns_of(
    system: fs.FileSystem, path: str, types: Mapping[str, pa.DataType], block_bytes: int
) -> pa.Schema:
    """The columns of a file as its beginning has them, in types that were named or are guessed.

    Arrow reads a moment with its zone as UTC, and forgets that it had one. Where all have a zone, the column
    is of moments; where some have, text, as it is in CSV. Texts that are times but for their fractions of
    seconds are text to Arrow, and times here.
    """
    guessed = _opened(system, path, block_bytes).schema
    kinds = {each.name: timed(each.type, lambda _: pa.string()) for each in guessed if each.name not in types}
    texts = pa.schema(
        [
            (name, kind)
            for name, kind in kinds.items()
            if kind != guessed.field(name).type or pa.types.is_string(kind)
        ]
    )
    begin = _opened(system, path, block_bytes, texts, "ignore").read_next_batch() if texts else None
    fields = []
    for each in guessed:
        kind = types.get(each.name, each.type)
        if begin is not None and each.name in texts.names:
            kind = _zoned(kind, begin[each.name])
        fields.append(each.with_type(kind))
    return pa.schema(fields)


def rows_of(
    system: fs.FileSystem, path: str, schema: pa.Schema, block_bytes: int, begin_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a file with the columns that its beginning has, in the types of a schema that has these."""
    there = _opened(system, path, begin_bytes).schema
    wanted = [schema.field(each.name) if each.name in schema.names else each for each in there]
    explicit = pa.schema([each.with_type(_read_as(each.type)) for each in wanted])
    for batch in _opened(system, path, block_bytes, explicit, "error"):
        columns = [
            column if column.type == each.type else pc.cast(column, each.type)
            for column, each in zip(batch.columns, wanted, strict=True)
        ]
        rows = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        for at in range(0, rows.num_rows, BATCH_ROWS):
            yield rows.slice(at, BATCH_ROWS)


def _opened(
    system: fs.FileSystem,
    path: str,
    block_bytes: int,
    explicit: pa.Schema | None = None,
    unexpected: str = "infer",
) -> Any:
    return pyarrow.json.open_json(
        system.open_input_stream(path),  # unpacks what its name says is packed
        read_options=pyarrow.json.ReadOptions(block_size=block_bytes),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=explicit, unexpected_field_behavior=unexpected
        ),
    )


def _read_as(kind: pa.DataType) -> pa.DataType:
    """The type that values are read in: texts of days and times are converted by the rules for CSV."""
    return pa.string() if pa.types.is_timestamp(kind) or pa.types.is_date(kind) else kind


def _zoned(kind: pa.DataType, texts: pa.Array) -> pa.DataType:
    """The type of times that were read as texts; other types as they are."""
    if texts.type == kind:
        return _time_of(texts.drop_null(), kind) if pa.types.is_string(kind) else kind
    if pa.types.is_timestamp(kind):
        return _time_of(texts.drop_null(), pa.timestamp("us"))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_zoned(kind.value_type, texts.flatten())))
    assert pa.types.is_struct(kind), "nothing else has times within"
    return pa.struct(
        [part.with_type(_zoned(part.type, pc.struct_field(texts, [at]))) for at, part in enumerate(kind)]
    )


def _time_of(texts: pa.Array, otherwise: pa.DataType) -> pa.DataType:
    """The type of texts, if all are times with a zone, or all without; text if they are mixed or no times."""
    zoned = set(pc.match_substring_regex(texts, _ZONE).to_pylist())
    if not zoned:
        return otherwise
    found = pa.timestamp("us", "UTC" if True in zoned else None)
    try:
        pc.cast(texts, found)  # refuses those that lack a zone, or have one, too
    except pa.ArrowInvalid:
        return pa.string()
    return found


def timed(kind: pa.DataType, changed: Callable[[pa.DataType], pa.DataType], depth: int = 0) -> pa.DataType:
    """A type in which timestamps, within lists and structs too, are changed."""
    if depth > MAX_NESTING:  # which the check of the table's definition refuses
        return kind
    if pa.types.is_timestamp(kind):
        return changed(kind)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(timed(kind.value_type, changed, depth + 1)))
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(timed(part.type, changed, depth + 1)) for part in kind])
    return kind
