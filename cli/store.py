"""create, status, tables, backup, restore, ui."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

import elasticscan
from elasticscan.base.clock import seconds_of
from elasticscan.base.limits import DEFAULT_SLOTS, DEFAULT_TABLETS
from elasticscan.base.redaction import shown
from elasticscan.cli.maintenance import until_stopped
from elasticscan.cli.options import Uri, pairs_of, shards_of
from elasticscan.cli.output import answer, counted, is_json, listing, print_json_line, say, section, warn
from elasticscan.ui import TABLETS, make_server, sections, size

PORT = 8765


def create(
    uri: Uri,
    shard: Annotated[
        list[str],
        typer.Option("--shard", metavar="NAME[=ROOT]", help="A shard, with its storage root or without."),
    ],
    tablets: Annotated[int, typer.Option(help="Tablets to start with.")] = DEFAULT_TABLETS,
    slots: Annotated[int, typer.Option(help="Hash buckets, fixed for ever.")] = DEFAULT_SLOTS,
    retention: Annotated[
        str, typer.Option(metavar="TIME", help="How long snapshots stay readable, as in 7d, 12h or 30m.")
    ] = "7d",
) -> None:
    """Make a store.

    Example: elasticscan create trips.store --shard s1=/mnt/a --shard s2=/mnt/b --retention 30d
    """
    shards, seconds = shards_of(shard), seconds_of("--retention", retention)
    with elasticscan.create(uri, shards, tablets, slots, retention_seconds=seconds) as store:
        made = store.status()
    answer(made, f"Created {shown(uri)}: {len(made['tablets'])} tablets at {', '.join(shards)}.")


def status(
    uri: Uri,
    tablets: Annotated[
        bool, typer.Option("--tablets", help="Only the tablets: the ids that move, split and join take.")
    ] = False,
) -> None:
    """Show shards, tables, moves, streams and leases; or tablets, of which neighbours can be joined."""
    with elasticscan.open(uri) as store:
        state = store.status()
    if tablets:
        goes = {move["tablet"]: move["to"] for move in state["moves"]}
        rows = [{**each, "moving_to": goes.get(each["id"])} for each in state["tablets"]]
        answer(rows, section(sorted(rows, key=lambda each: each["slots"]), TABLETS))
    else:
        answer(state, _drawn(shown(uri), state))


def _drawn(uri: str, status: Mapping[str, Any]) -> RenderableType:
    tablets = f"{len(status['tablets'])} tablets over {status['slots']:,} slots"
    head = f"   topology {status['topology']}   snapshot {status['snapshot']}   {tablets}"
    parts: list[RenderableType] = [Text.assemble((uri, "bold"), head)]
    if status["outdated"]:
        parts.append(Text(status["outdated"], style="red"))
    if status["read_only"]:
        text = f"for reading alone, scans take no leases: {status['read_only']}"
        parts.append(Text(text, style="yellow"))
    for title, keys, rows in sections(status):
        parts += [Text(), Text(title, style="bold"), listing(keys, rows)]
    return Group(*parts)


def tables(uri: Uri) -> None:
    """List the tables and their columns."""
    with elasticscan.open(uri) as store:
        figures = {table["name"]: table for table in store.status()["tables"]}
        found = [
            {
                "name": table.name,
                "primary_key": list(table.primary_key),
                "shard_key": list(table.shard_key),
                "columns": {field.name: str(field.type) for field in table.schema},
                **{of: figures[table.name][of] for of in ("compression", "rows", "rows_exact", "bytes")},
            }
            for table in store.tables()
            if table.name in figures
        ]
    keys = "name", "rows", "bytes", "compression", "primary_key", "columns"
    rows = [{**each, "columns": [" ".join(column) for column in each["columns"].items()]} for each in found]
    none = "no tables yet; `elasticscan load` makes one"
    answer(found, section(rows, keys) if rows else none)


def backup(
    uri: Uri,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A new place for it: a directory or a URI.")
    ],
) -> None:
    """Copy a whole store as of now, with all snapshots that it keeps.

    Example: elasticscan backup trips.store /mnt/backups/monday
    """
    with elasticscan.open(uri) as store:
        made = store.backup(target)
    text = f"Snapshot {made.snapshot} is backed up: {counted(made.files, 'file')}, {size(made.bytes)}."
    answer(asdict(made), text)


def restore(
    source: Annotated[str, typer.Argument(metavar="BACKUP", help="The place of a backup.")],
    uri: Annotated[str, typer.Argument(metavar="URI", help="Where the new store is made.")],
    root: Annotated[
        list[str] | None,
        typer.Option("--root", metavar="SHARD=ROOT", help="A shard's root; else in the store's directory."),
    ] = None,
) -> None:
    """Make a store of a backup.

    Example: elasticscan restore /mnt/backups/monday restored.store
    """
    with elasticscan.Store.from_backup(source, uri, pairs_of(root, "--root")) as store:
        state = store.status()
    tables = {table["name"]: table["rows"] for table in state["tables"]}
    value = {"store": shown(uri), "snapshot": state["snapshot"], "tables": tables}
    text = f"{shown(uri)} holds snapshot {state['snapshot']} with {counted(len(tables), 'table')}."
    answer(value, text)


def ui(
    uri: Uri,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Where to listen; beyond this machine there is no password."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 for any that is free.")] = PORT,
    open: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,  # noqa: A002
) -> None:
    """Serve a page for a browser that shows a store while it changes; reads only, until stopped.

    Example: elasticscan ui trips.store --port 0 --open
    """
    server = make_server(uri, host, port)
    if is_json():
        print_json_line({"url": server.url, "host": server.host, "port": server.port})
    else:
        say(f"{shown(uri)}: {server.url}   (Ctrl-C ends it)")
    if server.is_beyond:
        warn(f"Every visitor of {host} sees the status of the store: there is no password.", "yellow")
    if open:
        webbrowser.open(server.url)
    with until_stopped():
        server.run()
