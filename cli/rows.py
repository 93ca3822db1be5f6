"""scan, changes, count, get, aggregate, sql, explain: print rows on the terminal or to stdout."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import islice
from typing import Annotated, Any, Literal

import pyarrow as pa
from rich.console import Group

import elasticscan
from elasticscan.backends import is_cluster, open_cluster
from elasticscan.base.errors import InvalidOption
from elasticscan.base.user_files import naming_file
from elasticscan.cli.options import (
    Columns,
    Filter,
    IndexChoice,
    OrderBy,
    Snapshot,
    Table,
    Texts,
    Uri,
    argument,
    names_of,
    option,
    pairs_of,
    switch,
)
from elasticscan.cli.output import answer, counted, is_json, listing, print_json_line, say, show_rows
from elasticscan.ui import cells

# The number of rows that are shown by default.
SHOWN_ROWS = 20

Format = Annotated[
    Literal["csv", "json"] | None,
    option(None, "Print all rows in this format; by default a table of the first.", "--format"),
]


def scan(
    uri: Uri,
    table: Annotated[str, argument("TABLE", "The table; the URL of a cluster may contain it.")] = "",
    columns: Columns = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
    index: IndexChoice = None,
    order_by: OrderBy = None,
    limit: Annotated[int | None, option(None, "Return at most this number of rows.")] = None,
    page_rows: Annotated[int | None, option(None, "The largest number of rows in a page.")] = None,
    pages: Annotated[
        int | None, option(None, "Stop after this number; stderr gets the key to continue.", min=1)
    ] = None,
    key: Annotated[str | None, option("KEY", "Continue a stopped scan; name no TABLE.")] = None,
    option: Annotated[Texts, option("NAME=TEXT", "Option of a cluster's table: model=json.")] = None,
    format_: Format = None,
) -> None:
    """Read every row of a snapshot exactly once, while tablets move.

    From a Redis or Valkey cluster (redis://host:7000/person): each key that exists during the whole scan.
    Prints a table (by default 20 rows); --json and --format print all rows, one per line. `export` writes
    files. A scan can stop after any page and continue by its key, also elsewhere and after moves.

    Example: elasticscan scan trips.store trips --filter 'km > 9' --columns id,km --format csv
    """
    settings = {
        "columns": names_of(columns),
        "filter": filter,
        "snapshot": snapshot,
        "index": index,
        "order_by": order_by,
        "limit": limit,
        "page_rows": page_rows,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    if key is not None and (table or given):
        raise InvalidOption(
            "--key continues a scan with its own settings; leave out TABLE and the settings", option="--key"
        )
    is_preview = limit is None and pages is None and format_ is None and not is_json()
    if is_preview and key is None:
        given["limit"] = SHOWN_ROWS + 1
    with _opened(uri, option) as store:
        begun = store.table(table).scan(**given) if key is None else store.resume(key)
        of = "of a cluster" if is_cluster(uri) else f"of snapshot {begun.snapshot}"
        batches = (page.rows for page in islice(begun, pages))
        try:
            print_rows(begun.schema, batches, format_, of, SHOWN_ROWS if is_preview else None)
        finally:
            # `close` would end the scan's lease, which the printed key needs.
            if pages is None or begun.key is None:
                begun.close()
        if pages is not None and begun.key is not None:
            print_json_line({"continuation_key": begun.key}, stderr=True)


def changes(
    uri: Uri,
    table: Table,
    after: Annotated[
        str | None, option(None, "Begin after this commit, tag or time; by default with the oldest.")
    ] = None,
    upto: Annotated[str | None, option(None, "The last commit, tag or time; by default the newest.")] = None,
    columns: Columns = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    format_: Format = None,
) -> None:
    """Read the changes of commits: each insert, update and delete exactly once, while tablets move.

    Rows have the table's columns and _change_type, _commit_version and _commit_timestamp.

    Example: elasticscan changes trips.store trips --after 2026-03-01T12:00Z --json
    """
    with (
        elasticscan.open(uri) as store,
        store.table(table).changes(after, upto, names_of(columns), filter) as begun,
    ):
        of = f"of changes up to commit {begun.snapshot}"
        print_rows(begun.schema, begun.batches(), format_, of, SHOWN_ROWS)


def print_rows(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], form: str | None, of: str, most: int | None = None
) -> None:
    """Print rows as CSV or JSON lines, or the first `most` as a table for people."""
    if form == "csv" and not is_json():
        with naming_file("stdout", "written"):
            sink = pa.PythonFile(sys.stdout.buffer, "w")
            with import_module("pyarrow.csv").CSVWriter(sink, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        return
    rows = (row for batch in batches for row in batch.to_pylist())
    if form == "json" or is_json():
        for row in rows:
            print_json_line(row)
        return
    number = show_rows(schema, islice(rows, most))
    more = "; there are more: --limit or --format" if next(rows, None) is not None else ""
    say(f"{counted(number, 'row')} {of}{more}.")


def count(
    uri: Uri,
    table: Table,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
) -> None:
    """Count the rows of a snapshot, or those that meet a condition.

    Example: elasticscan count trips.store trips --filter "city = 'Oslo'"
    """
    with _opened(uri) as store:
        begun = store.table(table).scan(filter=filter, snapshot=snapshot)
        value = {"table": table, "rows": begun.count()}
    if is_cluster(uri):
        return answer(value, f"{counted(value['rows'], 'key')}.")
    value["snapshot"] = begun.snapshot
    answer(value, f"{counted(value['rows'], 'row')} of snapshot {begun.snapshot}.")


def _opened(uri: str, options: list[str] | None = None) -> Any:
    """Open a store, or a cluster with inferred column types."""
    if is_cluster(uri):
        return open_cluster(uri, **{"inferSchema": "true"} | pairs_of(options, "--option"))
    return elasticscan.open(uri)


def get(
    uri: Uri,
    table: Table,
    keys: Annotated[list[str], argument("KEY...", "Keys; 5,mon for several columns. Put -- before -5.")],
    columns: Columns = None,
    snapshot: Snapshot = None,
) -> None:
    """Read the rows of primary keys, in the order of the keys.

    Prints a table, or with --json one object per line. A key that does not exist has no row.

    Example: elasticscan get trips.store trips 7 9
    """
    with elasticscan.open(uri) as store:
        opened = store.table(table)
        rows = opened.get(keys_of(keys, opened), names_of(columns), snapshot)
    print_rows(rows.schema, rows.to_batches(), None, f"of {counted(len(keys), 'key')}")


def keys_of(texts: Sequence[str], table: elasticscan.Table) -> pa.Table:
    """Parse keys from the command line; a key of several columns is a line of CSV."""
    fields = pa.schema([table.schema.field(name) for name in table.primary_key])
    try:
        rows = [[text] if len(fields) == 1 else next(csv.reader([text]), []) for text in texts]
        columns = zip(fields.names, zip(*rows, strict=True), strict=True)
        return pa.table(dict(columns)).cast(fields)
    except (pa.ArrowException, csv.Error, ValueError, NotImplementedError) as error:
        types = ", ".join(f"{field.name} {field.type}" for field in fields)
        raise InvalidOption(
            f"a KEY must have values of {types}, as in 5,mon: {error}", option="KEY"
        ) from error


def aggregate(
    uri: Uri,
    table: Table,
    values: Annotated[
        list[str], argument("VALUE...", '"count(*)", "sum(km) AS km", "count(DISTINCT city)", …')
    ],
    by: Annotated[Texts, option("A,B", "The columns to group by.")] = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
) -> None:
    """Compute count, sum, min, max and avg of the rows of a snapshot, by group.

    Each row counts once, while tablets move. Types and results are those of Spark. Groups are sorted.

    Example: elasticscan aggregate trips.store trips 'count(*)' 'avg(km) AS km' --by city
    """
    groups = names_of(by) or []
    with elasticscan.open(uri) as store:
        rows = store.table(table).aggregate(values, groups, filter, snapshot)
    if groups:
        rows = rows.sort_by([(name, "ascending") for name in groups])
    print_rows(rows.schema, rows.to_batches(), None, "of the result")


def sql(
    uri: Uri,
    query: Annotated[str, argument("QUERY", "A SELECT of DuckDB's SQL, in quotes.")],
    limit: Annotated[int | None, option(None, "Print at most this number of rows.", min=0)] = None,
) -> None:
    """Query the tables of a store with DuckDB: all of them at one snapshot, each row once.

    Every table that the query names is read completely, page by page. For few rows of a large table, use
    scan, get and aggregate, which use its indexes. Needs pip install 'elasticscan\\[sql]'.

    Example: elasticscan sql trips.store 'SELECT city, count(*) FROM trips GROUP BY ALL'
    """
    try:
        import duckdb  # an optional extra  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InvalidOption("sql needs the package 'duckdb': pip install 'elasticscan[sql]'") from None
    with elasticscan.open(uri) as store, duckdb.connect() as database:
        tables = store.tables()
        snapshot = store.status()["snapshot"]
        for table in tables:
            database.register(table.name, _AtSnapshot(table, snapshot))
        try:
            if [each.type for each in duckdb.extract_statements(query)] != [duckdb.StatementType.SELECT]:
                raise InvalidOption("sql takes one SELECT; update, delete, load and export do the rest")
            result = database.sql(query)
            reader = (result if limit is None else result.limit(limit)).to_arrow_reader(SHOWN_ROWS * 1_000)
            print_rows(reader.schema, reader, None, "of the result", SHOWN_ROWS if limit is None else None)
        except duckdb.Error as error:
            raise InvalidOption(f"DuckDB: {error}", option="QUERY") from error


class _AtSnapshot:
    """A table at a snapshot as an Arrow stream; each reference in a query starts a new scan."""

    def __init__(self, table: elasticscan.Table, snapshot: int) -> None:
        self._table, self._snapshot = table, snapshot

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.scan(snapshot=self._snapshot).__arrow_c_stream__(requested_schema)


def explain(
    uri: Uri,
    table: Table,
    columns: Columns = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
    index: IndexChoice = None,
    order_by: OrderBy = None,
    analyze: Annotated[bool, switch("--analyze", "Run the scan, and print the counted rows, too.")] = False,
) -> None:
    """Explain which access path a scan would choose and why, and from which shards it would read.

    Example: elasticscan explain trips.store trips --filter 'id < 10' --analyze
    """
    with (
        elasticscan.open(uri) as store,
        store.table(table).scan(
            names_of(columns), filter, index=index or "auto", order_by=order_by, snapshot=snapshot
        ) as begun,
    ):
        explained = begun.explain()
        if analyze:
            begun.count()
            explained["actual"] = begun.explain()["actual"]
    candidates = [each | {"rows_scanned": round(each["rows_scanned"])} for each in explained["candidates"]]
    keys = "access", "condition", "remainder", "rows_scanned", "reason"
    actual = ", ".join(f"{name} {number:,}" for name, number in explained["actual"].items())
    text = Group(
        f"{table}   snapshot {explained['snapshot']}   filter {explained['filter'] or 'none'}",
        listing(keys, cells(candidates, keys)),
        f"chosen: {explained['access']}{f' ({actual})' if analyze else ''}",
        *(
            f"reads: {part['scan']} of {part['slots']:,} slots at {part['shard']}"
            for part in explained["scans"]
        ),
    )
    answer(explained, text)
