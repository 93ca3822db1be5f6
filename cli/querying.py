"""sql: a query over the tables of a store, answered by DuckDB, an optional extra."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from elasticscan.base.errors import InvalidOption, SnapshotNotFound
from elasticscan.cli.options import Json, Snapshot, Uri, snapshot_of
from elasticscan.cli.output import console, counted, print_json_lines
from elasticscan.cli.scanning import SHOWN_ROWS, show_rows
from elasticscan.store import Store, Table

# How other systems ask a query for times past.
_TIMES_PAST = re.compile(
    r"\b(?:VERSION|TIMESTAMP|SYSTEM_TIME|SYSTEM_VERSION)\s+AS\s+OF\b"
    r"|\bAT\s*\(\s*(?:VERSION|TIMESTAMP)\b|@v?\d",
    re.IGNORECASE,
)


def sql(
    uri: Uri,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A SELECT of DuckDB's SQL, in quotes.")],
    snapshot: Snapshot = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Print so many rows of the result.")] = None,
    json: Json = False,
) -> None:
    """Query the tables of a store with DuckDB: all of them at one snapshot, each row once.

    Every table that the query names is read as a whole, a page at a time; conditions are DuckDB's. For few
    rows of a large table, scan, get and aggregate use its indexes. Needs pip install 'elasticscan[sql]'.
    """
    try:
        import duckdb  # an optional extra  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InvalidOption(
            "sql needs the package 'duckdb': pip install 'elasticscan[sql]'; or use scan and aggregate"
        ) from None
    with Store.open(uri) as store, duckdb.connect() as database:
        at = snapshot_of(snapshot)
        tables = store.tables() if at is None else _tables_at(store, at)
        at = store.context.tables()[1] if at is None else at
        for table in tables:
            database.register(table.name, _Rereadable(table, at))
        try:
            asked = duckdb.extract_statements(query)
            if len(asked) != 1:
                raise InvalidOption(
                    f"sql takes one query, and this has {len(asked)}; give each by itself", option="QUERY"
                )
            if asked[0].type != duckdb.StatementType.SELECT:
                raise InvalidOption(
                    "sql takes a SELECT; to change rows: update, delete, load; to write files: export",
                    option="QUERY",
                )
            reader = database.sql(query).to_arrow_reader(SHOWN_ROWS * 1_000)
            rows = (row for batch in reader for row in batch.to_pylist())
            _tell(reader.schema, rows, limit, json)
        except duckdb.CatalogException as error:  # its hint would name tables of DuckDB's own
            names = ", ".join(table.name for table in tables) or "none"
            then = "" if snapshot is None else f" at snapshot {snapshot}"
            first, *_ = str(error).splitlines()
            raise InvalidOption(
                f"DuckDB: {first} The store's tables{then}: {names}", option="QUERY"
            ) from error
        except duckdb.Error as error:
            past = "\nAn older snapshot is read with --snapshot 2" if _TIMES_PAST.search(query) else ""
            raise InvalidOption(f"DuckDB: {error}{past}", option="QUERY") from error


def _tables_at(store: Store, snapshot: Any) -> list[Table]:
    """The tables that a snapshot has: others were made after it. Raises `SnapshotNotFound` if none has it."""
    found, missing = list[Table](), None
    for table in store.tables():
        try:
            table.scan(snapshot=snapshot).close()
        except SnapshotNotFound as error:
            missing = error
        else:
            found.append(table)
    if missing is not None and not found:
        raise missing
    return found


class _Rereadable:
    """A table at a snapshot as an Arrow stream: each reference of a query gets a scan of its own."""

    def __init__(self, table: Table, snapshot: Any) -> None:
        self._table, self._snapshot = table, snapshot

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.scan(snapshot=self._snapshot).__arrow_c_stream__(requested_schema)


def _tell(schema: Any, rows: Iterator[dict[str, Any]], limit: int | None, json: bool) -> None:
    if json:
        print_json_lines(islice(rows, limit))
        return
    most = SHOWN_ROWS if limit is None else limit
    some = list(islice(rows, most + 1))
    shown = show_rows(schema, some[:most])
    more = "; there are more: --limit, or --json for all" if len(some) > most and limit is None else ""
    console().print(f"{counted(shown, 'row')}{more}.")
