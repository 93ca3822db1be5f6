"""get: rows by their primary keys."""

from __future__ import annotations

import base64
import binascii
import csv
from collections.abc import Sequence
from typing import Annotated

import pyarrow as pa
import typer
from rich.markup import escape

from elasticscan.base.errors import InvalidOption
from elasticscan.base.showing import brief
from elasticscan.cli.files import known_kind, open_writer
from elasticscan.cli.options import Columns, Json, Snapshot, Table, Uri, names_of, snapshot_of
from elasticscan.cli.output import answer, console, counted, print_json_lines
from elasticscan.cli.scanning import Output, show_rows
from elasticscan.store import Store


def get(
    uri: Uri,
    table: Table,
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY...", help="Of several columns: 5,mon as in CSV. Before -5: --"),
    ],
    columns: Columns = None,
    snapshot: Snapshot = None,
    output: Output = None,
    json: Json = False,
) -> None:
    """Read the rows that have some primary keys, in the order of the keys.

    Rows go where those of scan go: to the terminal as a table, to stdout as one JSON object a line, or to a
    file. A key that is not there has none.
    """
    if output is not None:
        known_kind(output)
    with Store.open(uri) as store:
        opened = store.table(table)
        asked = keys_of(keys, opened.schema, opened.primary_key)
        rows = opened.get(asked, names_of(columns), snapshot_of(snapshot))
    is_there = "is there" if asked.num_rows == 1 else "are there"
    message = f"{rows.num_rows:,} of {counted(asked.num_rows, 'key')} {is_there}"
    if output is not None:
        with open_writer(output, rows.schema) as writer:
            for batch in rows.to_batches():
                writer.write_batch(batch)
        value = {"output": str(output), "rows": rows.num_rows, "keys": asked.num_rows}
        answer(json, value, f"{message}; their rows were written to {escape(str(output))}.")
    elif json:
        print_json_lines(rows.to_pylist())
    else:
        show_rows(rows.schema, rows.to_pylist())
        console().print(f"{message}.")


def keys_of(texts: Sequence[str], schema: pa.Schema, names: Sequence[str]) -> pa.Table:
    """Keys as they are typed, in the types of their columns: of several columns a line of CSV.

    Raises:
        InvalidOption: a key has another number of values, or one of another type.
    """
    split = [[text] if len(names) == 1 else next(csv.reader([text]), []) for text in texts]
    for text, values in zip(texts, split, strict=True):
        if len(values) != len(names):
            raise InvalidOption(
                f"key {brief(text)} must have a value for each of {', '.join(names)}, with commas between "
                "them: 5,mon",
                option="KEY",
            )
    fields = [schema.field(name) for name in names]
    columns = [_values([values[at] for values in split], field) for at, field in enumerate(fields)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _values(texts: Sequence[str], field: pa.Field) -> pa.Array:
    binary = pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)
    binary = binary or pa.types.is_fixed_size_binary(field.type)
    try:
        if binary:  # as scan prints them
            return pa.array([base64.b64decode(text, validate=True) for text in texts], field.type)
        return pa.array(texts, pa.string()).cast(field.type)
    except (pa.ArrowException, binascii.Error, ValueError, NotImplementedError) as error:
        form = "base64 of a value" if binary else "a value"
        raise InvalidOption(
            f"the keys must have {form} of type {field.type} for {field.name!r}: {error}", option="KEY"
        ) from error
