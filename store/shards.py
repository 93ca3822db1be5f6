"""The in-process shells of the scan protocol: placements from the catalog, pages from the disks."""

from __future__ import annotations

from elasticscan.base.errors import FragmentDamaged
from elasticscan.reader import Cursor, PageRequest, PageRows
from elasticscan.storage import Bounds, Page, PageLimits, PageSource, cursors_of, pieces_of, read_page
from elasticscan.store.context import Context
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
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def read_page(self, request: PageRequest) -> PageRows:
        try:
            page = self._read(request)
        except FragmentDamaged:
            # A file may have been collected between the look-up and the opening, by another
            # process, after a compaction. Then there is a newer layout; otherwise it is damage.
            page = self._read(request)
        after = tuple(Cursor(slots, position) for slots, position in cursors_of(page.left))
        return PageRows(page.rows, page.slots, after)

    def _read(self, request: PageRequest) -> Page:
        state = self._context.table_state(request.table, request.snapshot)
        source = PageSource(state.table, state.view(request.shard), self._context.open_fragment)
        return read_page(
            source,
            pieces_of([(cursor.slots, cursor.position) for cursor in request.cursors]),
            Bounds(state.floor(request.snapshot), request.snapshot),
            request.columns,
            PageLimits(request.page_rows, request.page_bytes),
        )
