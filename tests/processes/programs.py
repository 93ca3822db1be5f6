"""Programs that the tests run as processes of their own, and kill.

python programs.py write URI SEED     upserts and deletes for ever, acknowledging each commit
python programs.py write URI SEED N   the same, N times
python programs.py keep URI SEED      keeps it, by bounds that give a small store much to do, until stdin ends
python programs.py move URI SEED      moves, splits, joins, expands and contracts for ever
python programs.py move-slowly URI S  moves one tablet with pauses, to be killed in the middle
python programs.py resume URI         reads a key per line from stdin, writes rows as JSON lines
"""

from __future__ import annotations

import json
import random
import select
import sys
import time

import numpy as np
import pyarrow as pa

from elasticscan.base import limits
from elasticscan.base.errors import TryAgain, UsageError
from elasticscan.store import Store
from elasticscan.store.moves.balancing import Balance
from elasticscan.store.moves.under_way import enter_moves
from elasticscan.store.upkeep.keeper import Keeper
from elasticscan.store.upkeep.planning import Policy

KEYS = 3_000


def tell(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def change(seed: int, number: int) -> tuple[str, list[int], int]:
    """What a writer does in its step `number`: known to the test as well."""
    chance = random.Random(seed * 1_000_003 + number)
    keys = sorted(chance.sample(range(KEYS), chance.randrange(1, 400)))
    return ("delete" if chance.random() < 0.3 else "write"), keys, number


def write(store: Store, seed: int, times: int = 1_000_000) -> None:
    if seed % 2:  # half of the writers write files
        limits.INLINE_BYTES = 0
    for number in range(times):
        kind, keys, value = change(seed, number)
        tell(begin=number)
        ids = pa.array(keys, pa.int64())
        if kind == "write":
            values = pa.array(np.full(len(keys), value))
            commit = store.table("t").upsert(pa.table({"id": ids, "v": values}))
        else:
            commit = store.table("t").delete(pa.table({"id": ids}))
        tell(done=number, commit=commit)


def keep(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    tablets = Balance(split_bytes=9_000, join_bytes=4_000, fewest_tablets=4, share=0.1, bytes=1_000)
    policy = Policy(slot_fragments=3, small_bytes=2_000, step_bytes=30_000, balance=tablets)
    while not select.select([sys.stdin], [], [], chance.uniform(0.0, 0.1))[0]:
        kept = Keeper(store.context, policy).keep()
        tell(merges=kept.merges, others=kept.splits + kept.joins + kept.moves, problems=kept.problems)


def move(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(1_000_000):
        try:
            if chance.random() < 0.1:
                store.compact()
            else:
                change_topology(store, chance, f"n{seed}_{number}")
        except (TryAgain, UsageError):
            continue  # another mover was quicker
        tell(done=number)


def change_topology(store: Store, chance: random.Random, fresh: str | dict[str, str]) -> str | None:
    """One change, drawn at random; what it was, or None if the one drawn does not fit now.

    Args:
        fresh: the name of a shard that may be added, or that with its root.
    """
    status = store.status()
    tablets, shards = status["tablets"], [s["name"] for s in status["shards"] if not s["draining"]]
    operation = chance.choice(["move"] * 6 + ["expand", "contract", "split", "join"])
    if operation == "move":
        store.move(chance.choice(tablets)["id"], chance.choice(shards))
    elif operation == "expand" and len(shards) < 5:
        store.expand([fresh] if isinstance(fresh, str) else fresh)
    elif operation == "contract" and len(shards) > 2:
        store.contract(chance.choice(shards))
    elif operation == "split" and len(tablets) < 40:
        store.split(chance.choice(tablets)["id"])
    elif operation == "join":
        left = chance.randrange(len(tablets) - 1)
        store.join(tablets[left]["id"], tablets[left + 1]["id"])
    else:
        return None
    return operation


def move_slowly(uri: str, seed: int) -> None:
    """A mover that says where it is and waits there a little: killed at every phase sooner or later."""
    from elasticscan.store.moves.mover import Mover  # noqa: PLC0415
    from elasticscan.store.moves.owners import new_owner  # noqa: PLC0415
    from elasticscan.topology import Move  # noqa: PLC0415

    store, chance = Store.open(uri), random.Random(seed)

    def pause(point: str) -> None:
        tell(at=point)
        time.sleep(0.02)

    while True:
        tablet = chance.choice(store.context.placement().tablets)
        with store.context.catalog.writing() as tx:
            target = chance.choice([s.id for s in tx.state.shards.values() if s.id != tablet.shard])
            owner = new_owner()
            enter_moves(tx, [Move(tablet.id, tablet.shard, target)], owner)
        Mover(store.context, owner, checkpoint=pause).carry_out(Move(tablet.id, tablet.shard, target))


def resume(store: Store) -> None:
    """One page for each key: its rows and the key after it."""
    for line in sys.stdin:
        page = next(iter(store.resume(line.strip())))
        tell(ids=page.rows.column("id").to_pylist(), key=page.key)


def main() -> None:
    command, uri, *rest = sys.argv[1:]
    if command == "move-slowly":
        move_slowly(uri, int(rest[0]))
    elif command == "resume":
        resume(Store.open(uri))
    elif command == "keep":
        keep(Store.open(uri, upkeep="off"), int(rest[0]))
    else:
        {"write": write, "move": move}[command](Store.open(uri), *map(int, rest))


if __name__ == "__main__":
    main()
