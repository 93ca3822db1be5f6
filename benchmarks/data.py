"""Rows for benchmarks: an int64 key, an int64, a double, a string and a timestamp, generated.

`batches` has ordinary rows: integers below a million, doubles of four decimals, 1,000 short texts, times in
whole seconds. `random_batches` has random bits in the same columns. No format can compress these, so formats
without compression look better than they are in a comparison with Parquet.
"""

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
KEYS = 1_000_000  # column k of `batches` has uniform values below this
RANDOM_KEYS = 1 << 40  # the same of `random_batches`
_WORDS = pa.array([f"{word} {number}" for number in range(250) for word in ("oslo", "lima", "pune", "quito")])
_FIRST_SECOND = 1_767_225_600  # 2026-01-01T00:00Z


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Return ordinary rows 0 to `rows`, a million at a time, the same on every run."""
    for start, count, chance in _chunks(rows):
        seconds = _FIRST_SECOND + np.arange(start, start + count) + chance.integers(0, 60, count)
        yield _batch(
            start,
            k=pa.array(chance.integers(0, KEYS, count)),
            v=pa.array(chance.integers(0, 10_000, count) / 10_000),
            s=_WORDS.take(pa.array(chance.integers(0, len(_WORDS), count))),
            ts=pa.array(seconds * 1_000_000),
        )


def random_batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Return rows of random bits and 16-byte texts, a million at a time, the same on every run."""
    for start, count, chance in _chunks(rows):
        letters = chance.integers(97, 123, size=count * 16, dtype=np.uint8)
        offsets = np.arange(count + 1, dtype=np.int32) * 16
        texts = pa.Array.from_buffers(
            pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)]
        )
        times = pa.array(chance.integers(0, 1 << 50, count))
        yield _batch(
            start,
            k=pa.array(chance.integers(0, RANDOM_KEYS, count)),
            v=pa.array(chance.random(count)),
            s=texts,
            ts=times,
        )


def _chunks(rows: int) -> Iterator[tuple[int, int, np.random.Generator]]:
    """Yield the first row and the number of rows of each chunk, with a generator seeded by the first row."""
    for start in range(0, rows, CHUNK):
        yield start, min(CHUNK, rows - start), np.random.default_rng(start)


def _batch(start: int, **columns: pa.Array) -> pa.RecordBatch:
    columns["ts"] = columns["ts"].cast(SCHEMA.field("ts").type)
    ids = pa.array(np.arange(start, start + len(columns["k"])))
    return pa.RecordBatch.from_arrays([ids, *columns.values()], schema=SCHEMA)


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
