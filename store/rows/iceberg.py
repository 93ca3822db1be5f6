"""Iceberg tables to load rows from, planned and read by their own library, deleted rows left out.

A source is a table's place (its directory, or a `….metadata.json`), or `catalog.namespace.table` of a
catalog that PyIceberg's settings name. A version is the id of a snapshot. Deletes alongside the data (merge
on read) are PyIceberg's to apply: those that it cannot apply are refused before a row is read.

Which metadata of a directory is current, only its `version-hint.text` says, or a catalog. Without both the
newest is not taken: a writer that failed may have left it, and its rows were never committed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
from pyarrow import fs

from elasticscan.base.errors import ElasticScanError, InvalidOption
from elasticscan.base.redaction import as_cause, shown
from elasticscan.base.user_files import naming_source
from elasticscan.store.roots.aliases import file_system_at, whole_uri, with_home

ICEBERG = "iceberg"
_METADATA = ".metadata.json"
_NUMBERED = re.compile(r"v?(\d+)[-.].*metadata\.json")  # v7.metadata.json, 00007-….metadata.json
_SECRET = re.compile(r"(?i)passw|secret|token|credential|key")


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
        """Tells the file and its deletes from all others; files of Iceberg are never written again."""
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
        InvalidOption: it cannot be read, lacks the snapshot, or has deletes that cannot be applied.
    """
    text = with_home(whole_uri(text))
    with naming_source(text, "read as an Iceberg table"), ExitStack() as held:
        try:
            tables, arrow = import_module("pyiceberg.table"), import_module("pyiceberg.io.pyarrow")
            catalogs, config = import_module("pyiceberg.catalog"), import_module("pyiceberg.utils.config")
        except ModuleNotFoundError as error:
            raise InvalidOption(
                "an Iceberg table is read by the package 'pyiceberg': pip install 'elasticscan[iceberg]'",
                format=ICEBERG,
            ) from error
        if "/" in text or text.endswith(_METADATA) or text.count(".") < 2:
            table = _table_at(tables, text)
        else:
            name, _, rest = text.partition(".")
            settings = _as_uri(config.Config().get_catalog_config(name) or {})
            held.enter_context(naming_source(text, "read as an Iceberg table", settings))
            table = held.enter_context(catalogs.load_catalog(name)).load_table(rest)
        scan = table.scan(snapshot_id=version)
        columns = scan.projection()  # which looks for the snapshot; a plan of none that is there is empty
        tasks = list(scan.plan_files())
        reader = arrow.ArrowScan(table.metadata, table.io, columns, scan.row_filter)
        files = sorted((IcebergFile(task, reader) for task in tasks), key=lambda file: file.path)
        return IcebergTable(columns.as_arrow(), tuple(files))


def _table_at(tables: Any, place: str) -> Any:
    """The table of a directory, or of a file of metadata."""
    try:
        return tables.StaticTable.from_metadata(place)
    except FileNotFoundError as error:
        newest = None if place.endswith(_METADATA) else _newest_metadata(place)
        if newest is None:
            raise
        raise InvalidOption(
            f"{shown(place)} cannot be read as an Iceberg table: no metadata/version-hint.text says which "
            "of its metadata is current, so only its catalog knows. Name catalog.namespace.table of a "
            f"catalog in PyIceberg's settings, or the file; the newest is {shown(newest)}",
            file=shown(place),
        ) from as_cause(error, place)


def _newest_metadata(place: str) -> str | None:
    """The metadata of the highest number in a table's directory; None if there is none to be seen."""
    try:
        system, path = file_system_at(place)
        infos = system.get_file_info(fs.FileSelector(f"{path}/metadata"))
    except (ElasticScanError, OSError):
        return None
    numbered = [
        (int(match[1]), info.base_name) for info in infos if (match := _NUMBERED.fullmatch(info.base_name))
    ]
    return f"{place.rstrip('/')}/metadata/{max(numbered)[1]}" if numbered else None


def _as_uri(settings: Mapping[str, Any]) -> str:
    """A catalog's settings as one URI, from which `without` learns what is secret among them."""
    texts = {name: str(value) for name, value in settings.items()}
    message = [
        ("uri" if "://" in text else name, text)
        for name, text in texts.items()
        if "://" in text or _SECRET.search(name)
    ]
    return f"{ICEBERG}://?{urlencode(message, quote_via=quote)}"
