"""The demo's operator: keeps tablets moving while scans read."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from elasticscan.store import Elasticity, Store

NEW, LEAVING = "s3", "s1"
# So much of the scan is read before the shard leaves.
LEAVE_AT = 0.7
# How often a move takes a tablet back to where it came from.
RETURNS = 0.1
# Copying is held back a little, so that a move lasts long enough to be seen.
_BYTES_PER_SECOND = 6e6


@dataclass(slots=True)
class Operator:
    """Adds a shard, moves tablets back and forth, empties a shard, moves tablets back and forth.

    Attributes:
        store: where.
        fraction: how much of the scan was read so far, 0 to 1.
        dice: decides what moves next.
        act: what is being done, for people.
        moved_at: when each move was finished, in seconds since 1970.
        acts_done: whether both shards have come and gone.
    """

    store: Store
    fraction: Callable[[], float]
    dice: random.Random
    act: str = ""
    moved_at: list[float] = field(default_factory=list)
    acts_done: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _away: list[tuple[int, str]] = field(default_factory=list)

    def stop(self) -> None:
        """End after the change that is under way."""
        self._stop.set()

    def run(self) -> None:
        """Until `stop`."""
        self.act = f"shard {NEW} joins"
        self.store.expand_with(self._how(), [NEW], {})
        self._shuffle(lambda: self.fraction() >= LEAVE_AT)
        if not self._stop.is_set():
            self.act = f"shard {LEAVING} leaves"
            self._how().contract(LEAVING)
            self._away.clear()
        self.acts_done.set()
        self._shuffle(lambda: False)
        self.act = "done"

    def _how(self) -> Elasticity:
        return self.store.elasticity(_BYTES_PER_SECOND, lambda _done, _planned: self._moved())

    def _moved(self) -> None:
        self.moved_at.append(time.time())

    def _shuffle(self, enough: Callable[[], bool]) -> None:
        """Move some tablet to some shard; sometimes one that came from there before."""
        self.act = "tablets move back and forth"
        while not self._stop.is_set() and not enough():
            tablet, shard = self._next()
            self.store.elasticity(_BYTES_PER_SECOND).move(tablet, shard)
            self._moved()

    def _next(self) -> tuple[int, str]:
        if self._away and self.dice.random() < RETURNS:
            return self._away.pop(0)
        names = self.store.context.shard_names()
        tablet = self.dice.choice(self.store.context.placement().tablets)
        self._away = [(other, home) for other, home in self._away if other != tablet.id]
        self._away.append((tablet.id, names[tablet.shard]))
        others = sorted(name for shard, name in names.items() if shard != tablet.shard)
        return tablet.id, self.dice.choice(others)
