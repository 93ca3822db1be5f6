"""A scan as it is usually written: planned once, never looking where tablets are by now.

It reads each shard of the plan from its beginning to its end, in order and page by page, each page
beyond the last row of the one before; nothing is wrong with it while nothing moves. Rows of a
tablet that leaves before it was reached are lost; rows of one that arrives after it was read
elsewhere come twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from elasticscan.base.limits import DEFAULT_PAGE_BYTES
from elasticscan.protocol import Cursor, Cursors, PageRequest
from elasticscan.store import LocalShards, Store
from elasticscan.topology import SlotSet


@dataclass(slots=True)
class PlainScan:
    """Reads the shards that had tablets when it was made, each once.

    Attributes:
        store, table, columns, page_rows: as for `Store.scan`.
        rows, pages: what it has read so far.
        span: when it began and ended, in seconds since 1970.
    """

    store: Store
    table: str
    columns: Sequence[str]
    page_rows: int
    rows: int = 0
    pages: int = 0
    span: tuple[float, float] = (0.0, 0.0)
    _left: dict[int, Cursors] = field(init=False)
    _batches: list[pa.RecordBatch] = field(init=False, default_factory=list)
    _snapshot: int = field(init=False)

    def __post_init__(self) -> None:
        everything = Cursor(SlotSet.span(0, self.store.context.info.slots))
        self._left = dict.fromkeys(self.store.context.placement().shards, (everything,))
        self._snapshot = self.store.status()["snapshot"]

    def step(self) -> bool:
        """Read a page of each shard that is not at its end; returns whether there may be more."""
        shards = LocalShards(self.store.context)
        table = self.store.table(self.table).id
        for shard, cursors in list(self._left.items()):
            page = shards.read_page(
                PageRequest(
                    table,
                    shard,
                    cursors,
                    self._snapshot,
                    tuple(self.columns),
                    self.page_rows,
                    DEFAULT_PAGE_BYTES,
                )
            )
            self._left[shard] = page.after
            self._batches.append(page.rows)
            self.rows += page.rows.num_rows
            self.pages += 1
            if not page.after:
                del self._left[shard]
        return bool(self._left)

    def run(self, may_go_on: Callable[[PlainScan], bool]) -> None:
        """Read to the end; `may_go_on` is asked before each step and may wait."""
        begun = time.time()
        while may_go_on(self) and self.step():
            self.span = (begun, time.time())

    def to_table(self) -> pa.Table:
        """What was read so far."""
        schema = self.store.table(self.table).schema
        return pa.Table.from_batches(self._batches, pa.schema([schema.field(name) for name in self.columns]))
