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
from collections.abc import Sequence
from threading import Event, Thread
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import TryAgain, UsageError
from elasticscan.store import Store
from tests.base.topology_changes import change_topology
from tests.soak.oracle import name_of
from tests.soak.processes import tell

SOURCE, COPY = "a", "b"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("name", pa.string())])
KEYS, HOT_KEYS = 60_000, 1_500
FIRST_ROWS = 30_000
GRACE_SECONDS = 120.0  # longer than a micro-batch takes from its files to its commit
PAUSE_SECONDS = 3.0  # of a writer between two commits, at most

# How often a commit is of a kind, and its fewest and most rows: some are larger than a micro-batch.
COMMITS = [
    (0.005, "overwrite", 10_000, 40_000),
    (0.025, "upsert", 10_000, 30_000),
    (0.01, "delete", 5_000, 20_000),
    (0.26, "delete", 1, 300),
    (0.7, "upsert", 1, 300),
]


def change(store: Store, kind: str, keys: Sequence[int], value: int) -> dict[str, Any]:
    """Change the source; what there is to tell of it."""
    table = store.table(SOURCE)
    if kind == "delete":
        commit = table.delete(list(keys))
    else:
        columns = [keys, [value] * len(keys), [name_of(key, value) for key in keys]]
        rows = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
        commit = (table.upsert if kind == "upsert" else table.overwrite)(rows)
    return {"commit": commit, "kind": kind, "keys": list(keys), "value": value}


def write(store: Store, chance: random.Random, writer: int, stopping: Event) -> None:
    """Commit over and over, each time a value that no other commit has."""
    value = writer * 1_000_000_000
    while not stopping.wait(chance.random() ** 2 * PAUSE_SECONDS):
        ((_, kind, least, most),) = chance.choices(COMMITS, [share for share, *_ in COMMITS])
        among = HOT_KEYS if most <= 300 and chance.random() < 0.5 else KEYS
        keys = sorted(chance.sample(range(among), chance.randrange(least, most)))
        tell(**change(store, kind, keys, value))
        value += 1


def move(store: Store, chance: random.Random, stopping: Event) -> None:
    number = 0
    while not stopping.wait(chance.uniform(0.0, 0.6)):
        number += 1
        try:
            done = change_topology(store, chance, f"n{number}")
        except (TryAgain, UsageError) as error:
            tell(refused=error.code)
            continue
        if done:
            tell(done=done)


def tidy(store: Store, chance: random.Random, stopping: Event) -> None:
    while not stopping.wait(chance.uniform(0.3, 2.0)):
        try:
            name = chance.choice([SOURCE, SOURCE, COPY, None])
            fragments = store.compact() if name is None else store.table(name).compact()
            files = store.collect_garbage(grace_seconds=GRACE_SECONDS).removed if chance.random() < 0.3 else 0
        except TryAgain as error:
            tell(refused=error.code)
            continue
        tell(fragments=fragments, files=files)


def main() -> None:
    command, uri, seed, *rest = sys.argv[1:]
    os.nice(5)  # on a small machine the streams would hardly get on alongside all this
    stopping = Event()

    def until_the_input_ends() -> None:
        sys.stdin.buffer.read()
        stopping.set()

    Thread(target=until_the_input_ends, daemon=True).start()
    with Store.open(uri) as store:
        if command == "write":
            write(store, random.Random(f"{seed} {rest[0]}"), int(rest[0]), stopping)
        else:
            {"move": move, "tidy": tidy}[command](store, random.Random(int(seed)), stopping)


if __name__ == "__main__":
    main()
