"""Redis and Valkey clusters in the terminal: a scan that begins, and the slot map while it changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from elasticscan.backends import open_backend
from elasticscan.base.errors import InvalidOption
from elasticscan.base.showing import utc
from elasticscan.base.user_files import naming_file
from elasticscan.cli.output import console, listing, print_json_line, say
from elasticscan.cli.picture import BLOCK, COLOURS
from elasticscan.topology import SlotMap, Topology

BLOCKS = 64  # of a line, each for so many slots
SHOWN_LINES = 24  # the newest topologies, on a terminal
_SECONDS = 0.5
_NOT_OF_CLUSTERS = ("snapshot", "index", "order_by")


@contextmanager
def begun_scan(
    uri: str, table: str | None, key: str | None, options: dict[str, str], asked: dict[str, Any]
) -> Iterator[Any]:
    """Begin the scan of a cluster that options ask for, or go on with the one of a key."""
    for name in _NOT_OF_CLUSTERS:
        if name in asked:
            option = f"--{name.replace('_', '-')}"
            raise InvalidOption(f"{option} is not for a Redis or Valkey cluster; leave it out", option=option)
    backend: Any = open_backend(uri, {"inferSchema": "true"} | options)
    with backend.store as store:
        yield store.resume(key) if key is not None else backend.table(table or "").scan(**asked)


def show_topologies(uri: str, as_json: bool, watch: bool, most: int | None, svg: Path | None) -> None:
    """Print where the slots of a cluster are; with `watch` also each change, until interrupted."""
    backend: Any = open_backend(uri, {})
    seen: list[Topology] = []
    with backend.store as store, suppress(KeyboardInterrupt):
        found = _topologies(store, watch, most)
        if as_json:
            for topology in found:
                seen.append(topology)
                print_json_line(_value(topology))
        elif console().is_terminal and watch:
            with Live(console=console(), auto_refresh=False) as live:
                for topology in found:
                    seen.append(topology)
                    live.update(_drawn(seen[-SHOWN_LINES:]), refresh=True)
        else:
            for topology in found:
                seen.append(topology)
                say(_drawn([topology]))
        if not watch and not as_json:
            say(listing("master, slots", _value(seen[-1])["slots"].items()))
    if svg is not None:
        with naming_file(str(svg), "written"):
            svg.write_text(SlotMap(tuple(seen)).svg, encoding="utf-8")


def _topologies(store: Any, watch: bool, most: int | None) -> Iterator[Topology]:
    """Yield the placement of a cluster, and with `watch` each that differs from the one before."""
    before, number = None, 0
    while True:
        placement, names = store.placement()
        owners = [(t.start, t.end, t.shard) for t in placement.tablets]
        if owners != before:
            number, before = number + 1, owners
            yield Topology(number, placement, tuple(sorted(names.items())), time.time(), "seen")
        if not watch or number == most:
            return
        time.sleep(_SECONDS)


def _drawn(topologies: list[Topology]) -> Table:
    """Draw a line of blocks for each topology, each block in the colour of the master with its first slot."""
    lines = Table.grid(padding=(0, 2))
    for topology in topologies:
        blocks, step = Text(), topology.placement.slot_count // BLOCKS
        for slot in range(0, topology.placement.slot_count, step):
            shard = topology.placement.tablet_of(slot).shard
            blocks.append(BLOCK, COLOURS[shard % len(COLOURS)] if shard else "dim")
        lines.add_row(Text(utc(topology.created_at), "dim"), blocks)
    legend = Text()
    for shard, name in topologies[-1].shard_names:
        legend.append(f"{BLOCK} {name}  ", COLOURS[shard % len(COLOURS)])
    lines.add_row(Text(), legend)
    return lines


def _value(topology: Topology) -> dict[str, Any]:
    placement, names = topology.placement, dict(topology.shard_names)
    slots = {names.get(shard, "unserved"): len(placement.at(shard)) for shard in placement.shards}
    return {
        "topology": topology.number,
        "seen_at": topology.created_at,
        "slots": slots,
        "ranges": [[t.start, t.end, names.get(t.shard, "unserved")] for t in placement.tablets],
    }
