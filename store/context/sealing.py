"""Sealing of a store's continuation keys and stream offsets, with the secrets of one state of its catalog."""

from __future__ import annotations

from elasticscan.base.clock import Clock
from elasticscan.catalog import (
    Catalog,
    StoreState,
    add_secrets,
    forget_secrets,
    key_seconds,
    offset_keys,
    retry_interrupted,
    seal_keys,
)
from elasticscan.protocol import ContinuationKey, Macs, Sealer


class StoreSealer:
    """Seals and opens continuation keys and offsets; replaced when the catalog has a newer state."""

    def __init__(self, state: StoreState, clock: Clock) -> None:
        self.state, self._clock = state, clock
        # This machine's clock: if it is ahead, keys are refused too early, but only until it is corrected.
        self._keys = Sealer(state.store_id, seal_keys(state, clock.now()))
        self.offsets = Macs(offset_keys(state))

    def seal(self, key: ContinuationKey) -> str:
        """Seal a key. Raises `LimitExceeded`."""
        return self._keys.seal(key, self._clock.now() + key_seconds(self.state))

    def open(self, text: str) -> ContinuationKey:
        """Open a sealed key. Raises `ContinuationKeyError`, `SnapshotExpired`."""
        return self._keys.open(text, self._clock.now())


@retry_interrupted
def rotate_secrets(catalog: Catalog, revoke: bool) -> int:
    """Replace the secrets of keys and of offsets; return the number of the new ones.

    Old secrets are deleted when every key that they sealed has expired, or now (`revoke`).
    """
    with catalog.writing() as tx:
        number = add_secrets(tx)
        forget_secrets(tx, revoke)
    return number
