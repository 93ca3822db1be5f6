"""Spilled batches are read back unchanged, and a full or failing disk is a typed error."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import DiskFull
from elasticscan.storage import Spool, spill
from elasticscan.store import Store
from tests.base.small_disks import small_disk

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch([[number], ["x" * 4_000]], schema=SCHEMA)


@pytest.mark.parametrize("most", [1_000, 1 << 20])
def test_batches_are_read_again_also_while_others_come(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(spill, "WRITE_BUFFER_BYTES", most)
    with Spool() as waiting:
        assert list(waiting.batches()) == []
        for count in range(1, 4):
            waiting.write(batch(count))
            begun = waiting.batches()  # an abandoned reader
            next(begun)
            assert [b["k"][0].as_py() for b in waiting.batches()] == list(range(1, count + 1))


def test_a_merge_whose_temporary_files_have_no_room_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "WRITE_BUFFER_BYTES", 1_000)
    with (
        Store.create(tmp_path / "store", ["a"], tablets=1, slots=4) as store,
        small_disk(tmp_path / "small", 1) as disk,
    ):
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        table = store.create_table("t", SCHEMA, ["k"])
        with pytest.raises(DiskFull, match="TMPDIR"):
            table.merge(
                pa.RecordBatchReader.from_batches(SCHEMA, map(batch, range(400))), when_not_matched="ignore"
            )
        assert table.scan().count() == 0
