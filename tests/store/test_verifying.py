"""`verify` goes on behind damage, and tells what it costs: rows, slots, commits, and where a copy is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from elasticscan.base.errors import ElasticScanError, StoreDamaged
from elasticscan.metadata import Fragment
from elasticscan.storage.sealed_file import SEGMENT_BYTES
from elasticscan.store import Store, repair_store
from elasticscan.store.verifying import Finding
from tests.base.manual_clock import ManualClock

START = 1_000_000.0
ROWS = 300_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "s", ["a"], tablets=4, slots=16, clock=ManualClock(START)) as made:
        table = made.create_table("t", pa.schema({"id": pa.int64(), "v": pa.int64()}), ["id"])
        table.upsert({"id": np.arange(ROWS), "v": np.arange(ROWS)})
        yield made


def file_of(store: Store) -> Path:
    fragment = max(fragments(store), key=lambda fragment: fragment.rows)
    return Path(store.uri) / "shards" / "a" / fragment.path


def fragments(store: Store) -> list[Fragment]:
    with store.context.catalog.reading() as tx:
        return list(tx.fragments())


def flip(path: Path, *places: int) -> None:
    with path.open("r+b") as file:
        for at in places:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1]))


def unreadable(store: Store, slots: range) -> set[int]:
    """The slots of which a scan that reads them alone fails."""
    failed = set()
    for slot in slots:
        with Store.open(store.uri, clock=ManualClock(START)) as fresh:
            try:
                reader = fresh.context.readers.opener(fresh.table("t").definition)
                (fragment,) = fresh.context.table_state(1, fresh.status()["snapshot"]).fragments
                opened = reader(fragment, ("id", "v"))
                for number in range(opened.batch_count):
                    first, last = opened.slot_range(number)
                    if first <= slot <= last:
                        opened.batch(number)
            except ElasticScanError:
                failed.add(slot)
    return failed


def test_two_damages_of_a_file_are_reported_with_the_rows_and_slots_between_left_out(store: Store) -> None:
    path = file_of(store)
    flip(path, 5, path.stat().st_size - 3 * SEGMENT_BYTES)
    (found,) = store.verify()
    assert (found.shard, found.table, found.index, found.commits) == ("a", "t", None, (2, 2))
    assert found.path is not None and path.as_posix().endswith(found.path)
    assert 0 < found.rows < found.of_rows == ROWS
    lost = {slot for start, end in found.slots for slot in range(start, end)}
    assert {0, 15} <= lost < set(range(16))
    assert lost == unreadable(store, range(16))
    assert f"{found.rows:,} of its 300,000 rows, in slots 0" in str(found)
    assert "commit 2" in str(found)


def test_a_file_that_is_gone_is_all_of_its_rows_of_all_of_its_commits(store: Store) -> None:
    table = store.table("t")
    table.upsert({"id": np.arange(10), "v": np.zeros(10, np.int64)})
    table.compact()
    path = file_of(store)
    content = path.read_bytes()
    path.unlink()
    (found,) = store.verify()
    assert (found.slots, found.rows, found.commits) == (((0, 16),), found.of_rows, (2, 3))
    trashed = Path(store.uri) / "shards" / "a" / "trash" / "7" / found.path  # type: ignore[operator]
    trashed.parent.mkdir(parents=True)
    trashed.write_bytes(content)
    store.collect_garbage()
    assert store.verify() == []


def test_damage_of_slots_that_moved_away_costs_no_row(store: Store) -> None:
    store.expand(["b"])
    (left,) = (fragment for fragment in fragments(store) if fragment.shard == 1)
    assert 0 < len(left.slots) < 16
    path = Path(store.uri) / "shards" / "a" / left.path
    flip(path, *range(5, path.stat().st_size - 2 * SEGMENT_BYTES, SEGMENT_BYTES))
    (found,) = store.verify()
    assert found.slots == left.slots.ranges
    assert 0 < found.rows < found.of_rows == ROWS


def test_damage_of_an_index_costs_no_row(store: Store) -> None:
    store.table("t").create_index("by_v", ["v"])
    with store.context.catalog.reading() as tx:
        (run,) = tx.runs(1)
    flip(Path(store.uri) / "shards" / "a" / run.path, 5)
    (found,) = store.verify()
    assert (found.index, found.of_rows, found.commits) == ("by_v", ROWS, None)
    assert 0 < found.rows < ROWS
    assert "no row is lost: make the index again" in str(found)


def test_what_is_no_file_is_reported_too(store: Store) -> None:
    (Path(store.uri) / "shards" / "a" / "elasticscan-shard").unlink()
    found = store.verify()
    assert found[0].shard == "a"
    assert found[0].path is None
    assert str(found[0]) == found[0].error


def test_a_finding_is_all_that_its_text_says() -> None:
    some = Finding(
        "[ES_X] broken", "a", "t1/x.arrow", "t", slots=((0, 3), (5, 6)), rows=7, of_rows=9, commits=(4, 8)
    )
    assert str(some) == (
        "[ES_X] broken. Not readable: 7 of its 9 rows, in slots 0-3,5-6, of commits 4 to 8. "
        "`gc` puts back a copy in the trash of shard 'a'"
    )


# Of the statistics of a fragment and of the histogram of a run: what no row depends on.
DAMAGE_OF_STATISTICS = {
    "a body": "UPDATE {} SET body = CAST(substr(body, 1, 9) || x'07' || substr(body, 11) AS BLOB) WHERE {}",
    "a body's type": "UPDATE {} SET body = CAST(x'ff' || body AS TEXT) WHERE {}",
    "a digest": "UPDATE {} SET row_digest = row_digest + 1 WHERE {}",
    "a row that is gone": "DELETE FROM {} WHERE {}",
}


def _with_damaged_statistics(place: Path, damage: str) -> None:
    """A store of two tables, of which one has a fragment and a run whose statistics are damaged."""
    with Store.create(place, ["a", "b"], tablets=4, slots=16, upkeep="off") as store:
        for name in ("t", "u"):
            table = store.create_table(name, {"id": range(2_000), "v": range(2_000)}, primary_key="id")
            table.upsert(pa.table({"id": range(100), "v": [7] * 100}))
            table.create_index("by_v", ["v"])
    with closing(sqlite3.connect(place / "catalog.db")) as catalog:
        catalog.text_factory = bytes
        of_t = "(SELECT id FROM {} WHERE table_id = (SELECT id FROM tables WHERE name = 't'))"
        for what, key, among in (
            ("fragment_statistics", "fragment_id", "fragments"),
            ("run_histograms", "run_id", "index_runs"),
        ):
            where = f"{key} IN (SELECT max({key}) FROM {what} WHERE {key} IN {of_t.format(among)})"
            assert catalog.execute(DAMAGE_OF_STATISTICS[damage].format(what, where)).rowcount == 1
        catalog.commit()


def _statistics(place: Path) -> list[Any]:
    with closing(sqlite3.connect(place / "catalog.db")) as catalog:
        catalog.text_factory = bytes
        return list(catalog.execute("SELECT * FROM fragment_statistics"))


def _check_rows(store: Store) -> None:
    for name in ("t", "u"):
        assert store.table(name).scan(filter="v = 7").count() == 100
        assert store.table(name).scan(filter="v >= 1900").count() == 100


@pytest.mark.parametrize("damage", DAMAGE_OF_STATISTICS)
def test_damaged_statistics_are_left_out_by_whoever_meets_them(tmp_path: Path, damage: str) -> None:
    place = tmp_path / "s"
    _with_damaged_statistics(place, damage)
    before = _statistics(place)
    with Store.open(place, upkeep="off") as store:
        assert store.verify()
        with pytest.raises(StoreDamaged):
            store.collect_garbage(dry_run=True)
        assert store.verify(), "a dry run changes nothing"
        store.collect_garbage()
        assert store.verify() == []
        left = _statistics(place)
        assert [row for row in before if row in left] == left, "the others stay"
        assert len(before) - len(left) == (0 if damage == "a row that is gone" else 1)
        _check_rows(store)


@pytest.mark.parametrize("damage", DAMAGE_OF_STATISTICS)
def test_a_store_with_damaged_statistics_is_backed_up_and_adopted_without_them(
    tmp_path: Path, damage: str
) -> None:
    place = tmp_path / "s"
    _with_damaged_statistics(place, damage)
    before = _statistics(place)
    gone = 0 if damage == "a row that is gone" else 1
    with Store.open(place, upkeep="off", read_only=True) as store:
        store.backup(tmp_path / "b")
        assert store.verify(), "a backup changes nothing"
    report = repair_store(place, tmp_path / "repaired")
    assert not report.lost + report.doubts
    with Store.from_backup(tmp_path / "b", tmp_path / "new") as other:
        assert other.verify() == []
        assert len(_statistics(tmp_path / "new")) == len(before) - gone
        other.table("t").upsert(pa.table({"id": [3], "v": [7]}))
        _check_rows(other)
    with Store.open(place, upkeep="off") as store:
        assert store.verify()
        store.adopt()
        assert store.verify() == []
        assert len(_statistics(place)) == len(before) - gone
        _check_rows(store)


@pytest.mark.parametrize("worse", ["UPDATE fragments SET rows = rows + 1", "DELETE FROM commits"])
def test_damage_beside_that_of_statistics_still_stops_a_backup_and_an_adoption(
    tmp_path: Path, worse: str
) -> None:
    place = tmp_path / "s"
    _with_damaged_statistics(place, "a body")
    with closing(sqlite3.connect(place / "catalog.db")) as catalog:
        catalog.execute(worse)
        catalog.commit()
    before = _statistics(place)
    with Store.open(place, upkeep="off") as store:
        with pytest.raises(StoreDamaged):
            store.backup(tmp_path / "b")
        with pytest.raises(StoreDamaged):
            store.adopt()
    assert _statistics(place) == before, "nothing was changed"
    assert not list((tmp_path / "b").glob("*.backup"))


@pytest.mark.parametrize("work", ["compact", "drop"])
def test_a_table_with_damaged_statistics_is_compacted_and_dropped(tmp_path: Path, work: str) -> None:
    place = tmp_path / "s"
    with Store.create(place, ["a"], tablets=1, slots=16, upkeep="off") as store:
        table = store.create_table("t", {"id": range(2_000), "v": range(2_000)}, primary_key="id")
        table.upsert(pa.table({"id": range(1_000), "v": [7] * 1_000}))
        table.create_index("by_v", ["v"])
    with closing(sqlite3.connect(place / "catalog.db")) as catalog:
        for what in ("fragment_statistics", "run_histograms"):
            catalog.execute(DAMAGE_OF_STATISTICS["a body"].format(what, "true"))
        catalog.commit()
    with Store.open(place, upkeep="off") as store:
        getattr(store.table("t"), work)()
        assert store.verify() == []
        if work == "compact":
            assert store.table("t").scan(filter="v = 7").count() == 1_000
