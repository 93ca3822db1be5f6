"""create, status, tables, drop."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import DEFAULT_SLOTS, DEFAULT_TABLETS
from elasticscan.base.redaction import shown
from elasticscan.cli.options import Json, Table, Uri, seconds_of, shards_of
from elasticscan.cli.output import answer, listing
from elasticscan.cli.picture import picture, row_count, stream_listing, table_size, tablet_listing
from elasticscan.store import Store, streams_of

NO_STREAMS = "[dim]no streams; one with the option `streamName` is listed here[/dim]"
NO_TABLES = "[dim]no tables yet; `elasticscan load` makes one[/dim]"


def create(
    uri: Uri,
    shard: Annotated[
        list[str],
        typer.Option("--shard", metavar="NAME[=ROOT]", help="A shard, with its storage root or without."),
    ],
    tablets: Annotated[int, typer.Option(help="Tablets to start with.")] = DEFAULT_TABLETS,
    slots: Annotated[int, typer.Option(help="Hash buckets, fixed for ever.")] = DEFAULT_SLOTS,
    hash: Annotated[str, typer.Option(help="spark (Murmur3) or java (hashCode).")] = "spark",  # noqa: A002
    retention: Annotated[
        str, typer.Option(metavar="TIME", help="How long snapshots stay readable, as in 7d, 12h or 30m.")
    ] = "7d",
    json: Json = False,
) -> None:
    """Make a store."""
    names, roots = shards_of(shard)
    if roots and len(roots) < len(names):
        bare = next(name for name in names if name not in roots)
        raise InvalidOption(f"shard {bare!r} has no root; give every shard one, or none", option="--shard")
    retention_seconds = seconds_of(retention, "--retention")
    with Store.create(
        uri, roots or names, tablets, slots, hash=hash, retention_seconds=retention_seconds
    ) as store:
        made = store.status()
    answer(json, made, f"Created {shown(uri)}: {len(made['tablets'])} tablets at {', '.join(names)}.")


def status(
    uri: Uri,
    streams: Annotated[
        bool, typer.Option("--streams", help="Only the streams, and how far each is behind its table.")
    ] = False,
    tablets: Annotated[
        bool, typer.Option("--tablets", help="Only the tablets: the ids that move, split and join take.")
    ] = False,
    json: Json = False,
) -> None:
    """Show shards, tablets, tables, moves, streams and leases."""
    if streams and tablets:
        raise InvalidOption("--streams and --tablets are two listings; ask for one", option="--tablets")
    with Store.open(uri) as store:
        if streams:
            followed = streams_of(store.context)
            answer(json, followed, stream_listing(followed) if followed else NO_STREAMS)
            return
        state = store.status()
    drawn = tablet_listing(state) if tablets else picture(shown(uri), state)
    answer(json, state["tablets"] if tablets else state, drawn)


def tables(uri: Uri, json: Json = False) -> None:
    """List the tables and their columns."""
    with Store.open(uri) as store:
        counts = {table["name"]: table for table in store.status()["tables"]}
        infos = [
            {
                "name": table.name,
                "primary_key": list(table.primary_key),
                "shard_key": list(table.shard_key),
                "compression": table.definition.compression,
                "columns": {field.name: str(field.type) for field in table.schema},
                **{figure: counts[table.name][figure] for figure in ("rows", "rows_exact", "bytes")},
            }
            for table in store.tables()
            if table.name in counts
        ]
    lines = listing("table", "rows", "size", "primary key", "columns", right=("rows", "size"))
    for table in infos:
        columns = ", ".join(f"{name} [dim]{escape(kind)}[/dim]" for name, kind in table["columns"].items())
        keys = ", ".join(table["primary_key"])
        lines.add_row(table["name"], row_count(table), table_size(table), keys, columns)
    answer(json, infos, lines if infos else NO_TABLES)


def drop(
    uri: Uri,
    table: Table,
    yes: Annotated[bool, typer.Option("--yes", help="Needed: the table's rows are gone then.")] = False,
    json: Json = False,
) -> None:
    """Drop a table with its rows and its history; a later gc removes its files."""
    with Store.open(uri) as store:
        handle = store.table(table)
        if not yes:
            raise InvalidOption(
                f"this would drop table {table!r} with all its rows, and nothing brings them back; say --yes "
                "if that is meant",
                option="--yes",
            )
        handle.drop()
    answer(json, {"dropped": table}, f"Table [bold]{escape(table)}[/bold] is dropped; gc removes its files.")
