"""What a status says of bytes, fragments and leases is so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.store import Store
from elasticscan.store.context.leases import hold_for_stream
from tests.base.manual_clock import ManualClock

ROWS_IN_FILES = True

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])

pytestmark = pytest.mark.usefixtures("unflushed")


def rows(version: int, count: int = 400) -> pa.Table:
    return pa.table({"id": range(count), "v": [version] * count})


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.create(tmp_path / "s", ["s1", "s2"], tablets=8, slots=64, clock=clock, upkeep="off") as made:
        table = made.create_table("t", SCHEMA, ["id"])
        for version in range(3):
            table.upsert(rows(version))
            clock.advance(10)
        yield made


def of_table(store: Store) -> dict[str, Any]:
    (table,) = store.status()["tables"]
    return dict(table)


def on_disk(store: Store) -> int:
    return sum(path.stat().st_size for path in Path(store.uri).rglob("t*/*.arrow"))


def test_live_old_and_garbage_bytes_are_those_of_the_files(store: Store) -> None:
    table = store.table("t")
    assert of_table(store)["upkeep"]["bytes"] == {"live": on_disk(store), "old": 0, "garbage": 0}
    table.compact()
    seen = of_table(store)["upkeep"]["bytes"]
    assert sum(seen.values()) == on_disk(store)
    assert seen["garbage"] > 0, "the files that were merged are not collected yet"
    assert seen["old"] > 0, "snapshots of an hour ago can be read"
    store.collect_garbage(grace_seconds=0, trash_seconds=0)
    after = of_table(store)["upkeep"]["bytes"]
    assert after == {**seen, "garbage": 0} and sum(after.values()) == on_disk(store)


def test_overwritten_files_are_old_until_no_snapshot_needs_them(store: Store, clock: ManualClock) -> None:
    table = store.table("t")
    for night in range(3):
        before = on_disk(store)
        table.overwrite(rows(night))
        clock.advance(86_400)
    seen = of_table(store)["upkeep"]
    assert seen["bytes"] == {"live": on_disk(store) - before, "old": before, "garbage": 0}
    assert seen["slot_fragments"] == 1
    for _ in range(16):
        table.overwrite(rows(9))
    seen = of_table(store)["upkeep"]
    assert (seen["merges_due"], seen["slot_fragments"]) == (0, 1), "old files are history"
    assert store.keep().merges == 2, "small files of history are merged where they are many"


def test_slots_that_moved_away_leave_garbage_until_they_are_merged(store: Store) -> None:
    store.move(1, "s2")
    seen = of_table(store)["upkeep"]["bytes"]
    assert seen["garbage"] > 0 and abs(sum(seen.values()) - on_disk(store)) < 20  # shares are rounded down


def test_tablets_have_the_bytes_of_their_table(store: Store) -> None:
    status = store.status()
    assert abs(sum(tablet["bytes"] for tablet in status["tablets"]) - status["tables"][0]["bytes"]) < 10


def test_a_lease_has_the_time_of_its_snapshot_and_a_table_its_retention(
    store: Store, clock: ManualClock
) -> None:
    newest = store.status()["snapshot"]
    hold_for_stream(store.context, 1, "copy", newest - 1)
    (lease,) = store.status()["leases"]
    assert lease["snapshot_at"] == clock.now() - 20
    assert of_table(store)["retention_seconds"] == store.context.info.retention_seconds
    store.table("t").set_retention("2h")
    assert of_table(store)["retention_seconds"] == 7_200


def test_a_status_reads_no_file_and_says_whether_it_knows_the_number_of_rows(store: Store) -> None:
    table = store.table("t")

    def message() -> tuple[int, bool]:
        seen = of_table(store)
        return seen["rows"], seen["rows_exact"]

    assert message() == (1_200, False), "rows of which there may be several versions are not compared"
    table.compact()
    assert message() == (400, True)
    store.move(1, "s2")
    assert message() == (400, False) or message()[0] > 400
    table.overwrite(rows(9, 100))
    assert message() == (100, True)
    store.move(1, "s1")
    assert message() == (100, False), "whatever slots left behind, no more rows were written"
    before = store.status()
    for file in Path(store.uri).rglob("t*/*.arrow"):
        file.unlink()
    with Store.open(store.uri, upkeep="off") as fresh:
        assert fresh.status()["tables"] == before["tables"]
