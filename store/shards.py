"""The scan protocol in one process: placements from the catalog, pages from the disks."""

from __future__ import annotations

from collections.abc import Sequence

from elasticscan.base.errors import FragmentDamaged
from elasticscan.metadata import Fragment
from elasticscan.protocol import Cluster, KeyList, PageRequest, PageRows
from elasticscan.storage import (
    IndexSource,
    PageSource,
    RunReader,
    read_changes,
    read_index_page,
    read_listed,
    read_page,
    read_ranges,
)
from elasticscan.store.context import Context
from elasticscan.store.lookups import TableState
from elasticscan.topology import Placement


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
        page = self._read_newest(request)
        self._context.checkpoint("page read")
        return page

    def _read_newest(self, request: PageRequest) -> PageRows:
        failed: TableState | None = None
        after = None if request.changes is None else request.changes.after
        while True:
            state = self._context.table_state(request.table, request.snapshot, after)
            self._context.checkpoint("page looked up")
            try:
                return self._read(request, state)
            except FragmentDamaged:
                # A file may have been collected between the look-up and the opening, by another
                # process, after a compaction. Then there is a newer layout; otherwise it is damage.
                if failed is not None and failed.layout == state.layout:
                    self._context.check_root(request.shard)  # a disk that is not mounted is no damage
                    raise
                failed = state

    def _read(self, request: PageRequest, state: TableState) -> PageRows:
        table, view, floor = state.table, state.view(request.shard), state.floor(request.snapshot)
        open_fragment = self._context.readers.opener(table)
        if request.order is not None:
            index = state.index(request.order.index)

            def runs_of(fragment: Fragment) -> Sequence[RunReader]:
                runs = state.runs(fragment, index)
                return [self._context.readers.open_run(table, index, request.shard, run) for run in runs]

            source = IndexSource(table, view, open_fragment, floor, index=index, runs=runs_of)
            return read_index_page(source, request)

        statistics = self._context.statistics(table.id).fragments if request.key_sets else {}
        if request.keys is not None:
            read_by_key = read_listed if isinstance(request.keys, KeyList) else read_ranges
            return read_by_key(PageSource(table, view, open_fragment, floor), request)
        rows = PageSource(table, view, open_fragment, floor, lambda fragment: statistics.get(fragment.id))
        return read_page(rows, request) if request.changes is None else read_changes(rows, request)
