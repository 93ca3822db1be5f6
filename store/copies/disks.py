"""The disk of a store that is open for reading alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

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
