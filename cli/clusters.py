"""The slot map of a Redis or Valkey cluster in the terminal, also while it changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from elasticscan.backends import open_cluster
from elasticscan.base.showing import utc
from elasticscan.base.user_files import naming_file
from elasticscan.cli.output import print_json_line, say
from elasticscan.cli.picture import BLOCK, COLOURS
from elasticscan.topology import SlotMap, Topology

BLOCKS = 64  # of a line, each for so many slots
_SECONDS = 0.5


def show_topologies(uri: str, as_json: bool, watch: bool, most: int | None, svg: Path | None) -> None:
    """Print where the slots of a cluster are; with `watch` also each change, until interrupted."""
    seen: list[Topology] = []
    with suppress(KeyboardInterrupt):
        for topology in _topologies(uri, watch, most):
            seen.append(topology)
            value = _value(topology)
            if as_json:
                print_json_line(value)
            else:
                say(_drawn(topology, value["slots"]))
    if svg is not None:
        with naming_file(str(svg), "written"):
            svg.write_text(SlotMap(tuple(seen)).svg, encoding="utf-8")


def _topologies(uri: str, watch: bool, most: int | None) -> Iterator[Topology]:
    """Yield the placement of a cluster, and with `watch` each that differs from the one before."""
    before, number = None, 0
    with open_cluster(uri) as store:
        while True:
            cluster = store.connections.read_map()
            owners = [(t.start, t.end, t.shard) for t in cluster.placement.tablets]
            if owners != before:
                number, before = number + 1, owners
                names = tuple(sorted(cluster.shard_names.items()))
                yield Topology(number, cluster.placement, names, time.time(), "seen")
            if not watch or number == most:
                return
            time.sleep(_SECONDS)


def _drawn(topology: Topology, slots: dict[str, int]) -> Table:
    """Draw a line of blocks, each in the colour of the master with its first slot, and name the masters."""
    blocks, legend, placement = Text(), Text(), topology.placement
    for slot in range(0, placement.slot_count, placement.slot_count // BLOCKS):
        shard = placement.tablet_of(slot).shard
        blocks.append(BLOCK, COLOURS[shard % len(COLOURS)] if shard else "dim")
    for shard, name in topology.shard_names:
        legend.append(f"{BLOCK} {name}: {slots.get(name, 0):,} slots\n", COLOURS[shard % len(COLOURS)])
    lines = Table.grid(padding=(0, 2))
    lines.add_row(Text(utc(topology.created_at), "dim"), blocks)
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
