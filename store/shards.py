"""The scan protocol in one process: placements from the catalog, pages from the disks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from elasticscan.base.errors import FragmentDamaged
from elasticscan.metadata import Fragment
from elasticscan.protocol import (
    Cluster,
    IndexOrder,
    KeyList,
    PageRequest,
    PageRows,
    RowAnswer,
    RowRequest,
)
from elasticscan.storage import (
    IndexSource,
    PageSource,
    RunReader,
    read_changes,
    read_index_page,
    read_listed,
    read_page,
    read_ranges,
    read_rows,
)
from elasticscan.store.context import Context
from elasticscan.store.lookups import TableState
from elasticscan.topology import Placement

Answer = TypeVar("Answer")


class CatalogPlacements:
    """Placements as the catalog has them at the moment of asking."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def current(self) -> Placement:
        return self._context.placement()


def local_cluster(context: Context) -> Cluster:
    """The store's own catalog and disks."""
    return Cluster(CatalogPlacements(context), LocalShards(context))


class LocalShards:
    """Reads a shard's own files. What a shard serves is looked up anew for each page.

    It answers from the fragments that serve the slots *now*, like a server would from what it
    owns: rows of a tablet that just left are absent. The scan's second look finds that out.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def read_page(self, request: PageRequest) -> PageRows:
        self._context.checkpoint("page asked for")
        after = None if request.changes is None else request.changes.after
        page = self._read_newest(request, partial(self._read, request), after)
        self._context.checkpoint("page read")
        return page

    def read_rows(self, request: RowRequest) -> RowAnswer:
        self._context.checkpoint("page asked for")

        def read(state: TableState) -> RowAnswer:
            return read_rows(self._rows_of(state, request), request)

        answer = self._read_newest(request, read, layout=request.layout)
        self._context.checkpoint("page read")
        return answer

    def _read_newest(
        self,
        request: PageRequest | RowRequest,
        read: Callable[[TableState], Answer],
        after: int | None = None,
        layout: int | None = None,
    ) -> Answer:
        failed: TableState | None = None
        while True:
            state = self._context.table_state(request.table, request.snapshot, after, layout)
            self._context.checkpoint("page looked up")
            try:
                return read(state)
            except FragmentDamaged:
                # A file may have been collected between the look-up and the opening, by another
                # process, after a compaction. Then there is a newer layout; otherwise it is damage.
                if failed is not None and failed.layout == state.layout:
                    self._context.check_root(request.shard)  # a disk that is not mounted is no damage
                    raise
                failed, layout = state, None

    def _rows_of(self, state: TableState, request: PageRequest | RowRequest) -> PageSource:
        """What a shard has of a table."""
        view, floor = state.view(request.shard), state.floor(request.snapshot)
        return PageSource(state.table, view, self._context.readers.opener(state.table), floor)

    def _read(self, request: PageRequest, state: TableState) -> PageRows:
        source = self._rows_of(state, request)
        if request.order is not None:
            return read_index_page(self._through_index(source, state, request.shard, request.order), request)
        if request.keys is not None:
            read_by_key = read_listed if isinstance(request.keys, KeyList) else read_ranges
            return read_by_key(source, request)
        if request.key_sets:
            statistics = self._context.statistics(state.table.id).fragments
            source = replace(source, statistics=lambda fragment: statistics.get(fragment.id))
        return read_page(source, request) if request.changes is None else read_changes(source, request)

    def _through_index(
        self, rows: PageSource, state: TableState, shard: int, order: IndexOrder
    ) -> IndexSource:
        index = state.index(order.index)

        def runs_of(fragment: Fragment) -> Sequence[RunReader]:
            runs = state.runs(fragment, index)
            return [self._context.readers.open_run(rows.table, index, shard, run) for run in runs]

        return IndexSource(rows.table, rows.view, rows.open, rows.floor, index=index, runs=runs_of)
