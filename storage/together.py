"""Files of several disks that end side by side: while one is flushed, so are the others.

A flush is most of what a small commit waits for, and files are flushed one at a time where each is complete
before the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, BinaryIO, cast

from elasticscan.base.concurrency import parallel
from elasticscan.base.limits import SHARDS_AT_ONCE
from elasticscan.storage.disk import Disk

# So many files stay open at most.
WAITING = 16


class Together:
    """A block in which files are written, which are there once it has ended.

    Where it raises, unflushed ones are gone; the ones flushed early are the caller's.
    """

    def __init__(self) -> None:
        self._waiting: list[ExitStack] = []

    def of(self, disk: Disk) -> Disk:
        """Return the disk, whose new files end with this block."""
        return cast("Disk", _LateDisk(disk, self))

    @contextmanager
    def create(self, disk: Disk, path: str) -> Iterator[BinaryIO]:
        """As `Disk.create`, but the file appears later."""
        with ExitStack() as ending:
            yield ending.enter_context(disk.create(path))
            self._waiting.append(ending.pop_all())
        if len(self._waiting) >= WAITING:
            self._end()

    def __enter__(self) -> Together:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._end()
        else:
            self._give_up(error)

    def _end(self) -> None:
        try:
            parallel(ExitStack.close, self._waiting, SHARDS_AT_ONCE)
        except BaseException as error:
            self._give_up(error)
            raise
        self._waiting = []

    def _give_up(self, error: BaseException) -> None:
        waiting, self._waiting = self._waiting, []
        for ending in waiting:  # of one that has ended nothing is left to do
            with suppress(Exception):
                ending.__exit__(type(error), error, error.__traceback__)


class _LateDisk:
    def __init__(self, disk: Disk, together: Together) -> None:
        self._disk, self._together = disk, together

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def create(self, path: str) -> Any:
        return self._together.create(self._disk, path)
