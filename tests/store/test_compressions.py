"""Tables whose files are compressed, or not, and that change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import WriteConflict
from elasticscan.storage.batches.reader import BatchReader
from elasticscan.store import Store, Table
from elasticscan.store.context import Context
from elasticscan.store.repair.rebuild import repair_store

pytestmark = pytest.mark.usefixtures("unflushed")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("n", pa.int64())])
FORMS = (None, "lz4", "zstd")


def rows(start: int, end: int) -> pa.Table:
    ids = range(start, end)
    return pa.table({"id": ids, "city": [f"city {i % 3}" for i in ids], "n": [i * 7 for i in ids]}, SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "store", ["a", "b"], tablets=4, slots=16) as made:
        made.create_table("t", SCHEMA, ["id"])
        yield made


@pytest.fixture
def table(store: Store) -> Table:
    return store.table("t")


def forms(store: Store) -> Counter[str | None]:
    """How many files that are in use have each form."""
    with store.context.catalog.reading() as tx:
        return Counter(map(store.context.readers.compression_of, tx.state.fragments()))


def read(table: Table, **options: Any) -> dict[int, tuple[str, int]]:
    found = table.scan(**options).to_table().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: (row["city"], row["n"]) for row in found}


def wanted(end: int) -> dict[int, tuple[str, int]]:
    return {i: (f"city {i % 3}", i * 7) for i in range(end)}


@pytest.mark.usefixtures("rows_in_files")
def test_files_of_several_forms_are_read_side_by_side(store: Store, table: Table) -> None:
    made = []
    for number, form in enumerate((None, "lz4", "zstd", "NONE")):
        table.set_compression(form)
        made.append(table.upsert(rows(number * 100, (number + 1) * 100)))
    assert forms(store) == {None: 4, "lz4": 2, "zstd": 2}
    table.create_index("by_n", ["n"])
    assert read(table) == wanted(400)
    assert read(table, filter="n = 700", index="by_n") == {100: ("city 1", 700)}
    assert table.get([399, 150, 0]).column("n").to_pylist() == [2793, 1050, 0]
    assert read(table, snapshot=made[1]) == wanted(200)


@pytest.mark.parametrize("form", FORMS)
def test_merges_write_the_form_that_the_table_has_by_then(
    store: Store, table: Table, form: str | None
) -> None:
    table.upsert(rows(0, 100))
    table.set_compression("lz4" if form is None else None)
    table.upsert(rows(100, 200))
    table.set_compression(form)
    assert store.status()["tables"][0]["compression"] == form
    table.compact()
    assert forms(store) == {form: 2}
    assert read(table) == wanted(200)


def test_compact_writes_single_fragments_anew_where_the_form_has_changed(store: Store, table: Table) -> None:
    table.upsert(rows(0, 200))
    table.compact()
    before = {file.name for file in Path(store.uri).rglob("*.arrow")}
    table.set_compression("zstd")
    table.compact()
    assert forms(store) == {"zstd": 2}
    assert read(table) == wanted(200)
    store.collect_garbage(grace_seconds=0)
    packed = {file.name for file in Path(store.uri).rglob("*.arrow")}
    assert packed.isdisjoint(before)
    table.compact()  # nothing is left to do
    assert {file.name for file in Path(store.uri).rglob("*.arrow")} == packed


def test_a_fragment_that_went_before_compact_looked_at_it_is_no_damage(
    store: Store, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.upsert(rows(0, 200))
    table.compact()
    table.set_compression("zstd")
    writable_disk = Context.writable_disk

    def late(context: Context, shard: int) -> Any:
        monkeypatch.setattr(Context, "writable_disk", writable_disk)
        with Store.open(store.uri) as other:
            other.table("t").compact()
            other.collect_garbage(grace_seconds=0, share=1.0)
        return writable_disk(context, shard)

    monkeypatch.setattr(Context, "writable_disk", late)
    with pytest.raises(WriteConflict, match="longer grace"):
        table.compact()
    assert read(table) == wanted(200)


@pytest.mark.usefixtures("rows_in_files")
def test_tablets_that_move_are_written_in_the_new_form(store: Store, table: Table) -> None:
    table.upsert(rows(0, 200))
    table.set_compression("lz4")
    store.contract("b")
    assert set(forms(store)) >= {"lz4"}
    assert read(table) == wanted(200)


@pytest.mark.parametrize("with_catalog", [True, False])
@pytest.mark.usefixtures("rows_in_files")
def test_repair_keeps_the_form_that_was_chosen_last(tmp_path: Path, with_catalog: bool) -> None:
    with Store.create(tmp_path / "old", ["a"], tablets=1, slots=4) as made:
        table = made.create_table("t", SCHEMA, ["id"], compression="lz4")
        for number, form in enumerate(("lz4", "none", "zstd")):
            table.set_compression(form)
            table.upsert(rows(number * 10, (number + 1) * 10))
    if not with_catalog:
        (tmp_path / "old" / "catalog.db").unlink()
    repair_store(tmp_path / "old", tmp_path / "new")
    with Store.open(tmp_path / "new") as made:
        assert made.table("t").definition.compression == "zstd"
        assert forms(made) == {"zstd": 1}
        assert read(made.table("t")) == wanted(30)


@pytest.mark.parametrize("form", ["lz4", "zstd"])
def test_a_batch_is_decompressed_once_and_only_the_columns_that_are_asked_for(
    store: Store, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.create_table("u", SCHEMA, ["id"], compression=form)
    table.upsert(rows(0, 20_000))
    asked: Counter[tuple[str, ...]] = Counter()
    arrow_reader = BatchReader._arrow_reader

    def counted(self: BatchReader, columns: tuple[str, ...]) -> Any:
        asked[columns] += 1
        return arrow_reader(self, columns)

    def copied(*_: Any) -> None:
        raise AssertionError("columns that were decompressed have room of their own, and need no copy")

    monkeypatch.setattr(BatchReader, "_arrow_reader", counted)
    monkeypatch.setattr("pyarrow.ipc.read_record_batch", copied)
    pages = list(table.scan(columns=["n"], page_rows=1_000))
    assert len(pages) >= 20
    # A batch at each shard; those of the key on their own, since these pages end inside of slots.
    assert asked == {("n", "_slot"): 2, ("id", "_slot"): 2}
