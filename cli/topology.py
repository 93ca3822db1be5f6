"""expand, contract, rebalance, move, split, join, topologies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from elasticscan.base.errors import InvalidOption
from elasticscan.cli.options import Json, Speed, Tablet, Uri, bytes_of, shards_of
from elasticscan.cli.output import answer, listing, progress, when
from elasticscan.cli.picture import colours, shard_lines
from elasticscan.store import OnProgress, Store
from elasticscan.topology import Topology, TopologyEntry


def expand(
    uri: Uri,
    shard: Annotated[list[str], typer.Argument(metavar="NAME[=ROOT]...", help="Shards to add.")],
    bytes_per_second: Speed = None,
    json: Json = False,
) -> None:
    """Add shards that are not there yet, and move the fewest tablets that balance."""
    names, roots = shards_of(shard)
    with Store.open(uri) as store, _moves("moving tablets in") as moved:
        how = store.elasticity(bytes_of(bytes_per_second, "--bytes-per-second"), moved)
        before = store.topology.number
        topology = store.expand_with(how, names, roots)
        are = "These shards are" if len(names) > 1 else f"Shard {names[0]} is"
        nothing = f"{are} there already, and tablets are balanced; nothing moved."
        _report(store, topology, json, nothing * (topology.number == before))


def contract(
    uri: Uri,
    shard: Annotated[str, typer.Argument(metavar="SHARD", help="The shard to empty and remove.")],
    bytes_per_second: Speed = None,
    json: Json = False,
) -> None:
    """Move all tablets off a shard and remove it."""
    with Store.open(uri) as store, _moves(f"emptying {shard}") as moved:
        topology = store.elasticity(bytes_of(bytes_per_second, "--bytes-per-second"), moved).contract(shard)
        _report(store, topology, json)


def rebalance(uri: Uri, bytes_per_second: Speed = None, json: Json = False) -> None:
    """Move the fewest tablets that balance the shards."""
    with Store.open(uri) as store, _moves("balancing") as moved:
        how = store.elasticity(bytes_of(bytes_per_second, "--bytes-per-second"), moved)
        before = store.topology.number
        balanced = how.rebalance()
        _report(
            store, balanced, json, "The shards are balanced; nothing moved." * (balanced.number == before)
        )


def move(
    uri: Uri,
    tablet: Annotated[
        int | None, typer.Argument(metavar="TABLET", help="A tablet's id, as `status --tablets` lists it.")
    ] = None,
    shard: Annotated[str | None, typer.Argument(metavar="SHARD", help="Where it shall live.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish the moves of processes that died.")
    ] = False,
    bytes_per_second: Speed = None,
    json: Json = False,
) -> None:
    """Move one tablet, or finish what processes that died left behind."""
    if resume == (tablet is not None) or (tablet is None) != (shard is None):
        raise InvalidOption("name a TABLET and a SHARD, or --resume and neither", option="--resume")
    with Store.open(uri) as store, _moves("resuming moves") as moved:
        how = store.elasticity(bytes_of(bytes_per_second, "--bytes-per-second"), moved)
        if tablet is not None and shard is not None:
            _report(store, how.move(tablet, shard), json)
            return
        resumed = how.resume()
    answer(json, {"moves_resumed": resumed}, f"{resumed} interrupted moves finished.")


def split(
    uri: Uri,
    tablet: Tablet,
    at: Annotated[
        int | None, typer.Option(help="The right half's first slot; the middle by default.")
    ] = None,
    json: Json = False,
) -> None:
    """Cut a tablet in two; copies nothing."""
    with Store.open(uri) as store:
        _report(store, store.split(tablet, at), json)


def join(
    uri: Uri,
    left: Annotated[
        int, typer.Argument(metavar="LEFT", help="A tablet's id, as `status --tablets` lists it.")
    ],
    right: Annotated[int, typer.Argument(metavar="RIGHT", help="The id of its right neighbour.")],
    json: Json = False,
) -> None:
    """Make two neighbouring tablets of one shard one; copies nothing."""
    with Store.open(uri) as store:
        _report(store, store.join(left, right), json)


def topologies(
    uri: Uri,
    json: Json = False,
    limit: Annotated[int | None, typer.Option(help="The newest so many; all by default.")] = None,
    svg: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw them: slots across, time down; up to 1,000, 100 by default."),
    ] = None,
) -> None:
    """List the topologies that are kept, oldest first; the last may be of a plan that still moves tablets."""
    with Store.open(uri) as store:
        if svg is not None:
            slot_map = store.slot_map(100 if limit is None else limit)
            svg.write_text(slot_map.svg, encoding="utf-8")
            drawn = [topology.number for topology in slot_map.topologies]
            said = f"Topologies {drawn[0]} to {drawn[-1]}: {svg}"
            return answer(json, {"svg": str(svg), "first": drawn[0], "last": drawn[-1]}, Text(said))
        history = [_value(entry) for entry in store.topology_history(limit)]
    shown = listing("topology", "published", "tablets", "reason")
    for topology in history:
        colour = colours(list(topology["shards"]))
        tablets = "  ".join(f"[{colour[name]}]{name}[/] {n}" for name, n in topology["shards"].items())
        published = when(topology["created_at"]) if topology["published"] else "under way"
        shown.add_row(str(topology["topology"]), published, tablets, topology["reason"])
    answer(json, history, shown)


@contextmanager
def _moves(title: str) -> Iterator[OnProgress]:
    with progress() as bar:
        task = bar.add_task(title, total=None, note="")

        def moved(done: int, planned: int) -> None:
            bar.update(task, completed=done, total=planned, note=f"{done} of {planned}")

        yield moved


def _report(store: Store, topology: Topology, as_json: bool, instead: str = "") -> None:
    said = Text(instead or f"Topology {topology.number}: {topology.reason}")
    answer(as_json, _value(topology.entry), Group(said, shard_lines(store.status())))


def _value(entry: TopologyEntry) -> dict[str, Any]:
    """An entry of the topology history as plain values."""
    return {
        "topology": entry.number,
        "created_at": entry.created_at,
        "published": entry.published,
        "reason": entry.reason,
        "shards": dict(entry.tablets),
    }
