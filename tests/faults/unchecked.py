"""Ways around single checks of the log; the broken rule then shows only in rows or files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasticscan.base.limits import MAX_SLOTS
from elasticscan.catalog import checks
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.table_state import TableState
from elasticscan.metadata import FileChanges, HorizonRaised, IndexDefined, IndexPhase
from elasticscan.store.context.lookups import KnownTable
from elasticscan.topology import Placement, SlotSet

Patch = pytest.MonkeyPatch


def unchecked(patch: Patch, kind: type) -> None:
    """Accept each record of a kind."""
    patch.setitem(checks._CHECKS, kind, lambda *_: None)


class Anywhere:
    """A placement in which each shard has all slots."""

    def at(self, _: int) -> SlotSet:
        return SlotSet.span(0, MAX_SLOTS)


def files_may_lie_anywhere(patch: Patch) -> None:
    honest = checks._check_files

    def anywhere(state: StoreState, table: TableState, changes: FileChanges, _: Placement) -> None:
        honest(state, table, changes, Anywhere())

    patch.setattr(checks, "_check_files", anywhere)


def _read_without_runs(patch: Patch) -> None:
    """Let a reader treat a file without an index run as a file without entries."""
    patch.setattr(KnownTable, "runs", lambda self, f, index: self._runs.get((f.id, index.id), []))


def files_may_lack_runs(patch: Patch) -> None:
    honest = checks._check_files

    def of_no_index(state: StoreState, table: TableState, changes: FileChanges, placement: Placement) -> None:
        added = tuple(replace(each, runs=()) for each in changes.added)
        honest(state, replace(table, indexes=()), replace(changes, added=added), placement)

    _read_without_runs(patch)
    patch.setattr(checks, "_check_files", of_no_index)


def condemned_files_may_come(patch: Patch) -> None:
    patch.setattr(checks, "_check_not_condemned", lambda *_: None)


def indexes_may_be_unfinished(patch: Patch) -> None:
    honest = checks._check_index

    def entered(state: StoreState, record: IndexDefined) -> None:
        honest(state, replace(record, index=replace(record.index, phase=IndexPhase.BUILDING)))

    _read_without_runs(patch)
    patch.setitem(checks._CHECKS, IndexDefined, entered)


def horizons_may_pass_tags(patch: Patch) -> None:
    honest = checks._check_horizon

    def without_tags(state: StoreState, record: HorizonRaised) -> None:
        bare: dict[int, Any] = {number: replace(own, tags=()) for number, own in state.tables.items()}
        honest(replace(state, tables=bare), record)

    patch.setitem(checks._CHECKS, HorizonRaised, without_tags)
