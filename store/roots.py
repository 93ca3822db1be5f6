"""Whose a shard's root is: a small file in it names the store.

Two stores in one root would each take the other's fragments for garbage.
"""

from __future__ import annotations

from elasticscan.base.errors import FragmentDamaged, InvalidOption, ShardUnavailable
from elasticscan.storage import Disk

MARKER = "elasticscan-store-id"


def owner_of(disk: Disk) -> str | None:
    """The id of the store that a root belongs to; None when it is free."""
    try:
        file = disk.open(MARKER)
        found: bytes = file.read_at(0, file.size).to_pybytes()
    except (FragmentDamaged, ShardUnavailable):  # no such file, or no such prefix in a bucket yet
        return None
    return found.decode("ascii", "replace")


def check_free(disk: Disk, root: str, store_id: str | None = None) -> None:
    """Raises `InvalidOption` when the root belongs to a store other than `store_id`."""
    owner = owner_of(disk)
    if owner not in (None, store_id):
        raise InvalidOption(
            f"{root} holds a shard of another store ({owner}), or of this one before its catalog was lost; "
            "choose another directory, or restore that catalog",
            root=root,
        )


def claim(disk: Disk, store_id: str) -> None:
    if owner_of(disk) is None:
        with disk.create(MARKER) as file:
            file.write(store_id.encode("ascii"))
