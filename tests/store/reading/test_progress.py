"""How far scans are, as they say it themselves for those who watch a store."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import TryAgain
from elasticscan.catalog import Tx
from elasticscan.store import Scan, Store
from elasticscan.store.reading import progress
from elasticscan.store.upkeep.horizons import oldest_held
from elasticscan.topology import SlotSet
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema([("id", pa.int64())])
DAY = 86_400.0

pytestmark = pytest.mark.usefixtures("unflushed")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000.0)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Store:
    store = Store.create(tmp_path / "s", ["a", "b"], tablets=8, clock=clock, retention_seconds=DAY)
    store.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": range(1_000)}))
    return store


def after_a_while(scan: Scan, clock: ManualClock) -> None:
    clock.advance(progress.REPORT_SECONDS)
    next(scan)


def only(store: Store) -> dict[str, Any]:
    (scan,) = store.status()["scans"]
    return dict(scan)


def covered(scan: dict[str, Any], *names: str) -> SlotSet:
    return SlotSet.of((start, end) for name in names for start, end in scan[name])


def test_a_scan_that_lasts_says_how_far_it_is_until_it_ends(store: Store, clock: ManualClock) -> None:
    scan = store.table("t").scan(page_rows=100)
    next(scan)
    assert store.status()["scans"] == [], "a short scan writes nothing"
    after_a_while(scan, clock)
    said = only(store)
    left = SlotSet.of(piece for cursor in scan.standing.cursors for piece in cursor.slots)
    assert said["table"] == "t" and said["kind"] == "scan" and said["snapshot"] == scan.snapshot
    assert (said["rows"], said["pages"], said["virtual_reads"], said["parts"]) == (200, 2, 0, 1)
    assert said["rows_per_second"] == 100
    assert (said["slots"], said["slots_done"]) == (4_096, 4_096 - len(left))
    assert covered(said, "pending", "moved") == left
    assert covered(said, "done", "pending", "moved") == scan.slots
    assert (said["began_at"], said["said_at"]) == (1_000_000.0, 1_000_002.0)
    next(scan)
    assert only(store)["pages"] == 2, "pages between two reports cost the catalog nothing"
    json.dumps(said)
    assert scan.count() == 700
    assert store.status()["scans"] == []


def test_slots_that_move_meanwhile_are_reported(store: Store, clock: ManualClock) -> None:
    scan = store.table("t").scan(page_rows=100)
    after_a_while(scan, clock)
    store.expand(["c"])
    store.contract("a")
    after_a_while(scan, clock)
    said = only(store)
    base = scan._base.placement
    left = covered(said, "pending", "moved")
    elsewhere = [slots - base.at(at) for at, slots in store.context.placement().split_by_shard(left).items()]
    assert covered(said, "moved") == SlotSet.union(elsewhere) != SlotSet()
    assert said["slots_moved"] == len(covered(said, "moved"))
    for _ in range(3):
        after_a_while(scan, clock)
    assert only(store)["virtual_reads"] == scan.stats.virtual_reads > 0


def test_parts_of_a_scan_are_one_scan(store: Store, clock: ManualClock) -> None:
    whole = store.table("t").scan(page_rows=50)
    parts = [*map(store.resume, whole.parts([SlotSet.span(0, 2_000), SlotSet.span(2_000, 4_096)]))]
    rows = 0
    for part in parts:
        clock.advance(progress.REPORT_SECONDS)
        rows += next(part).rows.num_rows
    said = only(store)
    assert (said["parts"], said["rows"], said["slots"]) == (2, rows, 4_096)
    parts[0].close()
    assert (only(store)["parts"], only(store)["slots"]) == (1, 2_096)


def test_what_a_scan_says_keeps_nothing_and_is_no_lease(store: Store, clock: ManualClock) -> None:
    table = store.table("t")
    scan = table.scan(page_rows=100)
    after_a_while(scan, clock)
    assert only(store) and store.status()["leases"] == []
    table.upsert(pa.table({"id": range(1_000)}))
    with store.context.catalog.reading() as tx:
        assert oldest_held(tx, table.definition.id) is None


def test_what_was_said_is_forgotten_with_who_said_it(store: Store, clock: ManualClock) -> None:
    table = store.table("t")
    left = table.scan(page_rows=100)  # by a process that is killed, say
    after_a_while(left, clock)
    clock.advance(progress.KEPT_SECONDS - 1)
    assert only(store)["pages"] == 1
    clock.advance(2)
    store.table("t").upsert(pa.table({"id": [0]}))  # somebody believes that time has passed
    assert store.status()["scans"] == []
    other = table.scan(page_rows=100)
    after_a_while(other, clock)
    with store.context.catalog.reading() as tx:
        assert len(tx.execute("SELECT id FROM lease")) == 1, "the first word of another removes it"
    after_a_while(left, clock)
    assert len(store.status()["scans"]) == 2, "who goes on says so again"


def test_a_store_for_reading_alone_has_none_and_a_dropped_table_has_none(
    store: Store, clock: ManualClock
) -> None:
    with Store.open(store.uri, clock, read_only=True) as reading:
        scan = reading.table("t").scan(page_rows=100)
        after_a_while(scan, clock)
    assert store.status()["scans"] == []
    scan = store.table("t").scan(page_rows=100)
    next(scan)
    store.table("t").drop()
    clock.advance(progress.REPORT_SECONDS)
    scan._progress.note(scan.standing, 100)  # of a page that was read just before
    assert store.status()["scans"] == []


def test_a_word_that_cannot_be_said_fails_no_scan(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = list[int]()

    def away(*_: object) -> None:
        tries.append(1)
        clock.advance(1.0)
        raise TryAgain("the catalog is away")

    monkeypatch.setattr(Tx, "put_lease", away)
    scan = store.table("t").scan(page_rows=100)
    after_a_while(scan, clock)
    for _ in range(5):
        after_a_while(scan, clock)
    assert tries == [1], "what takes a second is not done again for most of a minute"
    clock.advance(1.0 / progress.SHARE_OF_TIME)
    assert scan.count() > 0 and tries == [1, 1]


def test_a_scan_of_changes_says_so(store: Store, clock: ManualClock) -> None:
    store.table("t").upsert(pa.table({"id": range(500)}))
    changes = store.table("t").changes(after=1, page_rows=100)
    after_a_while(changes, clock)
    assert only(store)["kind"] == "changes"


def test_many_ranges_are_reported_as_the_blocks_that_they_touch() -> None:
    many = SlotSet.of((slot, slot + 1) for slot in range(0, 65_536, 2))
    message = progress._drawn(many)
    assert many <= message and len(message.ranges) <= 2 * progress.MOST_RANGES
    apart = SlotSet.of((block, block + 1) for block in range(0, 65_536, 700))
    message = progress._drawn(apart)
    assert apart <= message and len(str(message)) < 2_000
    few = SlotSet.of([(1, 2), (5, 9)])
    assert progress._drawn(few) is few


def test_a_scan_says_nothing_inside_of_a_transaction_that_writes(store: Store, clock: ManualClock) -> None:
    scan = store.table("t").scan(page_rows=100)
    with store.context.catalog.leasing():  # a report would wait for its end, and it for the page
        after_a_while(scan, clock)
    assert store.status()["scans"] == []
    after_a_while(scan, clock)
    with store.context.catalog.leasing():
        scan.close()
    assert len(store.status()["scans"]) == 1, "what was said stands until its time is over"
    clock.advance(progress.KEPT_SECONDS + 1)
    assert store.status()["scans"] == []


def test_a_scan_waits_for_no_other_writer_to_say_how_far_it_is(store: Store, clock: ManualClock) -> None:
    scan = store.table("t").scan(page_rows=100)
    after_a_while(scan, clock)
    with (Path(store.uri) / "catalog.db.lock").open("rb") as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)  # another writer's; it stands until the file is closed
        after_a_while(scan, clock)
        scan.close()
    assert only(store)["pages"] == 1, "what was said stands until its time is over"
