"""A process that moves tablets continuously: `python mover.py STORE BYTES_PER_SECOND`."""

from __future__ import annotations

import random
import sys
import time

from elasticscan.store import Store


def main() -> None:
    store, most = Store.open(sys.argv[1]), float(sys.argv[2])
    chance = random.Random(1)
    moves = 0
    while True:
        began, status = time.monotonic(), store.status()
        tablet = chance.choice(status["tablets"])
        others = [shard["name"] for shard in status["shards"] if shard["name"] != tablet["shard"]]
        store.move(tablet["id"], chance.choice(others))
        moves += 1
        print(moves, flush=True)
        time.sleep(max(0.0, began + tablet["bytes"] / most - time.monotonic()))


if __name__ == "__main__":
    main()
