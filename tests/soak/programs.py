"""What happens to the store alongside the streams, each a process of its own.

python -m tests.soak.programs write URI SEED WRITER   upserts and deletes, now and then an overwrite
python -m tests.soak.programs move URI SEED           moves, splits, joins, expands and contracts
python -m tests.soak.programs tidy URI SEED           compacts and collects garbage

Each says on its standard output what it did, as JSON lines, and ends when its standard input does: so
none of them survives the process that started it.
"""

from __future__ import annotations

import os
import random
import sys
from threading import Event, Thread

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elasticscan.base.errors import TryAgain, UsageError
from elasticscan.store import Store
from tests.processes.programs import change_topology
from tests.soak.processes import tell

SOURCE, COPY = "a", "b"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("name", pa.string())])
KEYS, HOT_KEYS = 60_000, 1_500
FIRST_ROWS = 30_000
GRACE_SECONDS = 120.0  # longer than a micro-batch takes from its files to its commit
PAUSE_SECONDS = 3.0  # of a writer between two commits, at most


def rows(keys: NDArray[np.int64], value: int) -> pa.Table:
    ids, values = pa.array(keys), pa.array(np.full(len(keys), value))
    return pa.table([ids, values, names(ids, values)], schema=SCHEMA)


def names(ids: pa.Array, values: pa.Array) -> pa.Array:
    """A text that belongs to a key and a value, so that a row put together of two is noticed."""
    return pc.binary_join_element_wise(ids.cast(pa.string()), values.cast(pa.string()), ":")


def write(store: Store, seed: int, writer: int, stopping: Event) -> None:
    """Change the source, each commit with a value that no other has."""
    pauses, chance = random.Random(seed * 1_000 + writer), np.random.default_rng([seed, writer])
    table, number = store.table(SOURCE), 0
    while not stopping.wait(pauses.random() ** 2 * PAUSE_SECONDS):
        drawn, value = chance.random(), writer * 1_000_000_000 + number
        if drawn < 0.005:
            kind, least, most = "overwrite", 10_000, 40_000
        elif drawn < 0.03:
            kind, least, most = "upsert", 10_000, 30_000
        elif drawn < 0.04:
            kind, least, most = "delete", 5_000, 20_000
        else:
            kind, least, most = ("delete" if drawn < 0.3 else "upsert"), 1, 300
        among = HOT_KEYS if most <= 300 and chance.random() < 0.5 else KEYS
        keys = np.sort(chance.choice(among, int(chance.integers(least, most)), replace=False))
        if kind == "delete":
            commit = table.delete(pa.table({"id": keys}))
        elif kind == "upsert":
            commit = table.upsert(rows(keys, value))
        else:
            commit = table.overwrite(rows(keys, value))
        tell(commit=commit, kind=kind, rows=len(keys))
        number += 1


def move(store: Store, seed: int, stopping: Event) -> None:
    chance, number = random.Random(seed), 0
    while not stopping.wait(chance.uniform(0.0, 0.6)):
        number += 1
        try:
            done = change_topology(store, chance, f"n{number}")
        except (TryAgain, UsageError) as error:
            tell(refused=error.code)
            continue
        if done:
            tell(done=done)


def tidy(store: Store, seed: int, stopping: Event) -> None:
    chance = random.Random(seed)
    while not stopping.wait(chance.uniform(0.3, 2.0)):
        try:
            name = chance.choice([SOURCE, SOURCE, COPY, None])
            fragments = store.compact() if name is None else store.table(name).compact()
            files = store.collect_garbage(grace_seconds=GRACE_SECONDS).removed if chance.random() < 0.3 else 0
        except TryAgain as error:
            tell(refused=error.code)
            continue
        tell(fragments=fragments, files=files)


def _until_the_input_ends(stopping: Event) -> None:
    sys.stdin.buffer.read()
    stopping.set()


def main() -> None:
    command, uri, seed, *rest = sys.argv[1:]
    os.nice(5)  # on a small machine the streams would hardly get on alongside all this
    stopping = Event()
    Thread(target=_until_the_input_ends, args=[stopping], daemon=True).start()
    with Store.open(uri) as store:
        if command == "write":
            write(store, int(seed), int(rest[0]), stopping)
        else:
            {"move": move, "tidy": tidy}[command](store, int(seed), stopping)


if __name__ == "__main__":
    main()
