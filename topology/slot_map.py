"""The slot map: a self-contained SVG picture of where the slots were in each topology.

Slots run from left to right and time runs down. Each topology is a row and each shard has a colour. So a move
is a change of colour and a new shard is a new colour. Splits and joins are not visible.
"""

from __future__ import annotations

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
_HEIGHT, _LOWEST, _HIGHEST = 480, 2, 18  # the rows together, approximately; the limits of one row


@dataclass(frozen=True, slots=True)
class SlotMap:
    """Consecutive topologies, at least one, oldest first. Notebooks show the picture.

    `shards` are the (id, name) of the present shards, so that a shard without tablets has a colour, too.
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
        height = max(_LOWEST, min(_HIGHEST, _HEIGHT // len(self.topologies)))
        names = {shard: str(shard) for topology in self.topologies for shard in topology.placement.shards}
        shown = names.keys() | dict(self.shards).keys()
        for known in (*(topology.shard_names for topology in self.topologies), self.shards):
            names |= dict(known)
        # The colour depends on the shard's id, so it stays the same when other shards are removed.
        colours = {shard: COLOURS[(shard - 1) % len(COLOURS)] for shard in sorted(shown)}
        parts, x = [], _LEFT
        for shard, colour in colours.items():
            parts.append(f'<rect x="{x}" y="16" width="12" height="12" fill="{colour}"/>')
            parts.append(words(x + 17, 26, names[shard]))
            x += 34 + 8 * len(names[shard])
        labelled = -_LINE
        for at, topology in enumerate(self.topologies):
            y = _TOP + at * height
            parts.append(_row(topology, y, height, colours))
            if y - labelled >= _LINE:
                text = f"{_time(topology):%H:%M:%S}  topology {topology.number}"
                parts.append(words(_LEFT - 8, y + min(height, _LINE) - 3, text, ends=True))
                labelled = y
        first, last = self.topologies[0], self.topologies[-1]
        times = f"{_time(first):%Y-%m-%d %H:%M:%S} to {_time(last):%Y-%m-%d %H:%M:%S} UTC"
        title = f"{last.placement.slot_count:,} slots from {times}"
        size = max(_LEFT + _WIDTH + 12, x), _TOP + height * len(self.topologies) + 8
        return picture(*size, title, parts)


def _row(topology: Topology, y: int, height: int, colours: dict[int, str]) -> str:
    """Return a row of dots. Each dot has the colour of the slot at its middle."""
    placement = topology.placement
    dots = min(_WIDTH, placement.slot_count)
    middles = (2 * np.arange(dots) + 1) * placement.slot_count // (2 * dots)
    shards = placement.owners[np.searchsorted(placement.starts, middles, "right") - 1].tolist()
    drawn, x = "", float(_LEFT)
    for shard, run in groupby(shards):
        width = sum(1 for _ in run) * _WIDTH / dots
        drawn += f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{height}" fill="{colours[shard]}"/>'
        x += width
    tooltip = f"topology {topology.number}, {_time(topology):%Y-%m-%d %H:%M:%S} UTC: {topology.reason}"
    return f"<g><title>{escape(tooltip)}</title>{drawn}</g>"


def _time(topology: Topology) -> datetime:
    return datetime.fromtimestamp(topology.created_at, UTC)
