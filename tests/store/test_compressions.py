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

pytestmark = pytest.mark.usefixtures("unflushed")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("n", pa.int64())])


def rows(start: int, end: int) -> pa.Table:
    ids = range(start, end)
    return pa.table({"id": ids, "city": [f"city {i % 3}" for i in ids], "n": [i * 7 for i in ids]}, SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "store", ["a", "b"], tablets=4, slots=16) as made:
        made.create_table("t", SCHEMA, ["id"])
        yield made


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
