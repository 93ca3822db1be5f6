"""Catalog transactions: the secrets that seal continuation keys and sign streams' offsets."""

from __future__ import annotations

import secrets

from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import KEY_SECONDS, SECRETS_SECONDS
from elasticscan.catalog.failures import damaged, decoding
from elasticscan.catalog.home import Home
from elasticscan.catalog.placement import PlacementTx
from elasticscan.catalog.tables import seal_keys, tables

SECRET_BYTES = 32
MAX_SECRET = 2**16 - 1  # its number takes two bytes of every sealed scan

# The purposes of secrets. Old ones of keys go when no key can have them. Those of offsets stay until they are
# revoked: a checkpoint may be picked up after years.
KEYS, OFFSETS = "keys", "offsets"


class SecretTx(PlacementTx):
    """Reads and replaces the store's secrets."""

    def key_seconds(self) -> float:
        """Return how long a continuation key can be used: never shorter than what it reads is kept."""
        live = [row.retention_seconds for row in self._rows.all(tables) if row.dropped_at is None]
        retentions = (float(seconds) for seconds in live if seconds is not None)
        return max(float(KEY_SECONDS), self.info().retention_seconds, *retentions)

    def seal_keys(self) -> dict[int, bytes]:
        """Return the secrets that open keys, by their number; the highest seals."""
        # By this machine's clock: one that is ahead refuses keys too early only until it is set right.
        return {number: secret for number, (secret, _) in self._live(self.now).items()}

    def offset_keys(self) -> dict[int, bytes]:
        """Return the secrets of streams' offsets, by their number; the highest signs."""
        return {number: secret for number, (secret, _) in self._secrets(OFFSETS).items()}

    def add_secrets(self, *purposes: str) -> int:
        """Make a secret for each purpose; returns the last one's number."""
        rows = self._rows.all(seal_keys)
        number = max((row.id for row in rows), default=0)
        # A clock that is behind must not end keys early.
        made = max([self.times.stamp, *(row.created_at for row in rows)])
        for purpose in purposes:
            number += 1
            if number > MAX_SECRET:
                raise InvalidOption(
                    f"the store has had {MAX_SECRET:,} secrets, which is as many as there can be; it goes on "
                    "with the newest",
                    option="secret",
                )
            row = {"id": number, "purpose": purpose, "created_at": made}
            self._rows.insert(seal_keys, row | {"secret": secrets.token_bytes(SECRET_BYTES)})
        return int(number)

    def take_incarnation(self, incarnation: str, home: Home | None, at_least: tuple[int, int]) -> None:
        """Become another copy of the store than all others; new secrets make what they sealed be refused.

        Layout and commit numbers go on beyond `at_least`, so that none means two things.
        """
        self._become(incarnation, home, at_least)
        old = self._rows.all(seal_keys)
        self.add_secrets(OFFSETS, KEYS)  # numbered on, so that the numbers of old ones name nothing
        self._rows.delete(seal_keys, old)

    def forget_secrets(self, revoke: bool = False) -> int:
        """Delete secrets that no key in use can have, or (`revoke`) all but the newest of each purpose."""
        rows = self._rows.all(seal_keys)
        if revoke:
            retained = {max(self._secrets(purpose)) for purpose in (KEYS, OFFSETS)}
        else:
            # By the store's time, not this machine's clock: a deleted secret is gone for all.
            retained = self._live(self.times.expiry).keys() | self._secrets(OFFSETS).keys()
        return self._rows.delete(seal_keys, [row for row in rows if row.id not in retained])

    def _live(self, now: float) -> dict[int, tuple[bytes, float]]:
        by_number = self._secrets(KEYS)
        newest, times = max(by_number), {number: made for number, (_, made) in by_number.items()}
        limit = now - self.key_seconds() - 2 * SECRETS_SECONDS  # other processes notice a new secret later
        live = [n for n in by_number if n == newest or min(times[m] for m in by_number if m > n) > limit]
        return {number: by_number[number] for number in live}

    def _secrets(self, purpose: str) -> dict[int, tuple[bytes, float]]:
        rows = [row for row in self._rows.all(seal_keys) if row.purpose == purpose]
        with decoding("the key that seals scans"):
            by_number = {row.id: (bytes(row.secret), float(row.created_at)) for row in rows}
            for number, (secret, _) in by_number.items():
                if len(secret) != SECRET_BYTES or not 0 <= number <= MAX_SECRET:
                    raise ValueError(f"key {number} has {len(secret)} bytes instead of {SECRET_BYTES}")
        if not by_number:
            raise damaged(f"it holds no secret for {purpose}")
        return by_number
