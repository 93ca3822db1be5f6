"""Stores made again from their files alone."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base import limits
from elasticscan.base.errors import AlreadyExists, InvalidOption, StoreDamaged
from elasticscan.metadata import Manifest, Seal
from elasticscan.storage import LocalDisk, read_manifest
from elasticscan.store import Store, repair_store
from elasticscan.store.repair.plan import FoundFile, plan_by_files
from elasticscan.topology import SlotSet
from tests.seeds import ranges_of_seeds
from tests.simulation.oracle import comparable, rows_of
from tests.simulation.programs import Programs
from tests.simulation.tables import STYLES_BY_NAME, WEIGHTS, Style
from tests.simulation.upkeep import place_for
from tests.simulation.world import World, step

ROWS_IN_FILES = True

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string()), pa.field("n", pa.int64())]
)
Rows = dict[int, tuple[str | None, int | None]]


def some(keys: Iterable[int], text: str = "x") -> pa.Table:
    return pa.table({"id": [*keys], "v": [f"{text} {k}" for k in keys], "n": [*keys]}, SCHEMA)


def as_rows(data: pa.Table) -> Rows:
    found = data.select(["id", "v", "n"]).to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: (row["v"], row["n"]) for row in found}


def rows_in(store: Store) -> Rows:
    return as_rows(store.table("t").scan().to_table())


def made(place: Path, shards: Any = ("a",), tablets: int = 1, slots: int = 8, **options: Any) -> Store:
    store = Store.create(place, shards if isinstance(shards, dict) else [*shards], tablets, slots, **options)
    store.create_table("t", SCHEMA, ["id"])
    return store


def without_catalog(place: Path) -> None:
    for file in place.glob("catalog.db*"):
        file.unlink()


REBUILT = "rebuilt"  # a style of programs
STYLES_BY_NAME[REBUILT] = Style(WEIGHTS | {"merge": 4, "rebuild": 8})


@step
def rebuild(world: World) -> None:
    """The newest rows come back from the files, or from these and the catalog; nothing is changed there."""
    old, new = place_for(world, "old"), place_for(world, "rebuilt")
    # Without it, rows in the log are lost, and what an overwrite replaced whose rows lay there may come back.
    with_catalog = limits.INLINE_BYTES > 0 or world.random.random() < 0.2
    world.say(f"{'with' if with_catalog else 'without'} its catalog")
    shutil.copytree(world.store.uri, old)
    if not with_catalog:
        without_catalog(old)
    before = [(path, path.stat().st_mtime_ns) for path in sorted(old.rglob("*.arrow"))]
    if before:
        report = repair_store(old, new)
        assert report.lost == []
        with Store.open(new, clock=world.clock, upkeep="off") as made:
            for handle in made.tables():
                table = world.tables[handle.name]
                assert handle.schema.types == table.schema.types
                assert [*handle.primary_key] == table.primary_key
            for table in world.tables.values():
                expected = Counter(map(comparable, table.at(table.newest).values()))
                is_there = table.name in report.tables
                found = Counter(rows_of(made.table(table.name).scan().to_table()) if is_there else ())
                lost, more = expected - found, found - expected
                assert not lost and not more, f"{table.name}: lost {lost}, too many {more}"
            for handle in made.tables():
                handle.upsert(handle.scan().to_table())
            assert made.verify() == []
        shutil.rmtree(new)
    assert before == [(path, path.stat().st_mtime_ns) for path in sorted(old.rglob("*.arrow"))]
    shutil.rmtree(old)


class QuietPrograms(Programs):
    """Programs in which one writes after the other: files know when a write began, not when it ended."""

    def _begin(self, *how: Any) -> World:
        world = super()._begin(*how)
        world.noise_left = 0
        return world


@pytest.mark.parametrize("seeds", ranges_of_seeds(8, 6, short=1), ids=str)
def test_a_store_comes_back_as_it_was(tmp_path: Path, seeds: range) -> None:
    with QuietPrograms(tmp_path) as programs:
        for seed in seeds:
            programs.run(seed, REBUILT)
        assert programs.outcomes["rebuild"] > len(seeds)


def test_what_cannot_be_repaired_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="roots"):
        repair_store(tmp_path / "nothing", tmp_path / "new")
    (tmp_path / "old" / "shards" / "a").mkdir(parents=True)
    with pytest.raises(StoreDamaged, match="no file"):
        repair_store(tmp_path / "old", tmp_path / "new")
    with made(tmp_path / "java") as store:
        store.context.catalog.known = replace(store.context.known, hash="java")
        store.create_table("u", SCHEMA, ["id"]).upsert(some(range(3)))
    without_catalog(tmp_path / "java")
    with pytest.raises(InvalidOption, match=r"hash='java' .* must be one of spark"):
        repair_store(tmp_path / "java", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    made(tmp_path / "other").close()
    with pytest.raises(AlreadyExists):
        repair_store(tmp_path / "other", tmp_path / "other")


# ------------------------------------------------------------------------- with what the catalog knows


def three_writes(place: Path) -> list[Path]:
    """A store of one shard with three writes of 100 rows each, and indexes; their files, oldest first."""
    files: list[Path] = []
    with Store.create(place, ["a"], tablets=1, slots=8) as store:
        table = store.create_table("t", SCHEMA, ["id"], compression="zstd")
        for number in range(3):
            table.upsert(some(range(100 * number, 100 * number + 100)))
            files += set((place / "shards" / "a" / "t1").glob("*.arrow")) - set(files)
        table.create_index("by_n", ["n"], include=["v"])
        table.create_index("by_v", ["v"], kind="hash")
    return files


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def no_catalog(old: Path) -> None:
    (old / "catalog.db").write_bytes(b"")


def bring_files(old: Path, other: Path) -> None:
    """Bring files that this store never wrote."""
    for strange in (other / "shards" / "a" / "t1").glob("*.arrow"):
        if not (here := old / "shards" / "a" / "t1" / strange.name).exists():
            shutil.copy(strange, here)


def of_another_store(old: Path, _: list[Path]) -> None:
    with made(old.with_name("other")) as other:
        other.table("t").upsert(some([10_000]))
    bring_files(old, old.with_name("other"))


def never_committed(old: Path, _: list[Path]) -> None:
    """A write to a copy: this catalog never heard of it."""
    shutil.copytree(old, old.with_name("other"))
    with Store.open(old.with_name("other")) as copy:
        copy.adopt()
        copy.table("t").upsert(some([7], "never"))
    bring_files(old, old.with_name("other"))


def older_catalog(old: Path, _: list[Path]) -> None:
    shutil.copy(old / "catalog.db", old.with_name("backup.db"))
    with Store.open(old) as store:
        store.table("t").upsert(some(range(300, 350)))
    shutil.copy(old.with_name("backup.db"), old / "catalog.db")


def overwritten(old: Path, later: int) -> None:
    """By no rows, which leaves no file: the catalog alone knows of it."""
    with Store.open(old) as store:
        store.table("t").overwrite(some([]))
        store.table("t").upsert(some(range(later)))


def all_of(*losses: Callable[[], object]) -> None:
    for lose in losses:
        lose()


def dropped(old: Path, _: list[Path]) -> None:
    with Store.open(old) as store:
        store.create_table("gone", SCHEMA, ["id"]).upsert(some([1]))
        store.table("gone").drop()
        store.create_table("empty", SCHEMA, ["id"])


KNOWN = r"table 't': all 100 rows in slots 0-8, of commits 3 to 3"
# What becomes of three writes; then the rows of tables, what is lost, and what is doubtful.
LOSSES: dict[str, tuple[Callable[[Path, list[Path]], object], dict[str, int], list[str], list[str]]] = {
    "a file": (lambda _, files: all_of(files[1].unlink), {"t": 200}, [f"{KNOWN}.*is gone"], []),
    "its end": (lambda _, files: cut_off(files[1]), {"t": 200}, [KNOWN], []),
    "the catalog, a file and the end of one": (
        lambda old, files: all_of(files[2].unlink, partial(cut_off, files[1]), partial(no_catalog, old)),
        {"t": 100},
        ["table 't': a file whose footer cannot be read"],
        ["are not noticed"],
    ),
    "nothing, with a file of another store": (of_another_store, {"t": 300}, [], []),
    "nothing, with a file of no commit": (never_committed, {"t": 300}, [], []),
    "the newest catalog": (older_catalog, {"t": 350}, [], ["older than the files"]),
    "rows that were overwritten": (lambda old, _: overwritten(old, 0), {"t": 0}, [], []),
    "rows that were overwritten before": (lambda old, _: overwritten(old, 1), {"t": 1}, [], []),
    "the catalog of such": (
        lambda old, _: all_of(partial(overwritten, old, 1), partial(no_catalog, old)),
        {"t": 300},
        [],
        ["an overwrite by no rows"],
    ),
    "a table that was dropped": (dropped, {"t": 300, "empty": 0}, [], []),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_lost_is_named_and_what_was_gone_stays_away(tmp_path: Path, loss: str) -> None:
    lose, tables, lost, doubts = LOSSES[loss]
    files = three_writes(tmp_path / "old")
    lose(tmp_path / "old", files)
    report = repair_store(tmp_path / "old", tmp_path / "new")
    assert report.tables == tables
    assert len(report.lost) == len(lost) and bool(report.doubts) == bool(doubts), (report.lost, report.doubts)
    for pattern in (*lost, *doubts):
        assert any(re.search(pattern, text) for text in (*report.lost, *report.doubts)), pattern
    with Store.open(tmp_path / "new") as store:
        expected = as_rows(some(range(350)))
        assert len(rows_in(store)) == tables["t"] and rows_in(store).items() <= expected.items()
        table = store.table("t")
        assert table.definition.created_commit == table.history()[0].number
        assert table.definition.compression == "zstd"
        found = {(i.name, i.kind, i.columns, i.include, i.ready) for i in table.indexes()}
        assert found == {("by_n", "sorted", ("n",), ("v",), True), ("by_v", "hash", ("v",), (), True)}


def test_a_shard_that_is_gone_is_named_wherever_it_was(tmp_path: Path) -> None:
    roots = {"a": str(tmp_path / "far"), "b": str(tmp_path / "off")}
    with made(tmp_path / "old", shards=roots, tablets=2) as store:
        store.table("t").upsert(some(range(100)))
        store.table("t").set_retention("2h")
    shutil.rmtree(tmp_path / "off")
    report = repair_store(tmp_path / "old", tmp_path / "new")
    assert any("shard 'b'" in text for text in report.lost)
    assert any(text.startswith("table 't': all ") and "is gone" in text for text in report.lost)
    assert 0 < report.tables["t"] < 100
    with Store.open(tmp_path / "new") as store:
        assert store.status()["tables"][0]["retention_seconds"] == 7_200


# ------------------------------------------------------------------------------------ the plan alone


# A file: its path, the commit after which it was written, when, and what else its manifest says.
File = tuple[str, int, float, dict[str, Any]]
A: File = ("a", 1, 10.0, {})
B: File = ("b", 2, 11.0, {})
C: File = ("c", 3, 11.5, {})
OF_AB: dict[str, Any] = {"operation": "compact", "replaces": ("a", "b"), "min_commit": 2, "max_commit": 3}
OF_ABC = OF_AB | {"replaces": ("a", "b", "c"), "max_commit": 4}
ELSEWHERE: dict[str, Any] = {
    "root": 1, "operation": "compact", "complete": True, "min_commit": 2, "max_commit": 4
}  # fmt: skip


LOW = SlotSet.span(0, 8)

# The files of a table, and the slots that each serves in the plan, in its order.
PLANS: dict[str, tuple[list[File], dict[str, str]]] = {
    "what a merge replaced": (
        [A, B, ("m", 2, 12.0, OF_AB), ("d", 3, 13.0, {})],
        {"m": "0-16", "d": "0-16"},
    ),
    "a merge of some slots": (
        [A, B, ("m", 3, 12.0, OF_AB | {"slots": LOW})],
        {"a": "8-16", "b": "8-16", "m": "0-8"},
    ),
    "slots that moved to a merge elsewhere": (
        [A, ("m", 4, 12.0, ELSEWHERE | {"slots": LOW, "epochs": ((0, 8, 2),)})],
        {"a": "8-16", "m": "0-8"},
    ),
    "a merge that was never entered": (
        [C, ("s", 3, 12.0, OF_AB), ("m", 3, 12.0, OF_ABC), ("n", 3, 12.5, OF_ABC)],
        {"n": "0-16"},
    ),
    "rows that are newer than a merge elsewhere": (
        [("a", 9, 10.0, {}), ("m", 4, 12.0, ELSEWHERE | {"epochs": ((0, 16, 2),)})],
        {"a": "0-16", "m": "0-16"},
    ),
    "writes at the same time, in the order in which they began": (
        [("b", 1, 11.0, {}), ("c", 2, 9.0, {}), ("a", 1, 10.0, {})],
        {"a": "0-16", "b": "0-16", "c": "0-16"},
    ),
    "the newer of two tables of one name": (
        [A, ("b", 5, 20.0, {"table": 2})],
        {"b": "0-16"},
    ),
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """What a file of a table says of itself."""
    place = tmp_path_factory.mktemp("written") / "s"
    with made(place, slots=16) as store:
        store.table("t").upsert(some([1]))
    (file,) = (place / "shards" / "a").rglob("*.arrow")
    written = read_manifest(LocalDisk(place / "shards" / "a"), f"t1/{file.name}")
    return replace(written, slots=SlotSet.span(0, 16), epochs=((0, 16, 1),))


@pytest.mark.parametrize("case", PLANS)
def test_what_counts_of_files_that_were_merged_and_moved(manifest: Manifest, case: str) -> None:
    files, serving = PLANS[case]
    found = list[FoundFile]()
    for path, after, began, more in files:
        said: dict[str, Any] = {"path": path, "write": path, "after_commit": after, "began_at": began} | more
        found.append(FoundFile(said.pop("root", 0), replace(manifest, **said), Seal(1, 1, 1)))
    plan = plan_by_files(found, {})
    assert plan is not None
    (table,) = plan.tables
    served = [(fragment.path, str(fragment.slots)) for fragment in table.fragments]
    assert dict(served) == serving
    if case.startswith("writes"):
        assert [path for path, _ in served] == [*serving]
        assert [fragment.min_commit for fragment in table.fragments] == [2, 2, 3]
