"""Changes of a store's topology, drawn at random."""

from __future__ import annotations

from random import Random

from elasticscan.store import Store


def change_topology(store: Store, chance: Random, fresh: str | dict[str, str]) -> str | None:
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
