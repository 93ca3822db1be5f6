"""The benchmark's rows: int64 key, int64, double, 16-byte string, timestamp. Made, not downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elasticscan.store import Store

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("k", pa.int64()),
        pa.field("v", pa.float64()),
        pa.field("s", pa.string()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
    ]
)
CHUNK = 1_000_000


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Rows 0 to `rows`, a million at a time, the same on every run."""
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        chance = np.random.default_rng(start)
        letters = chance.integers(97, 123, size=count * 16, dtype=np.uint8)
        offsets = np.arange(count + 1, dtype=np.int32) * 16
        texts = pa.Array.from_buffers(
            pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)]
        )
        times = pa.array(chance.integers(0, 1 << 50, count)).cast(pa.timestamp("us", tz="UTC"))
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(np.arange(start, start + count)),
                pa.array(chance.integers(0, 1 << 40, count)),
                pa.array(chance.random(count)),
                texts,
                times,
            ],
            schema=SCHEMA,
        )


def write_parquet(path: Path, rows: int) -> None:
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for batch in batches(rows):
            writer.write_batch(batch)


def parquet_reader(path: Path) -> pa.RecordBatchReader:
    file = pq.ParquetFile(path)
    return pa.RecordBatchReader.from_batches(SCHEMA, file.iter_batches(batch_size=1 << 18))


def make_store(place: Path, source: pa.RecordBatchReader) -> Store:
    store = Store.create(place, ["s1", "s2"])
    store.create_table("t", SCHEMA, ["id"])
    store.table("t").upsert(source)
    return store
