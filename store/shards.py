"""The in-process shells of the scan protocol: placements from the catalog, pages from the disks."""

from __future__ import annotations

from collections.abc import Sequence

from elasticscan.base.errors import FragmentDamaged
from elasticscan.metadata import Fragment
from elasticscan.protocol import ChangeSpan, Cursor, IndexOrder, PageRequest, PageRows
from elasticscan.storage import (
    Bounds,
    ChangeRange,
    IndexSource,
    MayMatch,
    PageLimits,
    PageSource,
    RunReader,
    cursors_of,
    pieces_of,
    read_changes,
    read_index_page,
    read_page,
)
from elasticscan.store.context import Context, TableState
from elasticscan.topology import Placement


class CatalogPlacements:
    """Placements as the catalog has them at the moment of asking."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def current(self) -> Placement:
        return self._context.placement()


class LocalShards:
    """Reads a shard's own files. What a shard serves is looked up anew for each page.

    It answers from the fragments that speak for the slots *now*, like a server would from what it
    owns: rows of a tablet that just left are absent. The scan's second look finds that out.

    Args:
        context: the store.
        may_match: what statistics say about fragments and their blocks; a direct scan passes over
            those without a row that can meet its filter.
    """

    def __init__(self, context: Context, may_match: MayMatch | None = None) -> None:
        self._context, self._may_match = context, may_match

    def read_page(self, request: PageRequest) -> PageRows:
        failed: TableState | None = None
        while True:
            state = self._context.table_state(request.table, request.snapshot)
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
        bounds = Bounds(state.floor(request.snapshot), request.snapshot)
        if request.changes is not None:
            return self._read_changes(request, request.changes, state)
        if request.order is None:
            return self._read_direct(request, state, bounds)
        return self._read_index(request, request.order, state, bounds)

    def _read_direct(self, request: PageRequest, state: TableState, bounds: Bounds) -> PageRows:
        view = state.view(request.shard)
        source = PageSource(state.table, view, self._context.opener(state.table), self._may_match)
        pieces = pieces_of([(cursor.slots, cursor.position) for cursor in request.cursors])
        page = read_page(source, pieces, bounds, request.columns, _limits(request))
        after = tuple(Cursor(slots, position) for slots, position in cursors_of(page.left))
        return PageRows(page.rows, page.slots, after, page.scanned, page.skipped)

    def _read_changes(self, request: PageRequest, span: ChangeSpan, state: TableState) -> PageRows:
        open_fragment = self._context.opener(state.table)
        source = PageSource(state.table, state.view(request.shard), open_fragment)
        page = read_changes(
            source,
            pieces_of([(cursor.slots, cursor.position) for cursor in request.cursors]),
            ChangeRange(span.after, span.upto, span.floor, span.overwrite),
            request.columns,
            _limits(request),
            span.feed,
        )
        after = tuple(Cursor(slots, position) for slots, position in cursors_of(page.left))
        return PageRows(page.rows, page.slots, after, page.scanned)

    def _read_index(
        self, request: PageRequest, order: IndexOrder, state: TableState, bounds: Bounds
    ) -> PageRows:
        index = state.index(order.index)

        def runs_of(fragment: Fragment) -> Sequence[RunReader]:
            return [
                self._context.open_run(state.table, index, request.shard, run)
                for run in state.runs(fragment, index)
            ]

        view = state.view(request.shard)
        source = IndexSource(state.table, index, view, runs_of, self._context.opener(state.table))
        cursors = [(cursor.slots, cursor.position) for cursor in request.cursors]
        limits = _limits(request)
        page = read_index_page(
            source, cursors, order.ranges, order.descending, bounds, request.columns, limits
        )
        after = tuple(Cursor(slots, position) for slots, position in page.left)
        return PageRows(page.rows, page.slots, after, page.scanned)


def _limits(request: PageRequest) -> PageLimits:
    return PageLimits(request.page_rows, request.page_bytes)
