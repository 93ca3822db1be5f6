"""Stores made again from their files alone."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base import limits
from elasticscan.base.errors import AlreadyExists, InvalidOption, StoreDamaged, StoreNotFound
from elasticscan.metadata import Manifest, Seal
from elasticscan.store import Store, repair_store
from elasticscan.store.repair.plan import FoundFile, TablePlan, plan_repair
from elasticscan.topology import SlotSet

ROWS_IN_FILES = True

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string()), pa.field("n", pa.int64())]
)
Rows = dict[int, tuple[str | None, int | None]]


def rows_in(store: Store, table: str = "t") -> Rows:
    found = store.table(table).scan(["id", "v", "n"]).to_table().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: (row["v"], row["n"]) for row in found}


def write(store: Store, oracle: Rows, keys: list[int], text: str) -> None:
    store.table("t").upsert(pa.table({"id": keys, "v": [f"{text} {k}" for k in keys], "n": keys}, SCHEMA))
    oracle.update({k: (f"{text} {k}", k) for k in keys})


def delete(store: Store, oracle: Rows, keys: list[int]) -> None:
    store.table("t").delete(pa.table({"id": keys}))
    for key in keys:
        oracle.pop(key, None)


def lived_in(place: Path, seed: int) -> Rows:
    """A store that was written, resharded, compacted and collected in a random order; returns its rows."""
    rng, oracle = random.Random(seed), Rows()
    tablets, slots = (4, 32) if seed % 2 else (2, 2)  # of few, whole files leave and come back
    with Store.create(place, ["a", "b"], tablets=tablets, slots=slots) as store:
        store.create_table("t", SCHEMA, ["id"])
        write(store, oracle, list(range(200)), "first")
        for step in range(14):
            what = rng.choice(("write", "write", "delete", "move", "compact", "gc", "split", "overwrite"))
            keys = rng.sample(range(300), 40)
            if what == "write":
                write(store, oracle, keys, f"step {step}")
            elif what == "delete":
                delete(store, oracle, keys)
            elif what == "move":
                tablet = rng.choice(store.topology.placement.tablets)
                others = [name for shard, name in store.topology.shard_names if shard != tablet.shard]
                store.move(tablet.id, others[0])
            elif what == "compact":
                store.table("t").set_retention("0s")
                store.compact()
            elif what == "gc":
                store.collect_garbage(grace_seconds=0)
            elif what == "split":
                for tablet in rng.sample(store.topology.placement.tablets, 1):
                    if tablet.end - tablet.start > 1:
                        store.split(tablet.id)
            elif rng.random() < 0.3:
                oracle.clear()
                oracle.update({k: ("over", k) for k in keys})
                store.table("t").overwrite(pa.table({"id": keys, "v": ["over"] * 40, "n": keys}, SCHEMA))
        assert rows_in(store) == oracle
    return oracle


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(at, marks=pytest.mark.long) for at in range(6, 30))]
)
def test_a_store_without_its_catalog_comes_back_as_it_was(tmp_path: Path, seed: int) -> None:
    oracle = lived_in(tmp_path / "old", seed)
    for file in (tmp_path / "old").glob("catalog.db*"):
        file.unlink()
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "old").rglob("*"))
    report = repair_store(tmp_path / "old", tmp_path / "new")
    assert report.tables == {"t": len(oracle)}
    assert report.lost == []
    with Store.open(tmp_path / "new") as store:
        assert rows_in(store) == oracle
        assert store.table("t").primary_key == ("id",)
        assert store.table("t").schema == SCHEMA
        assert store.verify() == []
        store.table("t").upsert(pa.table({"id": [1], "v": ["more"], "n": [1]}, SCHEMA))
    assert before == sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "old").rglob("*"))


@pytest.mark.parametrize("seed", range(4))
def test_a_store_with_its_catalog_comes_back_with_the_rows_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(limits, "INLINE_BYTES", 64 << 10)
    oracle = lived_in(tmp_path / "old", seed)
    report = repair_store(tmp_path / "old", tmp_path / "new")
    assert (report.tables, report.lost) == ({"t": len(oracle)}, [])
    with Store.open(tmp_path / "new") as store:
        assert rows_in(store) == oracle


def test_files_of_another_hash_make_no_store(tmp_path: Path) -> None:
    with Store.create(tmp_path / "old", ["a"], tablets=2, slots=8) as store:
        store.context.info = replace(store.context.info, hash="java")
        store.create_table("t", SCHEMA, ["id"])
        store.table("t").upsert(pa.table({"id": range(3), "v": ["x"] * 3, "n": range(3)}, SCHEMA))
    (tmp_path / "old" / "catalog.db").unlink()
    with pytest.raises(InvalidOption, match=r"hash='java' .* must be one of spark"):
        repair_store(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_indexes_and_columns_that_were_added_come_back(tmp_path: Path) -> None:
    with Store.create(tmp_path / "old", ["a"], tablets=2, slots=8) as store:
        store.create_table("t", SCHEMA, ["id"], compression="zstd")
        store.table("t").upsert(pa.table({"id": range(50), "v": ["x"] * 50, "n": range(50)}, SCHEMA))
        store.table("t").create_index("by_n", ["n"], include=["v"])
        store.table("t").create_index("by_v", ["v"], kind="hash")
        store.table("t").add_columns([pa.field("more", pa.float64())])
        wide = store.table("t").schema
        store.table("t").upsert(pa.table({"id": [1], "v": ["y"], "n": [7], "more": [0.5]}, wide))
    (tmp_path / "old" / "catalog.db").unlink()
    repair_store(tmp_path / "old", tmp_path / "new")
    with Store.open(tmp_path / "new") as store:
        table = store.table("t").definition
        assert (table.schema, table.compression, store.context.info.hash) == (wide, "zstd", "spark")
        found = {(i.name, i.kind, i.columns, i.include, i.ready) for i in store.table("t").indexes()}
        assert found == {("by_n", "sorted", ("n",), ("v",), True), ("by_v", "hash", ("v",), (), True)}
        assert store.table("t").scan(filter="n = 7", index="by_n").to_table().num_rows == 2


def test_damaged_parts_are_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticscan.storage.fragment.BATCH_ROWS", 10_000)
    with Store.create(tmp_path / "old", ["a"], tablets=1, slots=16) as store:
        store.create_table("t", SCHEMA, ["id"])
        keys = range(100_000)
        store.table("t").upsert(pa.table({"id": keys, "v": [f"{k:09}" for k in keys], "n": keys}, SCHEMA))
    (tmp_path / "old" / "catalog.db").unlink()
    (file,) = (tmp_path / "old" / "shards" / "a" / "t1").glob("*.arrow")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    report = repair_store(tmp_path / "old", tmp_path / "new")
    assert 1 <= len(report.lost) <= 2, "two batches may share the segment"
    assert all("table 't'" in text and "checksum" in text for text in report.lost)
    assert 80_000 < report.tables["t"] < 100_000
    with Store.open(tmp_path / "new") as store:
        found = rows_in(store)
        assert len(found) == report.tables["t"]
        assert all(value == (f"{key:09}", key) for key, value in found.items())


def test_what_cannot_be_repaired_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="roots"):
        repair_store(tmp_path / "nothing", tmp_path / "new")
    (tmp_path / "old" / "shards" / "a").mkdir(parents=True)
    with pytest.raises(StoreDamaged, match="no file"):
        repair_store(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    lived_in(tmp_path / "other", 1)
    with pytest.raises(AlreadyExists):
        repair_store(tmp_path / "other", tmp_path / "other")


def test_files_of_another_store_stay_out(tmp_path: Path) -> None:
    oracle = lived_in(tmp_path / "old", 3)
    with Store.create(tmp_path / "other", ["a"], tablets=1, slots=8) as other:
        other.create_table("t", SCHEMA, ["id"])
        other.table("t").upsert(pa.table({"id": [10_000], "v": ["x"], "n": [0]}, SCHEMA))
    (strange,) = (tmp_path / "other" / "shards" / "a" / "t1").glob("*.arrow")
    shutil.copy(strange, tmp_path / "old" / "shards" / "a" / "t1")
    report = repair_store(tmp_path / "old", tmp_path / "new")
    assert any("another store" in text for text in report.doubts)
    with Store.open(tmp_path / "new") as store:
        assert rows_in(store) == oracle


# ------------------------------------------------------------------------- with what the catalog knows


def three_writes(place: Path) -> list[Path]:
    """A store of one shard with three writes of 100 rows each; their files, oldest first."""
    files: list[Path] = []
    with Store.create(place, ["a"], tablets=1, slots=8) as store:
        store.create_table("t", SCHEMA, ["id"])
        for number in range(3):
            write(store, {}, list(range(100 * number, 100 * number + 100)), "x")
            now = set((place / "shards" / "a" / "t1").glob("*.arrow"))
            files += now - set(files)
    return files


@pytest.mark.parametrize("cut", [False, True])
def test_a_file_that_is_gone_is_named_by_what_the_catalog_knows(tmp_path: Path, cut: bool) -> None:
    file = three_writes(tmp_path / "old")[1]
    if cut:
        file.write_bytes(file.read_bytes()[:-100])
    else:
        file.unlink()
    report = repair_store(tmp_path / "old", tmp_path / "new")
    (lost,) = report.lost
    assert lost.startswith("table 't': all 100 rows in slots 0-8, of commits 3 to 3")
    assert file.name in lost
    assert ("is gone" in lost) == (not cut)
    assert (report.tables, report.doubts) == ({"t": 200}, [])


def test_a_shard_that_is_gone_is_named_wherever_it_was(tmp_path: Path) -> None:
    with Store.create(tmp_path / "old", {"a": str(tmp_path / "far"), "b": str(tmp_path / "off")}) as store:
        store.create_table("t", SCHEMA, ["id"])
        write(store, {}, list(range(100)), "x")
    shutil.rmtree(tmp_path / "off")
    report = repair_store(tmp_path / "old", tmp_path / "new")
    assert any("shard 'b'" in text for text in report.lost)
    assert any(text.startswith("table 't': all ") and "is gone" in text for text in report.lost)
    assert 0 < report.tables["t"] < 100


def test_without_a_catalog_it_is_said_that_missing_files_are_not_noticed(tmp_path: Path) -> None:
    first, cut, gone = three_writes(tmp_path / "old")
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-100])
    assert first.exists()
    (tmp_path / "old" / "catalog.db").write_bytes(b"")
    report = repair_store(tmp_path / "old", tmp_path / "new")
    (lost,) = report.lost
    assert lost.startswith("table 't': a file whose footer cannot be read")
    assert any("are not noticed" in text for text in report.doubts)


def test_a_handle_that_has_not_looked_writes_after_what_others_wrote(tmp_path: Path) -> None:
    """Its files say so, too, which alone decide where there is no catalog."""
    old, row = tmp_path / "old", {"id": [1], "n": [1]}
    with Store.create(old, ["a"], tablets=1, slots=1, upkeep="off") as store:
        store.create_table("t", SCHEMA, ["id"])
    with Store.open(old) as store, Store.open(old) as other:
        for text in ("first", "second"):
            other.table("t").upsert(pa.table({**row, "v": [text]}).select(SCHEMA.names).cast(SCHEMA))
        (table,) = store.tables()
        table.upsert(pa.table({**row, "v": ["third"]}).select(SCHEMA.names).cast(SCHEMA))
    (old / "catalog.db").unlink()
    repair_store(old, tmp_path / "new")
    with Store.open(tmp_path / "new") as store:
        assert rows_in(store) == {1: ("third", 1)}


def test_a_handle_that_has_not_looked_writes_to_no_shard_that_is_gone(tmp_path: Path) -> None:
    Store.create(tmp_path / "s", ["a", "b"], tablets=2, slots=4).close()
    with Store.open(tmp_path / "s") as store, Store.open(tmp_path / "s") as other:
        for name in ("t", "u"):
            store.create_table(name, SCHEMA, ["id"])
        rows = pa.table({"id": range(20), "v": ["x"] * 20, "n": [1] * 20}, SCHEMA)
        store.table("u").upsert(rows)
        table = next(table for table in store.tables() if table.name == "t")
        other.contract("b")
        other.collect_garbage(grace_seconds=0, trash_seconds=0)
        shutil.rmtree(tmp_path / "s" / "shards" / "b")
        table.upsert(rows)
        assert table.scan().count() == 20


@pytest.mark.parametrize("later", [0, 1])
def test_rows_that_were_overwritten_by_none_stay_away(tmp_path: Path, later: int) -> None:
    """Such an overwrite leaves no file: the catalog alone knows of it."""
    old = tmp_path / "old"
    three_writes(old)
    rows = pa.table({"id": [7], "v": ["new"], "n": [7]}, SCHEMA)
    with Store.open(old) as store:
        store.table("t").overwrite(rows.slice(0, 0))
        store.table("t").upsert(rows.slice(0, later))
    assert repair_store(old, tmp_path / "new").tables == {"t": later}
    (old / "catalog.db").write_bytes(b"")
    report = repair_store(old, tmp_path / "newer")
    assert any("an overwrite by no rows" in text for text in report.doubts)


def test_what_was_dropped_or_never_committed_stays_away(tmp_path: Path) -> None:
    old = tmp_path / "old"
    three_writes(old)
    with Store.open(old) as store:
        store.create_table("gone", SCHEMA, ["id"])
        store.table("gone").upsert(pa.table({"id": [1], "v": ["x"], "n": [1]}, SCHEMA))
        store.table("gone").drop()
        store.create_table("empty", SCHEMA, ["id"])
        store.table("t").create_index("by_n", ["n"])
        store.table("t").drop_index("by_n")
        store.table("t").set_retention("2h")
        shutil.copytree(old, tmp_path / "alongside")
    # A write to a copy, whose file is brought here: this catalog never heard of it.
    with Store.open(tmp_path / "alongside") as copy:
        copy.adopt()
        before = set((tmp_path / "alongside" / "shards" / "a" / "t1").glob("*.arrow"))
        copy.table("t").upsert(pa.table({"id": [7], "v": ["never"], "n": [7]}, SCHEMA))
    (strange,) = set((tmp_path / "alongside" / "shards" / "a" / "t1").glob("*.arrow")) - before
    shutil.copy(strange, old / "shards" / "a" / "t1")
    report = repair_store(old, tmp_path / "new")
    assert (report.tables, report.lost) == ({"t": 300, "empty": 0}, [])
    (doubt,) = report.doubts
    assert doubt.startswith("1 files that the catalog does not know")
    with Store.open(tmp_path / "new") as store:
        assert (rows_in(store)[7], store.table("t").indexes()) == (("x 7", 7), ())
        assert store.status()["tables"][1]["retention_seconds"] == 7_200
        assert store.table("t").definition.created_commit == store.table("t").history()[0].number


def test_a_catalog_that_is_older_than_the_files_is_not_believed(tmp_path: Path) -> None:
    old = tmp_path / "old"
    three_writes(old)
    shutil.copy(old / "catalog.db", tmp_path / "backup.db")
    with Store.open(old) as store:
        write(store, {}, list(range(300, 350)), "later")
    shutil.copy(tmp_path / "backup.db", old / "catalog.db")
    report = repair_store(old, tmp_path / "new")
    assert report.tables == {"t": 350}
    assert any("older than the files" in text for text in report.doubts)


def without_tables(catalog: Path) -> None:
    with closing(sqlite3.connect(catalog)) as database:
        database.execute("VACUUM")


LOST: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "empty": (lambda catalog: catalog.write_bytes(b""), StoreDamaged, r"elasticscan repair .* NEW"),
    "no database": (lambda catalog: catalog.write_bytes(b"none" * 4_000), StoreDamaged, "repair OLD NEW"),
    "without tables": (without_tables, StoreNotFound, "without tables.*repair .* NEW"),
    "gone": (lambda catalog: None, StoreNotFound, r"elasticscan repair .* NEW"),
    "gone, and all files": (
        lambda catalog: shutil.rmtree(catalog.with_name("shards") / "a" / "t1"), StoreNotFound, "repair"
    ),
    "gone, and all markers": (
        lambda catalog: (catalog.with_name("shards") / "a" / "elasticscan-shard").unlink(),
        StoreNotFound,
        "repair",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", LOST)
def test_a_lost_catalog_leads_to_repair(tmp_path: Path, how: str) -> None:
    lose, error, message = LOST[how]
    three_writes(tmp_path / "old")
    (tmp_path / "old" / "catalog.db").unlink()
    lose(tmp_path / "old" / "catalog.db")
    with pytest.raises(error, match=message):
        Store.open(tmp_path / "old")
    with pytest.raises((StoreDamaged, StoreNotFound)):
        Store.create(tmp_path / "old", ["z"])


# ------------------------------------------------------------------------------------ the plan alone


def found(path: str, after: int, began: float, **changes: object) -> FoundFile:
    manifest = Manifest(
        kind="fragment",
        store="s",
        store_slots=16,
        store_hash="spark",
        shard=1,
        table=1,
        table_name="t",
        primary_key=("id",),
        shard_key=("id",),
        compression=None,
        not_null=("id",),
        path=path,
        operation="write",
        write=path,
        after_commit=after,
        began_at=began,
        min_commit=0,
        max_commit=0,
        slots=SlotSet.span(0, 16),
        epochs=((0, 16, 1),),
        replaces=(),
        rows=1,
        unique=True,
        tombstones=0,
    )
    root = int(changes.pop("root", 0))  # type: ignore[call-overload]
    return FoundFile(root, replace(manifest, **changes), Seal(1, 1, 1))  # type: ignore[arg-type]


def plan_of(*files: FoundFile) -> TablePlan:
    """The plan of the only table."""
    plan = plan_repair(files, {})
    assert plan is not None
    (table,) = plan.tables
    return table


A, B, C = found("a", 1, 10.0), found("b", 2, 11.0), found("c", 3, 11.5)
OF_AB: dict[str, object] = {"operation": "compact", "replaces": ("a", "b"), "min_commit": 2, "max_commit": 3}
OF_ABC = {**OF_AB, "replaces": ("a", "b", "c"), "max_commit": 4}
ELSEWHERE: dict[str, object] = {
    "root": 1, "operation": "compact", "complete": True, "min_commit": 2, "max_commit": 4
}  # fmt: skip
LOW = SlotSet.span(0, 8)

# The files of a table, and the slots that each serves in the plan.
PLANS: dict[str, tuple[list[FoundFile], dict[str, str]]] = {
    "what a merge replaced": (
        [A, B, found("m", 2, 12.0, **OF_AB), found("d", 3, 13.0)],
        {"m": "0-16", "d": "0-16"},
    ),
    "a merge of some slots": (
        [A, B, found("m", 3, 12.0, **OF_AB, slots=LOW)],
        {"a": "8-16", "b": "8-16", "m": "0-8"},
    ),
    "a merge that was never entered": (
        [C, found("s", 3, 12.0, **OF_AB), found("m", 3, 12.0, **OF_ABC), found("n", 3, 12.5, **OF_ABC)],
        {"n": "0-16"},
    ),
    "rows that are newer than a merge elsewhere": (
        [found("a", 9, 10.0), found("m", 4, 12.0, **ELSEWHERE, epochs=((0, 16, 2),))],
        {"a": "0-16", "m": "0-16"},
    ),
    "slots that moved to a merge elsewhere": (
        [A, found("m", 4, 12.0, **ELSEWHERE, slots=LOW, epochs=((0, 8, 2),))],
        {"a": "8-16", "m": "0-8"},
    ),
}


@pytest.mark.parametrize("case", PLANS)
def test_what_counts_of_files_that_were_merged_and_moved(case: str) -> None:
    files, serving = PLANS[case]
    assert {fragment.path: str(fragment.slots) for fragment in plan_of(*files).fragments} == serving


def test_writes_that_ran_at_the_same_time_count_in_the_order_in_which_they_began() -> None:
    fragments = plan_of(found("b", 1, 11.0), found("c", 2, 9.0), found("a", 1, 10.0)).fragments
    assert [(fragment.path, fragment.min_commit) for fragment in fragments] == [("a", 2), ("b", 2), ("c", 3)]


def test_of_two_tables_of_one_name_the_newer_comes_back() -> None:
    table = plan_of(found("a", 1, 10.0), found("b", 5, 20.0, table=2))
    assert [fragment.path for fragment in table.fragments] == ["b"]
