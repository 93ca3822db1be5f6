"""The slot map: where the slots were, topology after topology, as an SVG that needs nothing else.

Slots go from left to right and time goes down, a row for each topology and a colour for each shard. So a move
is a change of colour, a shard that joins is a colour that appears, and splits and joins leave no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

import numpy as np

from elasticscan.base.drawing import COLOURS, picture, words

if TYPE_CHECKING:  # a topology is shown as a map of one row
    from elasticscan.topology.values import Topology

_LEFT, _WIDTH, _TOP, _LINE = 150, 800, 44, 14
_HEIGHT, _LOWEST, _HIGHEST = 480, 2, 18  # of all rows about, and of one


@dataclass(frozen=True, slots=True)
class SlotMap:
    """Some topologies that follow one another, oldest first; at least one. Notebooks show it as a picture.

    `shards` are (id, name) of the present shards, so that each has a colour before it gets tablets.
    """

    topologies: tuple[Topology, ...]
    shards: tuple[tuple[int, str], ...] = ()

    def __repr__(self) -> str:
        first, last = self.topologies[0].number, self.topologies[-1].number
        return f"SlotMap(topologies {first} to {last}; .svg is the picture)"

    def _repr_html_(self) -> str:
        return self.svg

    @property
    def svg(self) -> str:
        """The picture, as the text of an SVG file."""
        row = max(_LOWEST, min(_HIGHEST, _HEIGHT // len(self.topologies)))
        names = {shard: str(shard) for topology in self.topologies for shard in topology.placement.shards}
        shown = sorted(names.keys() | dict(self.shards).keys())
        for topology in self.topologies:
            names |= dict(topology.shard_names)
        names |= dict(self.shards)
        # A shard's colour is that of its id, so that it stays when others go.
        colours = {shard: COLOURS[(shard - 1) % len(COLOURS)] for shard in shown}
        parts = _legend([(names[shard], colour) for shard, colour in colours.items()])
        labelled = -_LINE
        for at, topology in enumerate(self.topologies):
            y = _TOP + at * row
            parts.append(_row(topology, y, row, colours))
            if y - labelled >= _LINE:
                text = f"{_time(topology):%H:%M:%S}  topology {topology.number}"
                baseline = y + min(row, _LINE) - 3
                parts.append(words(_LEFT - 8, baseline, text, ends=True))
                labelled = y
        first, last = self.topologies[0], self.topologies[-1]
        title = (
            f"{last.placement.slot_count:,} slots from {_time(first):%Y-%m-%d %H:%M:%S} to "
            f"{_time(last):%Y-%m-%d %H:%M:%S} UTC"
        )
        return picture(_LEFT + _WIDTH + 12, _TOP + row * len(self.topologies) + 8, title, parts)


def _legend(shards: Sequence[tuple[str, str]]) -> list[str]:
    parts, x = [], _LEFT
    for name, colour in shards:
        if x + 26 + 8 * len(name) > _LEFT + _WIDTH:
            parts.append(words(x, 26, "…"))
            break
        parts.append(f'<rect x="{x}" y="16" width="12" height="12" fill="{colour}"/>')
        parts.append(words(x + 17, 26, name))
        x += 34 + 8 * len(name)
    return parts


def _row(topology: Topology, y: int, height: int, colours: dict[int, str]) -> str:
    paths = _paths(topology, _LEFT, y, height)
    drawn = "".join(f'<path fill="{colours[shard]}" d="{path}"/>' for shard, path in paths.items())
    said = f"topology {topology.number}, {_time(topology):%Y-%m-%d %H:%M:%S} UTC: {topology.reason}"
    return f"<g><title>{escape(said)}</title>{drawn}</g>"


def _paths(topology: Topology, x: int, y: int, height: int) -> dict[int, str]:
    """Return a stripe of dots, each in the colour of the slot at its middle."""
    placement = topology.placement
    dots = min(_WIDTH, placement.slot_count)
    middles = (2 * np.arange(dots) + 1) * placement.slot_count // (2 * dots)
    shards = placement.owners[np.searchsorted(placement.starts, middles, "right") - 1].tolist()
    paths: dict[int, list[str]] = {}
    at = 0
    for shard, run in groupby(shards):
        length = sum(1 for _ in run)
        left, right = (x + edge * _WIDTH / dots for edge in (at, at + length))
        paths.setdefault(shard, []).append(f"M{left:g} {y}H{right:g}v{height}H{left:g}z")
        at += length
    return {shard: "".join(path) for shard, path in paths.items()}


def _time(topology: Topology) -> datetime:
    return datetime.fromtimestamp(topology.created_at, UTC)
