"""Faults of rows laid over a large fragment; see `planted`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from elasticscan.storage import overlay, pages
from elasticscan.storage.overlay import Overlay
from tests.faults.planted import Patch, fault


@fault("programs", "a newer row replaces the row with its key, and no other")
def mask_of_replaced_rows_is_off_by_one(patch: Patch) -> None:
    honest = Overlay._places

    def shifted(self: Overlay, *args: Any) -> Any:
        places, replaces = honest(self, *args)
        return np.where(replaces, np.maximum(places - 1, 0), places), replaces

    patch.setattr(Overlay, "_places", shifted)


@fault("programs", "newer rows behind the last row of a batch leave with it, before the page ends there")
def batches_end_before_their_newer_rows(patch: Patch) -> None:
    honest = Overlay._lay_over

    def hasty(self: Overlay, index: int) -> Any:
        batch, last = honest(self, index), self._large.reader.slot_range(index)[1]
        return batch.slice(0, pages.rows_below(batch.column("_slot").to_numpy(), last + 1))

    patch.setattr(Overlay, "_lay_over", hasty)


@fault("programs", "a tombstone takes away the row of the large fragment")
def tombstones_laid_over_hide_nothing(patch: Patch) -> None:
    honest = overlay._chosen
    patch.setattr(overlay, "_chosen", lambda *args: honest(*args[:-1], np.zeros_like(args[-1])))


@fault("programs", "rows of slots that left a fragment are not laid over others")
def rows_of_slots_that_left_are_laid_over(patch: Patch) -> None:
    patch.setattr(overlay, "_served", lambda fragment, rows: rows)


@fault("programs", "what is laid over is that of the snapshot, and nothing newer")
def overlays_are_shared_by_all_snapshots(patch: Patch) -> None:
    honest = overlay.run_of

    def of_any(layers: Any, open_fragment: Any, columns: Any, primary_key: Any, bounds: Any) -> Any:
        later = replace(bounds, snapshot=1 << 40)
        return honest(layers, open_fragment, columns, primary_key, later)

    patch.setattr(pages, "run_of", of_any)
