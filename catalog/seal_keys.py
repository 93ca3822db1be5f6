"""Catalog transactions: the secrets that seal continuation keys and sign streams' offsets."""

from __future__ import annotations

import secrets

from sqlalchemy import delete as delete_from
from sqlalchemy import func, insert, select

from elasticscan.base.errors import InvalidOption, StoreDamaged
from elasticscan.base.limits import KEY_SECONDS, SECRETS_SECONDS
from elasticscan.catalog.placement import PlacementTx, decoding
from elasticscan.catalog.tables import seal_keys, store_state, tables

SECRET_BYTES = 32
MAX_SECRET = 2**16 - 1  # its number takes two bytes of every sealed scan

# What a secret is for. Those of keys are replaced. The one of offsets stays for the store's life: a
# checkpoint may be picked up after years, and whoever forges an offset only makes his own stream skip.
KEYS, OFFSETS = "keys", "offsets"


class SecretTx(PlacementTx):
    """Reads and replaces the store's secrets."""

    def key_seconds(self) -> float:
        """How long a continuation key can be used: never shorter than what it reads is kept."""
        store = select(store_state.c.retention_seconds).scalar_subquery()
        longest = select(func.max(tables.c.retention_seconds)).where(tables.c.dropped_at.is_(None))
        found = self._sql.execute(select(store, longest.scalar_subquery())).one()
        with decoding("how long snapshots are kept"):
            return max(KEY_SECONDS, *(float(seconds) for seconds in found if seconds is not None))

    def seal_keys(self) -> dict[int, bytes]:
        """The secrets that open keys, by their number; the highest seals."""
        found = self._secrets(KEYS)
        newest, times = max(found), {number: made for number, (_, made) in found.items()}
        limit = self.now - self._old_after()
        live = [n for n in found if n == newest or min(times[m] for m in found if m > n) > limit]
        return {number: found[number][0] for number in live}

    def offset_keys(self) -> dict[int, bytes]:
        """The secrets that sign streams' offsets; they outlive those of keys."""
        return {number: secret for number, (secret, _) in self._secrets(OFFSETS).items()}

    def add_secrets(self, *purposes: str) -> int:
        """Make a secret for each purpose; returns the last one's number."""
        number, newest = self._sql.execute(
            select(func.max(seal_keys.c.id), func.max(seal_keys.c.created_at))
        ).one()
        number, made = (
            number or 0,
            max(self.now, newest or 0.0),
        )  # a clock that is behind must not end keys early
        for purpose in purposes:
            number += 1
            if number > MAX_SECRET:
                raise InvalidOption(
                    f"the store has had {MAX_SECRET:,} secrets, which is as many as there can be; it goes on "
                    "with the newest",
                    option="secret",
                )
            row = {"id": number, "purpose": purpose, "created_at": made}
            self._sql.execute(insert(seal_keys).values(**row, secret=secrets.token_bytes(SECRET_BYTES)))
        return int(number)

    def forget_secrets(self, revoke: bool = False) -> int:
        """Delete secrets of keys that no key in use can have, or (`revoke`) all but the newest."""
        found = self._secrets(KEYS)
        kept = {max(found)} if revoke else self.seal_keys().keys()
        gone = [number for number in found if number not in kept]
        if gone:
            self._sql.execute(delete_from(seal_keys).where(seal_keys.c.id.in_(gone)))
        return len(gone)

    def _old_after(self) -> float:
        """How long after it was replaced a secret's last key ends: other processes notice later."""
        return self.key_seconds() + 2 * SECRETS_SECONDS

    def _secrets(self, purpose: str) -> dict[int, tuple[bytes, float]]:
        rows = self._sql.execute(select(seal_keys).where(seal_keys.c.purpose == purpose))
        with decoding("the key that seals scans"):
            found = {row.id: (bytes(row.secret), float(row.created_at)) for row in rows}
            for number, (secret, _) in found.items():
                if len(secret) != SECRET_BYTES or not 0 <= number <= MAX_SECRET:
                    raise ValueError(f"key {number} has {len(secret)} bytes instead of {SECRET_BYTES}")
        if not found:
            raise StoreDamaged(f"the catalog holds no secret for {purpose}; restore it from a backup")
        return found
