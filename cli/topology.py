"""expand, contract, rebalance, move, split, join, topologies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import elasticscan
from elasticscan.backends import is_cluster, open_cluster
from elasticscan.base.errors import InvalidOption
from elasticscan.base.formatting import utc
from elasticscan.base.user_files import naming_file
from elasticscan.cli.options import Limit, Uri, argument, option, shards_of, switch
from elasticscan.cli.output import answer, answer_rows, is_json, print_json_line, progress, say
from elasticscan.topology import SlotMap, Topology

_WATCH_SECONDS = 0.5
TABLET = "A tablet's id; `status --tablets` lists them."


def expand(
    uri: Uri,
    shard: Annotated[list[str], argument("NAME[=ROOT]...", "Shards to add.")],
) -> None:
    """Add missing shards, and move the fewest tablets that balance the shards.

    Example: elasticscan expand trips.store s3=/mnt/c
    """
    shards = shards_of(shard)
    with elasticscan.open(uri) as store, progress("moving tablets in"):
        before = store.topology.number
        _report(store.expand(shards), before)


def contract(
    uri: Uri,
    shard: Annotated[str, argument("SHARD", "The shard to empty and remove.")],
) -> None:
    """Move all tablets off a shard and remove it."""
    with elasticscan.open(uri) as store, progress(f"emptying {shard}"):
        _report(store.contract(shard))


def rebalance(uri: Uri) -> None:
    """Move the fewest tablets that balance the shards."""
    with elasticscan.open(uri) as store, progress("balancing"):
        before = store.topology.number
        _report(store.rebalance(), before)


def move(
    uri: Uri,
    tablet: Annotated[int | None, argument("TABLET", TABLET)] = None,
    shard: Annotated[str | None, argument("SHARD", "The new shard of the tablet.")] = None,
    resume: Annotated[bool, switch("--resume", "Finish moves whose processes died.")] = False,
) -> None:
    """Move one tablet, or finish moves whose processes died.

    Example: elasticscan move trips.store 5 s2
    """
    if resume == (tablet is not None) or (tablet is None) != (shard is None):
        raise InvalidOption("name a TABLET and a SHARD, or only --resume", option="--resume")
    with elasticscan.open(uri) as store, progress("moving"):
        if tablet is not None and shard is not None:
            return _report(store.move(tablet, shard))
        resumed = store.resume_moves()
    answer({"moves_resumed": resumed}, f"{resumed} interrupted moves finished.")


def split(
    uri: Uri,
    tablet: Annotated[int, argument("TABLET", TABLET)],
    at: Annotated[int | None, option(None, "The right half's first slot; by default the middle.")] = None,
) -> None:
    """Split a tablet into two, without copying files.

    Example: elasticscan split trips.store 5
    """
    with elasticscan.open(uri) as store:
        _report(store.split(tablet, at))


def join(
    uri: Uri,
    left: Annotated[int, argument("LEFT", TABLET)],
    right: Annotated[int, argument("RIGHT", "The id of its right neighbour.")],
) -> None:
    """Join two neighbouring tablets of one shard, without copying files.

    Example: elasticscan join trips.store 5 6
    """
    with elasticscan.open(uri) as store:
        _report(store.join(left, right))


def topologies(
    uri: Uri,
    limit: Limit = None,
    svg: Annotated[
        Path | None, option("FILE", "Draw them: slots across, time down; 100 by default, 1,000 at most.")
    ] = None,
    watch: Annotated[bool, switch("--watch", "For a cluster: print each change, until Ctrl-C.")] = False,
) -> None:
    """List the kept topologies, oldest first; while tablets move, the last one is not yet complete.

    A Redis or Valkey cluster keeps none: prints the current one, with --watch also later ones.

    Example: elasticscan topologies trips.store --svg slots.svg
    """
    if is_cluster(uri):
        seen, values = list[Topology](), []
        with suppress(KeyboardInterrupt):
            for now in _of_cluster(uri, limit if watch else 1):
                names, at = dict(now.shard_names), now.placement.at
                slots = {names.get(shard, "unserved"): len(at(shard)) for shard in now.placement.shards}
                seen.append(now)
                values.append(_value(now, slots))
                if watch:
                    _print_change(values[-1])
        drawn = SlotMap(tuple(seen)).svg if seen else ""
    elif watch:
        raise InvalidOption("--watch is for clusters; `elasticscan ui` shows a store", option="--watch")
    else:
        with elasticscan.open(uri) as store:
            values = [_value(entry, dict(entry.tablets)) for entry in store.topology_history(limit)]
            drawn = store.slot_map(100 if limit is None else limit).svg if svg else ""
    if svg is not None:
        with naming_file(str(svg), "written"):
            svg.write_text(drawn, encoding="utf-8")
    if not watch:
        answer_rows(values, ("topology", "created_at", "published", "shards", "reason"))


def _of_cluster(uri: str, most: int | None) -> Iterator[Topology]:
    """Yield the current topology of a cluster, then each changed one."""
    before, number = None, 0
    with open_cluster(uri) as store:
        while True:
            found = store.connections.read_map()
            owners = [(tablet.start, tablet.end, tablet.shard) for tablet in found.placement.tablets]
            if owners != before:
                before, number = owners, number + 1
                names = tuple(sorted(found.shard_names.items()))
                yield Topology(number, found.placement, names, time.time(), "seen")
            if number == most:
                return
            time.sleep(_WATCH_SECONDS)


def _print_change(value: dict[str, Any]) -> None:
    if is_json():
        print_json_line(value)
    else:
        slots = "  ".join(f"{name} {number:,}" for name, number in value["shards"].items())
        say(f"{utc(value['created_at'])}   {slots}")


def _report(topology: Any, before: int = 0) -> None:
    """Print the topology, and whether it changed."""
    text = f"Topology {topology.number}: {topology.reason}"
    if topology.number == before:
        text = "The shards exist and are balanced; nothing moved."
    answer(_value(topology.entry, dict(topology.entry.tablets)), text)


def _value(entry: Any, shards: dict[str, int]) -> dict[str, Any]:
    return {
        "topology": entry.number,
        "created_at": entry.created_at,
        "published": entry.published,
        "reason": entry.reason,
        "shards": shards,
    }
