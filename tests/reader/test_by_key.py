"""Rows by their keys at a cluster in memory, while anything happens to its tablets."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.protocol import RowRequest
from elasticscan.reader import read_by_key
from elasticscan.topology import initial_placement
from tests.base.examples import examples
from tests.reader.memory import MemoryCluster

SLOTS, SHARDS = 16, 3


def got(cluster: MemoryCluster, keys: list[int], snapshot: int) -> dict[int, int]:
    keys = sorted(keys, key=lambda key: key % SLOTS)
    slots = np.array([key % SLOTS for key in keys], dtype=np.uint16)
    batch = pa.record_batch({"key": pa.array(keys, pa.int64())})
    request = RowRequest(1, 0, snapshot, ("key", "value"), slots, batch)
    places, batches = read_by_key(request, cluster.current(), cluster, cluster)
    rows = [row for batch in batches for row in batch.to_pylist()]
    here = [(key, rows[place]) for key, place in zip(keys, places.tolist(), strict=True) if place >= 0]
    assert all(row["key"] == key for key, row in here)
    return {key: row["value"] for key, row in here}


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 1 << 32))
def test_each_key_gets_its_row_whatever_moves_meanwhile(seed: int) -> None:
    chance = random.Random(seed)
    cluster = MemoryCluster(initial_placement(SLOTS, 6, [*range(1, SHARDS + 1)]))
    first = {key: chance.randrange(100) for key in range(60) if chance.random() < 0.7}
    snapshot = cluster.write(dict(first))
    left = chance.randint(0, 12)

    def during() -> None:
        nonlocal left
        if not left or chance.random() < 0.8:
            return
        left -= 1
        tablet = chance.choice(cluster.current().tablets)
        event = chance.choice(["move", "move", "split", "write"])
        if event == "move":
            cluster.move(tablet.id, tablet.shard % SHARDS + 1)
        elif event == "split" and tablet.end - tablet.start > 1:
            cluster.split(tablet.id)
        else:
            cluster.write({chance.randrange(60): chance.choice([None, 777])})

    cluster.during = during
    asked = [chance.randrange(70) for _ in range(chance.choice([0, 1, 5, 40]))]
    assert got(cluster, asked, snapshot) == {key: first[key] for key in asked if key in first}
