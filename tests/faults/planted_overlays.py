"""Faults of rows laid over a large fragment; see `planted`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from elasticscan.metadata import Fragment
from elasticscan.storage import overlay, pages, view
from elasticscan.storage.overlay import Overlay
from tests.faults.planted import Finder, fault, replacing


@fault("programs", "a newer row replaces the row with its key, and no other")
@replacing(Overlay, "_places")
def mask_of_replaced_rows_is_off_by_one(honest: Any, self: Overlay, *args: Any) -> Any:
    places, replaces = honest(self, *args)
    return np.where(replaces, np.maximum(places - 1, 0), places), replaces


@fault("programs", "newer rows behind the last row of a batch leave with it, before the page ends there")
@replacing(Overlay, "_lay_over")
def batches_end_before_their_newer_rows(honest: Any, self: Overlay, index: int, *of: Any) -> Any:
    batch, last = honest(self, index, *of), self._reader.slot_ranges[index][1]
    return batch.slice(0, pages.rows_below(batch.column("_slot").to_numpy(), last + 1))


@fault("programs", "a row of the large fragment that is newer than the overlaid rows stays")
@replacing(Overlay, "__init__")
def older_rows_are_laid_over_newer_ones(honest: Any, self: Overlay, *args: Any) -> None:
    honest(self, *args)
    self._is_older = True


@fault("programs", "nothing is laid over a fragment whose own rows say that a key was deleted")
@replacing(view, "_parts_of")
def rows_are_laid_over_tombstones(honest: Any, fragments: Sequence[Fragment], *args: Any) -> Any:
    return honest([dataclasses.replace(fragment, tombstones=0) for fragment in fragments], *args)


# Rules that one function keeps, and the replacement of that function.
in_programs = Finder("programs")
in_programs.rule("a tombstone takes away the row of the large fragment").alters(
    overlay, "Patch", lambda honest, *args: honest(*args[:-1], np.zeros_like(args[-1]))
)
in_programs.rule("an overlaid batch serves only snapshots that have the same newer rows").sets(
    overlay, "_digest", lambda index, newer: 1 + index
)
in_programs.rule("rows of slots between two requested slots stay where they are").alters(
    pages,
    "_rows_within",
    lambda honest, slots, row, edges, room: honest(slots, row, edges[[0, -1]], room),
)
