"""Scans of changes: pages with keys like any scan's, exact alongside moves, and never with a gap.

That the parts into which one is divided are all of it is a matter of `tests/connector/test_streaming.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import InvalidCall, InvalidOption
from elasticscan.store import Store, Table
from elasticscan.topology import SlotSet
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


def rows(start: int, end: int, v: int) -> pa.Table:
    return pa.table({"id": range(start, end), "v": [v] * (end - start)}, schema=SCHEMA)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.create(tmp_path / "shop.store", ["s1", "s2"], tablets=4, slots=16, clock=clock) as made:
        yield made


@pytest.fixture
def table(store: Store) -> Table:
    """Commits 2 to 7, of which 4 and 6 replace the table."""
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(rows(0, 60, 1))
    table.upsert(rows(30, 90, 2))
    table.overwrite(rows(0, 40, 3))
    table.delete(rows(0, 10, 0).select(["id"]))
    table.overwrite(rows(5, 50, 4))
    table.upsert(rows(0, 20, 5))
    return table


def counted(parts: Iterable[pa.RecordBatch]) -> Counter[tuple[Any, ...]]:
    return Counter(row for part in parts for row in zip(*part.to_pydict().values(), strict=True))


@pytest.mark.parametrize("feed", [True, False])
def test_a_scan_of_changes_is_resumed_from_any_page_beside_moves(
    store: Store, table: Table, feed: bool
) -> None:
    expected = counted(table.changes(1, feed=feed).batches())
    read, scan = list[pa.RecordBatch](), table.changes(1, feed=feed, page_rows=13)
    while (page := next(scan)).key is not None:
        read.append(page.rows)
        if len(read) < 8:
            store.move(1 + len(read) % 2, "s2" if len(read) % 4 in (1, 2) else "s1")
        scan = store.resume(page.key)
    read.append(page.rows)
    assert len(read) > 20
    assert counted(read) == expected


def test_what_cannot_be_divided_says_so(store: Store, table: Table) -> None:
    everything = SlotSet.span(0, 16)
    with pytest.raises(InvalidOption, match="divide one without a limit"):
        table.scan(limit=5).parts([everything])
    begun = table.changes(1, page_rows=13)
    next(begun)
    with pytest.raises(InvalidCall, match="only before its first"):
        begun.parts([everything])
    finished, shared, closed = table.scan(), table.scan(), table.changes(1)
    finished.count()
    while next(shared).key is not None:
        pass
    closed.close()
    for scan in (finished, shared, closed):
        with pytest.raises(InvalidCall):
            scan.parts([everything])
    half = table.scan(page_rows=13)
    read = next(half).rows.num_rows
    rest = store.resume(half.parts([everything])[0]).count()
    assert read + rest == table.scan().count()
