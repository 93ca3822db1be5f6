"""How far scans in flight are, for those who watch a store."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import TryAgain
from elasticscan.store import Scan, Store
from elasticscan.store.reading import progress
from tests.base.connections import gate_statements
from tests.base.manual_clock import ManualClock

SCHEMA = pa.schema([("id", pa.int64())])
DAY = 86_400.0

pytestmark = pytest.mark.usefixtures("unflushed")


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Store:
    store = Store.create(tmp_path / "s", ["a", "b"], tablets=8, clock=clock, retention_seconds=DAY)
    store.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": range(1_000)}))
    return store


def after_a_while(scan: Scan, clock: ManualClock) -> None:
    clock.advance(progress.REPORT_SECONDS)
    next(scan)


def reported(store: Store) -> list[dict[str, Any]]:
    return list(store.status()["scans"])


def test_the_report_of_a_scan_that_was_killed_ends_with_its_time(store: Store, clock: ManualClock) -> None:
    left = store.table("t").scan(page_rows=100)
    after_a_while(left, clock)
    clock.advance(progress.KEPT_SECONDS + 1)
    store.table("t").upsert(pa.table({"id": [0]}))  # the store believes that time has passed
    assert reported(store) == []
    after_a_while(store.table("t").scan(page_rows=100), clock)
    left = store.context.catalog.newest().execute("SELECT id FROM lease")
    assert len(left) == 1, "the first report of another scan removes it"


def test_a_store_for_reading_alone_has_no_reports(store: Store, clock: ManualClock) -> None:
    with Store.open(store.uri, clock, read_only=True) as reading:
        after_a_while(reading.table("t").scan(page_rows=100), clock)
    assert reported(store) == []


def test_a_report_that_cannot_be_made_fails_no_scan(store: Store, clock: ManualClock) -> None:
    tries = list[str]()

    def away(statement: str, execute: Callable[[], Any]) -> Any:
        if statement.startswith("INSERT") and "lease" in statement:
            tries.append(statement)
            clock.advance(1.0)
            raise TryAgain("the catalog is away")
        return execute()

    gate_statements(store.context.catalog, away)
    scan = store.table("t").scan(page_rows=100)
    for _ in range(6):
        after_a_while(scan, clock)
    assert len(tries) == 1, "what takes a second is not done again for most of a minute"
    clock.advance(1.0 / progress.SHARE_OF_TIME)
    assert scan.count() > 0 and len(tries) == 2


def test_a_scan_reports_nothing_where_a_transaction_writes(store: Store, clock: ManualClock) -> None:
    scan = store.table("t").scan(page_rows=100)
    with store.context.catalog.leasing():  # a report would wait for its end, and it for the page
        after_a_while(scan, clock)
    assert reported(store) == []
    after_a_while(scan, clock)
    with (Path(store.uri) / "catalog.db.lock").open("rb") as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)  # another process's; it stands until the file is closed
        after_a_while(scan, clock)
        scan.close()
    assert [report["pages"] for report in reported(store)] == [2], "a report stands until its time is over"
