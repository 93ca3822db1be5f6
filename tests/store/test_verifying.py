"""`verify` goes on behind damage, and tells what it costs: rows, slots, commits, and where a copy is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import apsw
import numpy as np
import pyarrow as pa
import pytest

from elasticscan.base.errors import ElasticScanError, StoreDamaged
from elasticscan.base.hashing import slots_of
from elasticscan.metadata import Fragment
from elasticscan.storage.sealed_file import SEGMENT_BYTES
from elasticscan.store import Store, repair_store
from elasticscan.store.roots.location import MARKER
from tests.base.manual_clock import ManualClock

ROWS_IN_FILES = True

ROWS = 300_000


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.create(tmp_path / "s", ["a"], tablets=4, slots=16, clock=clock) as made:
        table = made.create_table("t", pa.schema({"id": pa.int64(), "v": pa.int64()}), ["id"])
        table.upsert({"id": np.arange(ROWS), "v": np.arange(ROWS)})
        yield made


def file_of(store: Store) -> Path:
    fragment = max(fragments(store), key=lambda fragment: fragment.rows)
    return Path(store.uri) / "shards" / "a" / fragment.path


def fragments(store: Store) -> list[Fragment]:
    return list(store.context.catalog.newest().state.fragments())


def flip(path: Path, *places: int) -> None:
    with path.open("r+b") as file:
        for at in places:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1]))


def test_a_repair_loses_the_rows_and_slots_that_it_names_of_a_file_with_two_damages(
    store: Store, tmp_path: Path
) -> None:
    path = file_of(store)
    flip(path, 5, path.stat().st_size - 3 * SEGMENT_BYTES)
    (found,) = store.verify()
    assert (found.shard, found.table, found.index, found.commits) == ("a", "t", None, (2, 2))
    assert found.path is not None and path.as_posix().endswith(found.path)
    assert "up to 300,000 rows in slots 0-16, of commit 2" in str(found)
    report = repair_store(store.uri, tmp_path / "new")
    with Store.open(tmp_path / "new") as made:
        gone = np.setdiff1d(np.arange(ROWS), made.table("t").scan(["id"]).to_table()["id"])
    assert 0 < len(gone) == ROWS - report.tables["t"] < ROWS
    told = [
        re.search(r"table 't': ([\d,]+) rows in slots (\d+)-(\d+),.*checksum", text) for text in report.lost
    ]
    assert len(told) >= 2 and sum(int(each[1].replace(",", "")) for each in told if each) == len(gone)
    slots = {slot for each in told if each for slot in range(int(each[2]), int(each[3]))}
    assert {0, 15} <= slots == {*slots_of([pa.array(gone)], 16)} < set(range(16))


def test_damage_of_an_index_costs_no_row(store: Store) -> None:
    store.table("t").create_index("by_v", ["v"])
    (run,) = store.context.catalog.newest().state.runs(1)
    flip(Path(store.uri) / "shards" / "a" / run.path, 5)
    (Path(store.uri) / "shards" / "a" / MARKER).unlink()
    marker, found = store.verify()
    assert (marker.shard, marker.path, str(marker)) == ("a", None, marker.error)
    assert (found.index, found.rows, found.commits) == ("by_v", ROWS, None)
    assert "no row is lost: make the index again" in str(found)


# Of what is known of the values in files: no row depends on it.
DAMAGE_OF_STATISTICS = {
    "a byte": "UPDATE payload SET bytes = CAST(substr(bytes, 1, 9) || x'07' AS BLOB)",
    "gone": "DELETE FROM payload",
}


def _with_damaged_statistics(place: Path, damage: str) -> None:
    with Store.create(place, ["a", "b"], tablets=4, slots=16, upkeep="off") as store:
        for name in ("t", "u"):
            table = store.create_table(name, {"id": range(2_000), "v": range(2_000)}, primary_key="id")
            table.upsert(pa.table({"id": range(100), "v": [7] * 100}))
            table.create_index("by_v", ["v"])
    with closing(apsw.Connection(str(place / "catalog.db"))) as catalog:
        catalog.execute(f"{DAMAGE_OF_STATISTICS[damage]} WHERE part = 'statistics'")
        assert catalog.changes() > 0


def _check_rows(store: Store) -> None:
    for name in ("t", "u"):
        for index in ("auto", "none", "by_v"):
            assert store.table(name).scan(filter="v = 7", index=index).count() == 100
            assert store.table(name).scan(filter="v >= 1900", index=index).count() == 100
        assert store.table(name).aggregate(["max(id) AS most"]).to_pylist() == [{"most": 1_999}]
    assert store.verify() == []


@pytest.mark.parametrize("damage", DAMAGE_OF_STATISTICS)
def test_damaged_statistics_stop_nothing(tmp_path: Path, damage: str) -> None:
    place = tmp_path / "s"
    _with_damaged_statistics(place, damage)
    with Store.open(place, upkeep="off", read_only=True) as store:
        _check_rows(store)
        store.backup(tmp_path / "b")
    report = repair_store(place, tmp_path / "repaired")
    assert not report.lost + report.doubts
    with Store.from_backup(tmp_path / "b", tmp_path / "new") as other:
        _check_rows(other)
    with Store.open(place, upkeep="off") as store:
        store.collect_garbage()
        store.adopt()
        store.table("t").compact()
        _check_rows(store)
        store.table("u").drop()
        assert store.verify() == []
    with closing(apsw.Connection(str(place / "catalog.db"))) as catalog:  # which is no damage of statistics
        catalog.execute("DELETE FROM log WHERE number = 2")
    for use in (lambda store: store.backup(tmp_path / "c"), Store.adopt):
        with pytest.raises(StoreDamaged), Store.open(place, upkeep="off") as store:
            use(store)


def test_definitions_of_the_catalog_s_tables_are_checked(tmp_path: Path) -> None:
    """No row is wrong: a letter of a name is, in a text that SQLite reads when it opens the file."""
    with Store.create(tmp_path / "store", ["s1"], tablets=1, slots=16, upkeep="off") as store:
        store.create_table("t", pa.schema({"id": pa.int64()}), ["id"]).upsert(pa.table({"id": range(9)}))

    def put(name: str, text: str) -> None:
        with closing(apsw.Connection(str(tmp_path / "store" / "catalog.db"))) as sql:
            sql.execute("PRAGMA writable_schema = ON")
            sql.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (text, name))

    with closing(apsw.Connection(str(tmp_path / "store" / "catalog.db"))) as sql:
        texts = dict(sql.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    flips = [(name, word) for name, text in texts.items() for word in re.findall(r"\w+", text)[-2:]]
    assert len(flips) > 10
    for name, word in flips:
        put(name, texts[name].replace(word, f"{word[:-1]}q"))
        with suppress(ElasticScanError), Store.open(store.uri) as damaged:
            assert damaged.verify(), (name, word)
        put(name, texts[name])
    with Store.open(store.uri) as mended:
        assert mended.verify() == []
