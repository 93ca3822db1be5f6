"""The scan protocol in one process: placements from the catalog, pages from the disks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.base.errors import FragmentDamaged, TableChanged
from elasticscan.base.limits import LOOK_SECONDS
from elasticscan.metadata import COMMIT_VERSION, Fragment, TableInfo
from elasticscan.protocol import IndexOrder, KeyList, PageRequest, PageRows, RowAnswer, RowRequest
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
from elasticscan.store.context.lookups import KnownTable
from elasticscan.store.context.shared import Context
from elasticscan.topology import Placement

Answer = TypeVar("Answer")


class CatalogPlacements:
    """Placements read from the catalog, now or within the last second."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def current(self) -> Placement:
        began, placement = self._context.clock.now(), self._context.placement()
        self._context.looked = placement, began
        return placement

    def recent(self, looked: Placement | None) -> Placement:
        """Return the last placement read, as `Placements.recent`, if this process knows of no later change.

        After a pause it is read again: files may have been collected, and the snapshot may have expired.
        """
        last = self._context.looked
        if last is not None and (looked is None or last[0] is looked):
            since = self._context.clock.now() - last[1]
            if 0 <= since < LOOK_SECONDS and self.layout_of(last[0]) is not None:
                return last[0]
        return self.current()

    def layout_of(self, placement: Placement) -> int | None:
        """Return the newest layout that this process knows, if it still has this placement; else None."""
        known = self._context.catalog.known
        return None if known is None or known.placement is not placement else known.layout


class LocalShards:
    """Reads pages and rows from the files of a shard.

    It reads the fragments of the placement that planned the page, or of a newer one, as a server of a shard
    would: rows of a tablet that has just left may be missing. The scan detects this with the placement that
    it reads after the page.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def read_page(self, request: PageRequest) -> PageRows:
        def read(state: KnownTable) -> PageRows:
            page = self._page(request, state)
            of_changes = request.changes is not None
            return replace(page, rows=_rows_as_of(page.rows, state.table, request.definition, of_changes))

        return self._read_newest(request, read, None if request.changes is None else request.changes.after)

    def read_rows(self, request: RowRequest) -> RowAnswer:
        def read(state: KnownTable) -> RowAnswer:
            answer = read_rows(self._rows_of(state, request), request)
            if not request.columns:
                return answer
            # The columns are nullable, because deleted rows are returned as nulls.
            rows = _rows_as_of(answer.rows, state.table, request.definition, False, nullable=True)
            return replace(answer, rows=rows)

        return self._read_newest(request, read)

    def _read_newest(
        self,
        request: PageRequest | RowRequest,
        read: Callable[[KnownTable], Answer],
        after: int | None = None,
    ) -> Answer:
        """Read from the state of the request's layout; if a file is missing or damaged, from a newer one."""
        failed, layout = 0, request.layout
        self._context.sync_point("page asked for")
        while True:
            state = self._context.table_state(request.table, request.snapshot, after, layout)
            self._context.sync_point("page looked up")
            try:
                answer = read(state)
            except FragmentDamaged:
                # Another process may have compacted and collected the file after the lookup. Then there is
                # a newer layout; otherwise the file is damaged.
                if failed == state.layout:
                    self._context.check_root(request.shard)  # raises if the disk is not mounted
                    raise
                failed, layout = state.layout, None
            else:
                self._context.sync_point("page read")
                return answer

    def _rows_of(self, state: KnownTable, request: PageRequest | RowRequest) -> PageSource:
        """Return the fragments that a shard has of a table."""
        view, floor, table = state.view(request.shard), state.floor(request.snapshot), state.table
        if request.definition is not None:
            table = table.named_as(request.definition)
        return PageSource(
            table, view, self._context.readers.opener(table), floor, prefetch=self._context.readers.prefetch
        )

    def _page(self, request: PageRequest, state: KnownTable) -> PageRows:
        source = self._rows_of(state, request)
        if request.order is not None:
            return read_index_page(self._through_index(source, state, request.order), request)
        if request.keys is not None:
            read_by_key = read_listed if isinstance(request.keys, KeyList) else read_ranges
            return read_by_key(source, request)
        if request.key_sets and request.definition in (None, state.table.definition):
            # Statistics have the column names of the newest definition.
            statistics = self._context.statistics(state)
            source = replace(source, statistics=lambda fragment: statistics.get(fragment.id))
        return read_page(source, request) if request.changes is None else read_changes(source, request)

    def _through_index(self, rows: PageSource, state: KnownTable, order: IndexOrder) -> IndexSource:
        index = state.index(order.index)

        def runs_of(fragment: Fragment) -> Sequence[RunReader]:
            runs = state.runs(fragment, index)
            return [self._context.readers.open_run(rows.table, index, fragment.shard, run) for run in runs]

        return IndexSource(
            rows.table, rows.view, rows.open, rows.floor, prefetch=rows.prefetch, index=index, runs=runs_of
        )


def _rows_as_of(
    rows: pa.RecordBatch, table: TableInfo, definition: int | None, changes: bool, nullable: bool = False
) -> pa.RecordBatch:
    """Return rows with the columns and types of an older definition.

    A snapshot from before the change fits them. Only a scan of changes may read later commits: their rows are
    null in a column that was dropped before them, even if files have values, and must fit the older type.
    """
    if definition is None or definition == table.definition:
        return rows
    schema, columns = table.at(definition).schema, table.by_name(definition)
    arrays, fields = list(rows.columns), list(rows.schema)
    for at, field in enumerate(rows.schema):
        column = columns.get(field.name)
        if column is None:  # a column that the store adds
            continue
        if column.until is not None and changes:
            is_earlier = pc.less_equal(rows.column(COMMIT_VERSION), column.last_commit)
            arrays[at] = pc.if_else(is_earlier, arrays[at], pa.scalar(None, field.type))
        older = schema.field(field.name)
        fields[at] = older.with_nullable(True) if nullable else older
        arrays[at] = _narrowed(arrays[at], fields[at], table)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _narrowed(array: pa.Array, field: pa.Field, table: TableInfo) -> pa.Array:
    with suppress(pa.ArrowInvalid):
        if field.nullable or not array.null_count:
            return array if array.type == field.type else array.cast(field.type)
    raise TableChanged(
        f"column {field.name!r} of table {table.name!r} was dropped or widened since this read began, "
        f"and has values that are no {field.type}; begin again",
        table=table.name,
        column=field.name,
    )
