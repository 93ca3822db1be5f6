"""Flips bits of a store's catalog and looks at everything that a store can tell.

Run as a program for many flips: `python -m tests.store.catalog_damage FOLDER SEED FLIPS FILE`, where FILE is
catalog.db or catalog.db-wal. Prints counts as JSON. A signal ends the process, which whoever started it sees.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import ElasticScanError
from elasticscan.store import Store

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
FILTER = "v >= 20 AND v < 70"


def rows(first: int, last: int, v: int) -> pa.Table:
    keys = list(range(first, last))
    return pa.table({"k": keys, "v": [(key * 7 + v) % 100 for key in keys]}, schema=SCHEMA)


def make(folder: Path) -> None:
    """A small store with an index, deletions, an overwrite, a split and moved tablets; nothing is open."""
    with Store.create(folder, ["a", "b"], tablets=4, slots=64) as store:
        for name in ("t", "u"):
            store.create_table(name, SCHEMA, ["k"])
        store.table("t").upsert(rows(0, 100, 0))
        store.table("t").create_index("by_v", ["v"])
        store.table("t").upsert(rows(50, 150, 1))
        store.table("t").delete(pa.table({"k": list(range(0, 150, 9))}))
        store.table("u").upsert(rows(0, 30, 0))
        store.table("u").overwrite(rows(10, 20, 0))
        store.move(1, "b")
        store.split(2)
        store.table("t").upsert(rows(140, 200, 2), txn=("job", 1))
        store.table("u").compact()
        store.table("t").upsert(rows(0, 20, 3))


def look(folder: Path) -> list[Any]:
    """Everything that can be read, as values that compare equal."""
    with Store.open(folder) as store:
        seen: list[Any] = []
        for name, index in (("t", "none"), ("t", "by_v"), ("u", "none")):
            condition = FILTER if name == "t" else None
            found = store.table(name).scan(filter=condition, index=index, page_rows=50).to_table()
            seen.append(sorted(zip(*(column.to_pylist() for column in found.columns), strict=True)))
        seen.append(store.table("t").scan(index="none").to_table().num_rows)
        seen += [_changes(store, name) for name in ("t", "u")]
        seen += [
            store.table("t").commits(),
            store.tables(),
            store.topology_history(),
            store.table("t").indexes(),
        ]
        status = store.status()
        seen.append({name: value for name, value in status.items() if name != "leases"})
        return seen


def _changes(store: Store, name: str) -> list[Any]:
    found = store.table(name).changes(after=store.table(name).definition.oldest_snapshot).to_table()
    return sorted(map(repr, found.to_pylist()))


def choose(chosen: random.Random, content: bytes) -> int:
    """A bit; three times of four in a byte that is not zero, since most of a page may be empty."""
    while True:
        bit = chosen.randrange(len(content) * 8)
        if content[bit // 8] or chosen.random() < 0.25:
            return bit


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def outcome(folder: Path, sound: list[Any]) -> str:
    try:
        if look(folder) != sound:
            return "WRONG"
    except ElasticScanError as error:
        return error.code
    except Exception as error:
        return f"UNTYPED {error!r}"
    return "same"


def verified(folder: Path) -> str:
    """What `verify` says of a catalog that nothing else took exception to."""
    try:
        with Store.open(folder) as store:
            return "verify found it" if store.verify() else "harmless"
    except ElasticScanError as error:
        return error.code


def flip_many(folder: Path, seed: int, flips: int, name: str) -> Counter[str]:
    """Flip so many bits, one at a time, each in a copy of the catalog as it was made."""
    chosen = random.Random(seed)
    kept = folder.parent / f"{folder.name}.catalog"
    if name == "catalog.db":
        look(folder)  # and closes it: nothing is left in the log
        shutil.copy(folder / "catalog.db", kept)
        sound = look(folder)
    counts: Counter[str] = Counter()
    if name != "catalog.db":
        return _flip_log(folder, chosen, flips)
    content = kept.read_bytes()
    for _ in range(flips):
        for each in folder.glob("catalog.db*"):
            each.unlink()
        shutil.copy(kept, folder / "catalog.db")
        bit = choose(chosen, content)
        flip(folder / "catalog.db", bit)
        said = outcome(folder, sound)
        if said == "same":
            said = f"same, {verified(folder)}"
        if said.startswith(("WRONG", "UNTYPED")):
            sys.stderr.write(f"bit {bit}: {said}\n")
        counts[said] += 1
    return counts


def _flip_log(folder: Path, chosen: random.Random, flips: int) -> Counter[str]:
    """Bits of the log, while others have the store open: what is in it is read from there."""
    counts: Counter[str] = Counter()
    with Store.open(folder) as holding:
        holding.table("t").upsert(rows(300, 320, 0))
        holding.table("t").delete(pa.table({"k": [301, 5]}))
        sound = look(folder)
        log = folder / "catalog.db-wal"
        content = log.read_bytes()
        for _ in range(flips):
            bit = choose(chosen, content)
            flip(log, bit)
            said = outcome(folder, sound)
            flip(log, bit)
            if said.startswith(("WRONG", "UNTYPED")):
                sys.stderr.write(f"bit {bit}: {said}\n")
            counts[said] += 1
    return counts


if __name__ == "__main__":
    where, seed, flips, name = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    make(where)
    sys.stdout.write(json.dumps(flip_many(where, seed, flips, name)) + "\n")
