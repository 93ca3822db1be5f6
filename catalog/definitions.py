"""The columns of a table as its row keeps them.

While the first definition stands, `schema` is the table's and `past` is null. Afterwards `schema` has a field
for each type of each column that there ever was, oldest first, by the name in files, and `past` is JSON:

    [number of the definition, [[definitions of types, [[definition, name], ...], until, last commit], ...]]
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from elasticscan.metadata import TableColumn, TableInfo, schema_at


def packed_columns(table: TableInfo) -> dict[str, Any]:
    """Return the values of the row that say which columns a table has."""
    if not table.columns:
        return {"schema": table.schema.serialize().to_pybytes(), "past": None}
    fields = [pa.field(c.stored, kind, c.nullable) for c in table.columns for _, kind in c.types]
    past = [
        [[since for since, _ in c.types], [list(name) for name in c.names], c.until, c.last_commit]
        for c in table.columns
    ]
    schema = pa.schema(fields).serialize().to_pybytes()
    return {"schema": schema, "past": json.dumps([table.definition, past], separators=(",", ":"))}


def unpacked_columns(packed: bytes, past: str | None) -> dict[str, Any]:
    """Return the inverse: what a `TableInfo` says of its columns."""
    schema = pa.ipc.read_schema(pa.py_buffer(packed))
    if past is None:
        return {"schema": schema}
    definition, entries = json.loads(past)
    fields, columns = iter(schema), list[TableColumn]()
    for since, names, until, last_commit in entries:
        own = [next(fields) for _ in since]
        columns.append(
            TableColumn(
                own[0].name,
                tuple((number, name) for number, name in names),
                tuple((number, field.type) for number, field in zip(since, own, strict=True)),
                own[0].nullable,
                until,
                last_commit,
            )
        )
    return {"schema": schema_at(columns, definition), "definition": definition, "columns": tuple(columns)}
