"""The trash of a root that is being repaired: a file in it that is alive is read where it lies."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from elasticscan.storage import Disk
from elasticscan.store.upkeep.garbage import trashed_places


class _WithTrash:
    """A disk on which some files of the trash lie in their former places. It is only read."""

    def __init__(self, disk: Disk, places: dict[str, str]) -> None:
        self._disk, self._places = disk, places

    @property
    def is_far(self) -> bool:
        return self._disk.is_far

    @property
    def uncached(self) -> Disk:
        return cast("Disk", _WithTrash(self._disk.uncached, self._places))

    def open(self, path: str) -> Any:
        return self._disk.open(self._places.get(path, path))

    def expect(self, paths: list[str]) -> None:
        self._disk.expect([self._places.get(path, path) for path in paths])

    def list(self) -> list[tuple[str, float]]:
        formers = {place: path for path, place in self._places.items()}
        return [(formers.get(path, path), changed) for path, changed in self._disk.list()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def with_trash(disk: Disk, alive: Collection[str]) -> Disk:
    """Return the disk with those files of its trash that are alive, and missing in their places."""
    files = {path for path, _ in disk.list()}
    trashed = trashed_places(files)
    places = {path: trashed[path] for path in trashed.keys() - files if path in alive}
    return cast("Disk", _WithTrash(disk, places)) if places else disk
