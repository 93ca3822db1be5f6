"""Columns that names of directories give (`year=2024`), as Hive and Spark write them.

A name counts, also where the files have a column of the same name, as in Spark. Its text becomes a value of
the table's type; in a new table of the type that was named, that the files have, or that is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.errors import SchemaMismatch
from elasticscan.base.redaction import shown

# The value in the name of a directory whose rows have none.
NULL = "__HIVE_DEFAULT_PARTITION__"


def parts_of(base: str, path: str) -> dict[str, str]:
    """The columns that the directories between a base and a file name, with their texts."""
    named = (part.partition("=") for part in path[len(base) :].split("/")[:-1])
    return {name: unquote(text) for name, separator, text in named if name and separator}


def columns_of(
    base: str, paths: Iterable[str], own: pa.Schema, types: Mapping[str, pa.DataType]
) -> pa.Schema:
    """The columns that names of directories give, with types.

    Args:
        own: the columns that the files have.
        types: of columns, as they were named.
    """
    texts: dict[str, set[str]] = {}
    for path in paths:
        for name, text in parts_of(base, path).items():
            texts.setdefault(name, set()).add(text)
    return pa.schema([(name, _type_of(name, some, own, types)) for name, some in texts.items()])


def _type_of(name: str, texts: set[str], own: pa.Schema, types: Mapping[str, pa.DataType]) -> pa.DataType:
    if name in types:
        return types[name]
    if name in own.names and not pa.types.is_null(own.field(name).type):
        return own.field(name).type
    values = pa.array(sorted(texts - {NULL}), pa.string())
    try:
        pc.cast(values, pa.int32())
    except pa.ArrowInvalid:
        return pa.string()
    return pa.int32() if len(values) else pa.string()


def values_of(base: str, path: str, schema: pa.Schema) -> dict[str, pa.Scalar]:
    """The values that the directories of a file give columns of a table.

    Raises:
        SchemaMismatch: a text is no value of the column's type.
    """
    return {
        name: _value(base, name, text, schema.field(name).type) for name, text in parts_of(base, path).items()
    }


def _value(base: str, name: str, text: str, kind: pa.DataType) -> pa.Scalar:
    if text == NULL:
        return pa.scalar(None, kind)
    try:
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return _moment(text, kind)
        return pc.cast(pa.scalar(text), kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(
            f"a directory of {shown(base)} is named {name}={text}, and that is no value of column {name!r}, "
            f"which is {kind}: give the directory another name, or a new table the column as text "
            f"(types={{{name!r}: 'string'}} or `--type {name}=string`); or name the files themselves, or "
            "directories below, whose names are no columns then",
            file=shown(base),
            column=name,
        ) from error


def _moment(text: str, kind: pa.DataType) -> pa.Scalar:
    """A moment; one without a zone is in UTC, as it is in the names that others write."""
    try:
        return pc.cast(pa.scalar(text), kind)
    except pa.ArrowInvalid:
        return pc.cast(pc.assume_timezone(pc.cast(pa.scalar(text), pa.timestamp(kind.unit)), "UTC"), kind)
