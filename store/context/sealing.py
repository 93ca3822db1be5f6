"""Continuation keys of an open store: sealed and opened with the secrets that it has now."""

from __future__ import annotations

from dataclasses import dataclass

from elasticscan.base.clock import Clock
from elasticscan.base.limits import SECRETS_SECONDS
from elasticscan.catalog import Catalog, key_seconds, offset_keys, retry_interrupted, seal_keys
from elasticscan.protocol import ContinuationKey, Macs, Sealer


@dataclass(frozen=True, slots=True)
class _Secrets:
    """The secrets that the catalog had at a time."""

    sealer: Sealer
    key_seconds: float
    offsets: Macs
    at: float


class StoreSealer:
    """Seals and opens continuation keys. Safe to share among threads.

    Secrets are replaced while processes run, so they are looked up again every minute: a process never
    seals with one that was replaced for longer than that. A key that names a secret which is not
    known makes it look at once.
    """

    def __init__(self, catalog: Catalog, clock: Clock, store_id: str) -> None:
        self._catalog, self._clock, self._store_id = catalog, clock, store_id
        self._cached = self._look()

    def seal(self, key: ContinuationKey) -> str:
        """Seal a key. Raises `LimitExceeded`."""
        cached = self._recent()
        return cached.sealer.seal(key, self._clock.now() + cached.key_seconds)

    def open(self, text: str) -> ContinuationKey:
        """Open a sealed key. Raises `ContinuationKeyError`, `SnapshotExpired`."""
        cached = self._recent()
        if not cached.sealer.knows(text):
            cached = self._cached = self._look()
        return cached.sealer.open(text, self._clock.now())

    def sign_offset(self, text: str) -> str:
        """Return the code of a stream's offset, by the newest secret for these."""
        return self._recent().offsets.of(text)

    def is_signed(self, text: str, mac: str) -> bool:
        """Return whether a code is that of an offset, by any secret that was not revoked."""
        if self._recent().offsets.verify(text, mac):
            return True
        self._cached = self._look()  # another process may have a newer one
        return self._cached.offsets.verify(text, mac)

    def forget(self) -> None:
        """Look secrets up again before the next key."""
        self._cached = self._look()

    def _recent(self) -> _Secrets:
        cached, now = self._cached, self._clock.now()
        if not cached.at <= now < cached.at + SECRETS_SECONDS:  # or the clock was set back
            cached = self._cached = self._look()
        return cached

    @retry_interrupted
    def _look(self) -> _Secrets:
        with self._catalog.reading() as tx:
            state = tx.state
            offsets = Macs(offset_keys(state), "stream offset")
            # By this machine's clock: one that is ahead refuses keys too early only until it is set right.
            sealer = Sealer(self._store_id, seal_keys(state, tx.now))
            return _Secrets(sealer, key_seconds(state), offsets, tx.now)
