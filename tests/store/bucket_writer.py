"""A writer and reader of a store in a bucket, until it is killed: STORE SEED.

Each commit replaces all rows by as many of the next generation, in one write; a line on its output says which
generation was acknowledged. Every scan must see rows of one generation alone.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa

from elasticscan.base.errors import WriteConflict
from elasticscan.store import Store

SCHEMA = pa.schema([("id", pa.int64()), ("generation", pa.int64()), ("noise", pa.binary())])
ROWS = 60_000
NOISE_BYTES = 400  # so that a shard's part of a write is sent in parts


def rows(generation: int, seed: int) -> pa.Table:
    noise = np.random.default_rng([generation, seed]).bytes(ROWS * NOISE_BYTES)
    offsets = np.arange(0, (ROWS + 1) * NOISE_BYTES, NOISE_BYTES, dtype=np.int32)
    values = pa.Array.from_buffers(pa.binary(), ROWS, [None, pa.py_buffer(offsets), pa.py_buffer(noise)])
    return pa.table([np.arange(ROWS), np.full(ROWS, generation), values], schema=SCHEMA)


def generation_of(store: Store) -> int:
    """The generation of all rows."""
    generations = store.table("t").scan(columns=["generation"]).to_table()["generation"].to_numpy()
    assert len(generations) in (0, ROWS), f"{len(generations)} rows"
    assert len(np.unique(generations)) <= 1, "rows of several generations"
    return int(generations[0]) if len(generations) else 0


def main() -> None:
    seed = int(sys.argv[2])
    with Store.open(sys.argv[1], upkeep="off") as store:
        print("open", flush=True)  # noqa: T201 - whoever started it reads that
        while True:
            generation = generation_of(store) + 1
            try:
                store.table("t").upsert(rows(generation, seed))
            except WriteConflict:  # garbage was collected with no grace
                continue
            print(generation, flush=True)  # noqa: T201 - as above


if __name__ == "__main__":
    main()
