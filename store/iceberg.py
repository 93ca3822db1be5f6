"""Iceberg tables to load rows from, planned and read by their own library, deleted rows left out.

A source is a table's place (its directory, or a `….metadata.json`), or `catalog.namespace.table` of a
catalog that PyIceberg's settings name. A version is the id of a snapshot. Deletes beside the data (merge on
read) are PyIceberg's to apply: those that it cannot apply are refused before a row is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption
from elasticscan.base.redaction import shown

ICEBERG = "iceberg"


@dataclass(frozen=True, slots=True)
class IcebergFile:
    """A data file of a snapshot, with the deletes that its rows are subject to."""

    task: Any
    reader: Any

    @property
    def path(self) -> str:
        return str(self.task.file.file_path)

    @property
    def bytes(self) -> int:
        return int(self.task.file.file_size_in_bytes)

    @property
    def identity(self) -> str:
        """Tells the file and its deletes from all others; files of Iceberg are never written anew."""
        deletes = sorted(each.file_path for each in self.task.delete_files)
        named = "\0".join([ICEBERG, self.path, str(self.bytes), *deletes])
        return hashlib.blake2b(named.encode(), digest_size=16).hexdigest()

    def count_rows(self) -> int | None:
        return None if self.task.delete_files else int(self.task.file.record_count)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        yield from self.reader.to_record_batches([self.task])


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """A snapshot of a table: its columns as the snapshot has them, and its files."""

    schema: pa.Schema
    files: tuple[IcebergFile, ...]


def iceberg_table(text: str, version: int | None) -> IcebergTable:
    """The files of an Iceberg table at a snapshot.

    Raises:
        InvalidOption: it is not there, lacks the snapshot, or has deletes that cannot be applied.
    """
    try:
        tables, arrow = import_module("pyiceberg.table"), import_module("pyiceberg.io.pyarrow")
        catalogs, exceptions = import_module("pyiceberg.catalog"), import_module("pyiceberg.exceptions")
    except ModuleNotFoundError as error:
        raise InvalidOption(
            "an Iceberg table is read by the package 'pyiceberg': pip install 'elasticscan[iceberg]'",
            format=ICEBERG,
        ) from error
    theirs = [kind for kind in vars(exceptions).values() if isinstance(kind, type)]
    refused: tuple[type[Exception], ...] = (*theirs, OSError, ValueError, NotImplementedError)
    try:
        if "/" in text:
            table = tables.StaticTable.from_metadata(text)
        else:
            catalog, _, name = text.partition(".")
            table = catalogs.load_catalog(catalog).load_table(name)
        scan = table.scan(snapshot_id=version)
        columns = scan.projection()  # which looks for the snapshot; a plan of none that is there is empty
        tasks = list(scan.plan_files())
    except refused as error:
        raise InvalidOption(
            f"{shown(text)} cannot be read as an Iceberg table: {error}", file=shown(text)
        ) from error
    reader = arrow.ArrowScan(table.metadata, table.io, columns, scan.row_filter)
    files = (IcebergFile(task, reader) for task in tasks)
    return IcebergTable(columns.as_arrow(), tuple(sorted(files, key=lambda file: file.path)))
