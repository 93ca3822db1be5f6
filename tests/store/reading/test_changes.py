"""Scans of changes: pages with keys like any scan's, exact alongside moves, and never with a gap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import InvalidOption, NotFound, ScanConsumed, SnapshotExpired, TableChanged
from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.store import Scan, Store, Table
from elasticscan.store.context.leases import end_lease
from elasticscan.topology import SlotSet
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
Rows = Counter[tuple[Any, ...]]


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


def message(batches: pa.Table | list[pa.RecordBatch]) -> Rows:
    parts = batches if isinstance(batches, list) else batches.to_batches()
    return Counter(row for part in parts for row in zip(*part.to_pydict().values(), strict=True))


@pytest.mark.parametrize("feed", [True, False])
def test_a_scan_of_changes_is_resumed_from_any_page_beside_moves(
    store: Store, table: Table, feed: bool
) -> None:
    expected = message(table.changes(1, feed=feed).to_table())
    assert len(expected) > 100
    read: list[pa.RecordBatch] = []
    scan: Scan = table.changes(1, feed=feed, page_rows=13)
    pages = 0
    while True:
        page = next(iter(scan))
        read.append(page.rows)
        pages += 1
        if pages < 8:
            store.move(1 + pages % 2, "s2" if pages % 4 in (1, 2) else "s1")
        if page.key is None:
            break
        scan = store.resume(page.key)
    assert pages > 20
    assert message(read) == expected


def test_the_parts_of_a_scan_of_changes_are_the_scan(store: Store, table: Table) -> None:
    expected = message(table.changes(1).to_table())
    scan, read = table.changes(1, page_rows=50), list[pa.RecordBatch]()
    for slots in (SlotSet.span(0, 3), SlotSet.of([(3, 7), (9, 16)]), SlotSet.span(7, 9)):
        part = store.resume_part(store.context.sealer.open(scan.parts([slots])[0]), ends_lease=False)
        read += part.batches()
    assert message(read) == expected


def test_what_cannot_be_divided_says_so(store: Store, table: Table) -> None:
    everything = SlotSet.span(0, 16)
    with pytest.raises(InvalidOption, match="divide one without a limit"):
        table.scan(limit=5).parts([everything])
    begun = table.changes(1, page_rows=13)
    next(begun)
    with pytest.raises(ScanConsumed, match="only before its first"):
        begun.parts([everything])
    finished, shared, closed = table.scan(), table.scan(), table.changes(1)
    finished.count()
    while next(shared).key is not None:
        pass
    closed.close()
    for scan in (finished, shared, closed):
        with pytest.raises(ScanConsumed):
            scan.parts([everything])
    half = table.scan(page_rows=13)
    read = next(half).rows.num_rows
    rest = store.resume(half.parts([everything])[0]).count()
    assert read + rest == table.scan().count()


def test_without_a_beginning_all_changes_that_are_kept_are_read(
    store: Store, table: Table, clock: ManualClock
) -> None:
    assert message(table.changes().to_table()) == message(table.changes(0).to_table()) != []
    assert message(table.changes(upto=4).to_table()) == message(table.changes(0, 4).to_table())
    table.set_retention("0s")
    clock.advance(60)
    table.upsert(rows(0, 5, 9))
    table.compact()
    table.upsert(rows(0, 5, 10))
    with pytest.raises(SnapshotExpired):
        table.changes(0)
    kept = table.changes(table.definition.oldest_snapshot)
    assert message(table.changes().to_table()) == message(kept.to_table()) != []
    with pytest.raises(SnapshotExpired, match="after commit 4 are no longer kept"):
        table.changes(upto=4)
    made = store.create_table("made", {"id": [1, 2]}, "id")
    assert made.changes().count() == 2


def test_commits_that_are_still_to_come_or_go_back_are_refused(table: Table) -> None:
    for after, upto in ((8, None), (9_999, None), (0, 8)):
        with pytest.raises(NotFound, match="the newest is 7"):
            table.changes(after, upto)
    with pytest.raises(InvalidOption, match="upto"):
        table.changes(2, 1)


def test_changes_are_named_by_tags_and_times_too(table: Table, clock: ManualClock) -> None:
    for v in (6, 7):
        clock.advance(60)
        table.upsert(rows(0, 5, v))
    table.tag("before", 8)
    expected = message(table.changes(8, 9).to_table())
    between = datetime.fromtimestamp(clock.now() - 30, UTC)
    assert message(table.changes("before").to_table()) == expected
    assert message(table.changes(between, datetime.fromtimestamp(clock.now(), UTC)).to_table()) == expected
    assert message(table.changes(between.isoformat(), 9).to_table()) == expected
    assert message(table.changes("8").to_table()) == expected
    with pytest.raises(NotFound, match="has no tag 'none'"):
        table.changes("none")


def test_a_scan_of_changes_keeps_what_it_has_not_read(store: Store, table: Table, clock: ManualClock) -> None:
    table.set_retention("0s")
    expected = message(table.changes(1).to_table())
    scan = table.changes(1, page_rows=13)
    read = []
    (lease,) = store.status()["leases"]
    assert (lease["purpose"], lease["snapshot"]) == ("changes", 1)
    for page in scan:
        read.append(page.rows)
        clock.advance(0.6 * LEASE_SECONDS)  # pages renew it
        table.upsert(rows(0, 5, 9))
        table.compact()
        store.collect_garbage(grace_seconds=0, share=1.0)
        if page.key is not None and len(read) % 5 == 0:
            again = message(read) + message(list(store.resume(page.key).batches()))
            assert again == expected
            end_lease(store.context, scan.standing.lease)
            break
    assert store.status()["leases"] == []


def test_changes_that_are_compacted_amid_their_scan_are_missed_and_not_left_out(
    store: Store, table: Table, clock: ManualClock
) -> None:
    table.set_retention("0s")
    scan = table.changes(1, page_rows=13)
    page = next(scan)
    end_lease(store.context, scan.standing.lease)
    clock.advance(60)
    table.upsert(rows(0, 5, 9))
    table.compact()
    with pytest.raises(SnapshotExpired):
        next(scan)
    assert page.key is not None
    with pytest.raises(SnapshotExpired):
        Store.open(store.uri, clock=clock).resume(page.key)


def test_a_scan_of_changes_ends_with_its_table_and_stays_at_the_newest_after_a_merge(
    store: Store, table: Table
) -> None:
    newest = table.history(1)[0].number
    table.set_retention("0s")
    key = table.changes(1).key or ""
    table.compact()
    changes = table.changes(after=newest)
    assert (changes.count(), changes.snapshot) == (0, newest)
    table.drop()
    with pytest.raises(TableChanged):
        store.resume(key)
