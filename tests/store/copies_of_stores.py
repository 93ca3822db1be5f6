"""Copies of a store that are stores of their own, for tests that begin with what another one has."""

from __future__ import annotations

import shutil
from pathlib import Path

from elasticscan.base.clock import Clock
from elasticscan.store import Store


def copied_store(original: Path, place: Path, clock: Clock | None = None) -> Path:
    """Copy a store's directory, and let the copy take writes; returns its place."""
    shutil.copytree(original, place)
    with Store.open(place, clock=clock, upkeep="off") as store:
        store.adopt()
    return place
