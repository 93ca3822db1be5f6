"""A process that moves tablets all the time: `python mover.py STORE BYTES_PER_SECOND`."""

from __future__ import annotations

import random
import sys

from elasticscan.store import Store


def main() -> None:
    store = Store.open(sys.argv[1])
    how = store.elasticity(bytes_per_second=float(sys.argv[2]))
    chance = random.Random(1)
    moves = 0
    while True:
        status = store.context.placement()
        tablet = chance.choice(status.tablets)
        with store.context.catalog.reading() as tx:
            others = [shard.name for shard in tx.state.shards.values() if shard.id != tablet.shard]
        how.move(tablet.id, chance.choice(others))
        moves += 1
        print(moves, flush=True)


if __name__ == "__main__":
    main()
