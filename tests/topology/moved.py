"""Placements after a move, for tests of what follows from them."""

from __future__ import annotations

from dataclasses import replace

from elasticscan.topology import Placement


def move_tablet(placement: Placement, tablet_id: int, target: int) -> Placement:
    """Return the placement once another shard serves a tablet."""
    tablet = placement.tablet(tablet_id)
    assert tablet is not None and tablet.shard != target, f"tablet {tablet_id} is there already, or gone"
    return placement.replaced((tablet,), (replace(tablet, shard=target, epoch=tablet.epoch + 1),))
