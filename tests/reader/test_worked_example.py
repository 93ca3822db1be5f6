"""The worked example of the Oracle NoSQL design for queries during elasticity, played by our rule.

The same entries, moves and limits as there; `docs/worked-example.md` walks through it and says what
was corrected. `worked_example.txt` beside this file is the transcript, compared line by line. To
write it anew on purpose, and then read the difference before it is committed:

    ELASTICSCAN_REWRITE_GOLDEN=1 python -m pytest tests/reader/test_worked_example.py
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.reader import Cursor, Cursors, PageRequest, PageRows
from elasticscan.reader.memory import INDEX, SCHEMA, MemoryCluster
from elasticscan.topology import Placement, SlotSet, initial_placement
from tests.reader.simulation import SimulatedScan

GOLDEN = Path(__file__).with_name("worked_example.txt")
REWRITE = "ELASTICSCAN_REWRITE_GOLDEN"

Entry = tuple[int, int, int]  # (index key, primary key, partition)
Move = tuple[int, int]  # (partition, target shard)

ENTRIES: tuple[Entry, ...] = (
    # At S1, which has the partitions 1 to 6.
    *((23, 11, 1), (47, 12, 2), (55, 13, 2), (58, 14, 3), (60, 15, 6), (60, 16, 3)),
    *((62, 18, 2), (75, 19, 1), (75, 20, 5), (75, 21, 2), (80, 22, 4)),
    # At S2, which has the partitions 7 to 12.
    *((12, 40, 8), (15, 41, 7), (23, 42, 12), (23, 43, 8), (34, 44, 7), (47, 45, 10)),
    *((48, 46, 7), (66, 47, 9), (70, 48, 7), (70, 49, 8), (70, 50, 7), (80, 51, 11)),
)
PARTITION = {primary: partition for _, primary, partition in ENTRIES}
LOWER_BOUND = 15
WANTED = Counter(entry for entry in ENTRIES if entry[0] > LOWER_BOUND)
LAST = (1 << 63) - 1  # the largest primary key that there could be
BEYOND_BOUND = INDEX.key(0, LAST, LOWER_BOUND)


class WatchedCluster(MemoryCluster):
    """The example's shards: they walk their index entry by entry, and things happen in between.

    A partition of the example is one slot and one tablet here: P1 is slot 0 and tablet 1.

    Attributes:
        happens: which moves come, by how many entries the current batch had read before.
        said: what happened, as lines of the transcript.
        asked: the shards asked, one for each page.
        read: the entries of the last page, before anything was dropped.
    """

    def __init__(self) -> None:
        super().__init__(initial_placement(12, 12, [1, 2]), INDEX, slot_of=lambda key: PARTITION[key] - 1)
        self.base = self.current()
        self.write({primary: index for index, primary, _ in ENTRIES})
        self.happens: dict[int, Sequence[Move]] = {}
        self.said: list[str] = []
        self.asked: list[int] = []
        self.read: list[Entry] = []
        self._in_batch = 0

    def batch(self, happens: Mapping[int, Sequence[Move]]) -> None:
        self.happens, self._in_batch = dict(happens), 0

    def move(self, tablet_id: int, target: int) -> None:
        tablet = self.current().tablet(tablet_id)
        assert tablet is not None
        super().move(tablet_id, target)
        self.said.append(f"move P{tablet_id} from S{tablet.shard} to S{target}")

    def read_page(self, request: PageRequest) -> PageRows:
        """Pages of one row, put together: each entry is what the shard has at its own moment."""
        self.asked.append(request.shard)
        self.said.append(f"ask S{request.shard} for {_count(request.page_rows, 'row')}")
        self.said += _request(request, self.base)
        self.read = []
        rows, slots, after = [SCHEMA.empty_table().to_batches()], [pa.array([], pa.uint16())], request.cursors
        pages: list[PageRows] = []
        while after and len(self.read) < request.page_rows:
            for move in self.happens.pop(self._in_batch, ()):
                self.move(*move)
            page = super().read_page(replace(request, cursors=after, page_rows=1))
            pages.append(page)
            found = entries_of(page.rows)
            self.read += found
            self._in_batch += len(found)
            self.said += [f"  read {entry}" for entry in found]
            after = page.after
        del rows, slots
        return PageRows(
            pa.concat_batches([page.rows for page in pages]),
            pa.concat_arrays([page.slots for page in pages]),
            after,
        )
