"""The slot map has the colour of the right shard everywhere, and is a picture that any viewer can read."""

from __future__ import annotations

import random
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from elasticscan.topology import SlotMap, Topology, initial_placement, split_tablet
from elasticscan.topology.slot_map import _LEFT, _WIDTH
from tests.topology.moved import move_tablet

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ((1, "s1"), (2, "a<b&c"), (3, "s3"))


def history(seed: int, slots: int, length: int) -> tuple[Topology, ...]:
    chance = random.Random(seed)
    placement = initial_placement(slots, 8, [1, 2])
    topologies = []
    for number in range(1, length + 1):
        topologies.append(Topology(number, placement, NAMES, 1_760_000_000.0 + number, f"<change> {number}"))
        tablet = chance.choice(placement.tablets)
        if tablet.end - tablet.start > 1 and chance.random() < 0.3:
            new = max(t.id for t in placement.tablets) + 1
            middle = chance.randrange(tablet.start + 1, tablet.end)
            placement = placement.replaced(*split_tablet(tablet, middle, (new, new + 1)))
        else:
            target = chance.choice([shard for shard, _ in NAMES if shard != tablet.shard])
            placement = move_tablet(placement, tablet.id, target)
    return tuple(topologies)


@pytest.mark.parametrize(
    ("slots", "length"), [(8, 1), (64, 30), (4_096, 100), pytest.param(65_536, 300, marks=pytest.mark.long)]
)
def test_every_row_has_the_colours_of_its_topology(slots: int, length: int) -> None:
    topologies = history(slots, slots, length)
    picture = ET.fromstring(SlotMap(topologies).svg)
    swatches = picture.findall(f"{SVG}rect")[1:]
    labels = [text.text for text in picture.findall(f"{SVG}text")[: len(swatches)]]
    shard_of = {name: shard for shard, name in NAMES}
    shard_by_colour = {
        rect.get("fill"): shard_of[label or ""] for rect, label in zip(swatches, labels, strict=True)
    }
    groups = picture.findall(f"{SVG}g")
    assert len(groups) == length
    bottom = 0
    for topology, group in zip(topologies, groups, strict=True):
        assert (group.findtext(f"{SVG}title") or "").endswith(f"UTC: <change> {topology.number}")
        right, colour_at = float(_LEFT), dict[tuple[float, float], str | None]()
        stripes = group.findall(f"{SVG}rect")
        for rect in stripes:
            assert abs(float(rect.get("x") or "") - right) < 0.01, "stripes leave no gap"
            left, right = right, right + float(rect.get("width") or "")
            colour_at[left, right] = rect.get("fill")
        assert not [a for a, b in pairwise(colour_at.values()) if a == b], "splits leave no trace"
        ((top, height),) = {(int(rect.get("y") or ""), int(rect.get("height") or "")) for rect in stripes}
        assert top >= bottom and abs(right - _LEFT - _WIDTH) < 0.01
        bottom = top + height
        for slot in range(0, slots, max(1, slots // 64)):
            x = _LEFT + (slot + 0.5) / slots * _WIDTH
            same_dot = range(max(0, slot - slots // _WIDTH), min(slots, slot + slots // _WIDTH + 1))
            owners = {topology.placement.tablet_of(at).shard for at in same_dot}
            (colour,) = [colour for (left, right), colour in colour_at.items() if left <= x < right]
            assert shard_by_colour[colour] in owners


def test_it_says_what_it_shows_in_a_notebook() -> None:
    shown = SlotMap(history(1, 64, 3))
    assert repr(shown) == "SlotMap(topologies 1 to 3; .svg is the picture)"
    assert shown._repr_html_() == shown.svg
    title = ET.fromstring(shown.svg).findtext(f"{SVG}title") or ""
    assert title.startswith("64 slots from 2025-10-09 ")


def test_a_shard_keeps_its_colour_when_others_go() -> None:
    def colours(shards: list[int]) -> dict[str, str]:
        placement = initial_placement(64, len(shards), shards)
        names = tuple((shard, f"s{shard}") for shard in shards)
        drawn = ET.fromstring(SlotMap((Topology(1, placement, names, 0.0, ""),)).svg)
        fills = [rect.get("fill") or "" for rect in drawn.findall(f"{SVG}rect")[1:]]
        labels = [text.text or "" for text in drawn.findall(f"{SVG}text")]
        return dict(zip(labels, fills, strict=False))

    assert colours([2, 3]).items() <= colours([1, 2, 3]).items()
    assert len(set(colours([*range(1, 13)]).values())) == 12
