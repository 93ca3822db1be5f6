"""The disk for a shard's root, and the one of a store that is open for reading alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from elasticscan.base.errors import InvalidOption, ShardUnavailable
from elasticscan.base.redaction import as_cause, shown, without
from elasticscan.storage import Disk


class _ReadOnlyDisk:
    """A disk on which nothing is made or removed; `refuse` raises what is said instead."""

    def __init__(self, disk: Disk, refuse: Callable[[], None]) -> None:
        self._disk, self._refuse = disk, refuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def _refused(self, *_: object) -> None:
        self._refuse()

    create = delete = rename = note = _refused


def read_only_disk(disk: Disk, refuse: Callable[[], None]) -> Disk:
    """Return the disk as read-only, so that a write fails before it stages anything."""
    return cast("Disk", _ReadOnlyDisk(disk, refuse))


def disk_at(disks: Callable[[str], Disk], root: str) -> Disk:
    """Return a shard's disk; nothing is made there."""
    try:
        return disks(root)
    except (ValueError, NotImplementedError) as error:  # Arrow's words for what is no place it knows
        raise InvalidOption(
            f"{shown(root)} cannot be a shard's storage: {without(error, root)}; name a directory or a URI "
            "that pyarrow.fs knows",
            option="shards",
        ) from as_cause(error, root)
    except OSError as error:
        raise ShardUnavailable(
            f"the shard's storage {shown(root)} cannot be used: {without(error, root)}", root=shown(root)
        ) from as_cause(error, root)
