"""What a write refuses before it commits: staged files that were damaged, and names with a zero byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import FragmentDamaged, FragmentMissing, InvalidOption
from elasticscan.store import Store
from elasticscan.store.writing import writer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "s.store", ["s1", "s2"], tablets=4, slots=16) as made:
        made.create_table("t", pa.schema([("id", pa.int64()), ("s", pa.string())]), ["id"])
        made.table("t").upsert(pa.table({"id": range(100), "s": ["x"] * 100}))
        yield made


def test_a_staged_file_that_was_damaged_is_reported_as_damage_and_not_as_garbage(store: Store) -> None:
    rows = pa.table({"id": range(1_000), "s": ["y"] * 1_000}).to_batches(max_chunksize=100)
    before = set(Path(store.uri).rglob("*.arrow"))

    def slow() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(rows):
            if number == 8:
                for staged in set(Path(store.uri).rglob("*.arrow")) - before:
                    content = bytearray(staged.read_bytes())
                    content[100] ^= 1
                    staged.write_bytes(content)
            yield batch

    table = store.table("t").definition
    reader = pa.RecordBatchReader.from_batches(table.schema, slow())
    with pytest.raises(FragmentDamaged, match="elasticscan repair OLD NEW") as caught:
        writer.write(store.context, table, reader, buffer_bytes=2_000)
    assert not isinstance(caught.value, FragmentMissing)
    assert store.table("t").scan().to_table().num_rows == 100


def test_texts_of_a_commit_hold_no_zero_byte(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", shards=["a"]) as store:
        table = store.create_table("t", pa.table({"id": [1]}), "id")
        for name in ("a\0b", "", "é" * 513):
            with pytest.raises(InvalidOption, match=r"txn.* must be a name of 1 to 1,024 bytes"):
                table.upsert(pa.table({"id": [2]}), txn=(name, 1))
            with pytest.raises(InvalidOption, match=r"job.* must be a name of 1 to 1,024 bytes"):
                store.load("t", tmp_path, job=name)
        assert table.scan().count() == 1
        table.upsert(pa.table({"id": [2]}), txn=("é" * 512, 1))
