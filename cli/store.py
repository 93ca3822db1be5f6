"""create, status, tables, ui."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from rich.console import Group, RenderableType
from rich.text import Text

import elasticscan
from elasticscan.base.clock import seconds_of
from elasticscan.base.limits import DEFAULT_SLOTS, DEFAULT_TABLETS
from elasticscan.base.redaction import shown
from elasticscan.cli.maintenance import until_stopped
from elasticscan.cli.options import Uri, option, shards_of, switch
from elasticscan.cli.output import answer, answer_rows, is_json, listing, print_json_line, say, warn
from elasticscan.ui import TABLETS, make_server, sections, warnings_of

PORT = 8765


def create(
    uri: Uri,
    shard: Annotated[
        list[str], option("NAME[=ROOT]", "A shard, optionally with its storage root.", "--shard")
    ],
    tablets: Annotated[int, option(None, "Number of tablets.")] = DEFAULT_TABLETS,
    slots: Annotated[int, option(None, "Number of hash buckets; cannot be changed later.")] = DEFAULT_SLOTS,
    retention: Annotated[
        str, option("TIME", "How long snapshots stay readable, such as 7d, 12h or 30m.")
    ] = "7d",
) -> None:
    """Create a store.

    Example: elasticscan create trips.store --shard s1=/mnt/a --shard s2=/mnt/b --retention 30d
    """
    shards, seconds = shards_of(shard), seconds_of("--retention", retention)
    with elasticscan.create(uri, shards, tablets, slots, retention_seconds=seconds) as store:
        made = store.status()
    answer(made, f"Created {shown(uri)}: {len(made['tablets'])} tablets at {', '.join(shards)}.")


def status(
    uri: Uri,
    tablets: Annotated[
        bool, switch("--tablets", "Show only the tablets, with their ids for move, split and join.")
    ] = False,
) -> None:
    """Show shards, tables, moves, streams and leases, or the tablets; neighbours there can be joined."""
    with elasticscan.open(uri) as store:
        state = store.status()
    if tablets:
        answer_rows(state["tablets"], TABLETS)
    else:
        answer(state, _drawn(shown(uri), state))


def _drawn(uri: str, status: Mapping[str, Any]) -> RenderableType:
    tablets = f"{len(status['tablets'])} tablets over {status['slots']:,} slots"
    head = f"   topology {status['topology']}   snapshot {status['snapshot']}   {tablets}"
    parts: list[RenderableType] = [Text.assemble((uri, "bold"), head)]
    parts += [Text(text, style="red") for text in warnings_of(status)]
    for title, keys, rows in sections(status):
        parts += [Text(), Text(title, style="bold"), listing(keys, rows)]
    return Group(*parts)


def tables(uri: Uri) -> None:
    """List the tables and their columns."""
    with elasticscan.open(uri) as store:
        figures = {table["name"]: table for table in store.status()["tables"]}
        rows = [
            {
                "name": table.name,
                "primary_key": list(table.primary_key),
                "shard_key": list(table.shard_key),
                "columns": {field.name: str(field.type) for field in table.schema},
                **{key: figures[table.name][key] for key in ("compression", "rows", "rows_exact", "bytes")},
            }
            for table in store.tables()
            if table.name in figures
        ]
    keys = "name", "rows", "bytes", "compression", "primary_key", "columns"
    answer_rows(rows, keys, "no tables yet; `elasticscan load` makes one")


def ui(
    uri: Uri,
    host: Annotated[str, option("ADDRESS", "Where to listen; visitors need no password.")] = "127.0.0.1",
    port: Annotated[int, option(None, "The port; 0 for any free port.", min=0, max=65_535)] = PORT,
) -> None:
    """Serve a page for a browser that shows a store while it changes, until stopped; changes nothing.

    Example: elasticscan ui trips.store --port 0
    """
    server = make_server(uri, host, port)
    if is_json():
        print_json_line({"url": server.url, "port": server.port})
    else:
        say(f"{shown(uri)}: {server.url}   (Ctrl-C ends it)")
    if server.is_beyond:
        warn(f"Every visitor of {host} sees the status of the store: there is no password.", "yellow")
    with until_stopped():
        server.run()
