"""Lines of JSON as rows: read a block at a time, each value in the type of the table's column.

`pyarrow.dataset` reads them in the types that it guesses from a file's first block, and skips fields
that come later; so `pyarrow.json` reads them here. A field that the beginning does not have ends the load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyarrow import fs

from elasticscan.base.errors import SchemaMismatch
from elasticscan.base.limits import BATCH_ROWS, MAX_NESTING
from elasticscan.store.rows.faults import fault_in

# In ISO 8601 a day, and a time of day that ends with its zone.
_DAY = r"^\d{4}-\d\d-\d\d$"
_ZONE = r"[ T]\d\d.*(?:Z|[+-]\d\d(?::?\d\d)?)$"


def columns_of(
    system: fs.FileSystem, path: str, types: Mapping[str, pa.DataType], block_bytes: int
) -> pa.Schema:
    """The columns of a file as its beginning has them, in types that were named or are guessed.

    Arrow reads a moment with its zone as UTC, and forgets that it had one. Where all have a zone, the column
    is of moments; where some have, text, as it is in CSV. Texts that are times but for their fractions of
    seconds are text to Arrow, and times here.
    """
    with _placing(system, path, None):
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
    with _placing(system, path, None):
        there = _opened(system, path, begin_bytes).schema
    wanted = [schema.field(each.name) if each.name in schema.names else each for each in there]
    explicit = pa.schema([each.with_type(_read_as(each.type)) for each in wanted])
    for batch in _batches(system, path, block_bytes, explicit):
        with _placing(system, path, pa.schema(wanted)):
            columns = [
                column if column.type == each.type else pc.cast(column, each.type)
                for column, each in zip(batch.columns, wanted, strict=True)
            ]
        rows = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        for at in range(0, rows.num_rows, BATCH_ROWS):
            yield rows.slice(at, BATCH_ROWS)


def _batches(
    system: fs.FileSystem, path: str, block_bytes: int, explicit: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, block by block; an error has the line of the value that is refused."""
    rows = 0
    with _placing(system, path, explicit):
        reader = _opened(system, path, block_bytes, explicit, "error")
    while True:
        with _placing(system, path, explicit, rows):
            batch = next(reader, None)
        if batch is None:
            return
        rows += batch.num_rows
        yield batch


@contextmanager
def _placing(
    system: fs.FileSystem, path: str, columns: pa.Schema | None, rows_before: int = 0
) -> Iterator[None]:
    """Translate what Arrow refuses of a block into an error that has the line in the file."""
    try:
        yield
    except pa.ArrowInvalid as error:
        fault = fault_in(system, path, columns, str(error), rows_before)
        if fault is None:
            raise
        if fault.unknown is None:
            raise pa.ArrowInvalid(f"line {fault.line}: {fault.why}") from error
        do = "make its column first (add_columns, `elasticscan add-column`; if it is not there, the table)"
        if "." in fault.unknown:
            do = "make a table whose column has it (create_table)"
        raise SchemaMismatch(
            f"{path}, line {fault.line}: {fault.why}, which neither the table nor the first 32 MB of the "
            f"file have: leave it out, or {do}",
            file=path,
            line=fault.line,
            unknown=[fault.unknown],
        ) from error


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
    return changed(kind, lambda each: pa.string() if _is_time(each) else each)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


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
    """The type of texts: of days, of times with a zone or without; text if they are mixed or no times."""
    if pa.types.is_timestamp(otherwise) and pc.all(pc.match_substring_regex(texts, _DAY)).as_py():
        return pa.date32()
    zoned = set(pc.match_substring_regex(texts, _ZONE).to_pylist())
    if not zoned:
        return otherwise
    found = pa.timestamp("us", "UTC" if True in zoned else None)
    try:
        pc.cast(texts, found)  # refuses those that lack a zone, or have one, too
    except pa.ArrowInvalid:
        return pa.string()
    return found


def timed(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type in which timestamps, within lists and structs too, are changed."""
    return changed(kind, lambda each: change(each) if pa.types.is_timestamp(each) else each)


def changed(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType], depth: int = 0) -> pa.DataType:
    """A type in which all types but lists and structs, and those within these, are changed."""
    if depth > MAX_NESTING:  # which the check of the table's definition refuses
        return kind
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(changed(kind.value_type, change, depth + 1)))
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(changed(part.type, change, depth + 1)) for part in kind])
    return change(kind)
