"""The secrets that seal continuation keys and sign streams' offsets.

A new copy of a store gets new secrets, so that it refuses keys and offsets of the original.
"""

from __future__ import annotations

from secrets import token_bytes
from typing import Final

from elasticscan.base.limits import KEY_SECONDS, SECRETS_SECONDS
from elasticscan.catalog.entries import Append
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.transaction import Tx
from elasticscan.metadata import Secret, SecretChanged, StoreAdopted

SECRET_BYTES: Final = 32
MAX_SECRET: Final = 2**16 - 1  # a continuation key has the number in two bytes

# The purposes of secrets. Old secrets for keys are deleted when all keys sealed by them have expired. Secrets
# for offsets are kept until they are revoked: a stream's checkpoint may be used again after years.
KEYS, OFFSETS = "keys", "offsets"


def new_secret(id: int, purpose: str, now: float) -> Secret:  # noqa: A002
    return Secret(id, purpose, token_bytes(SECRET_BYTES), now)


def key_seconds(state: StoreState) -> float:
    """Return how long a continuation key can be used, in seconds: at least the longest retention."""
    every = (table.info.retention_seconds for table in state.tables.values())
    retentions = (seconds for seconds in every if seconds is not None)
    return max(float(KEY_SECONDS), state.retention_seconds, *retentions)


def seal_keys(state: StoreState, now: float) -> dict[int, bytes]:
    """Return the secrets that open continuation keys, by number; the highest number seals new keys."""
    by_number = _secrets(state, KEYS)
    newest, times = max(by_number), {number: secret.made_at for number, secret in by_number.items()}
    limit = now - key_seconds(state) - 2 * SECRETS_SECONDS  # others notice a new secret later
    usable = [n for n in by_number if n == newest or min(times[m] for m in by_number if m > n) > limit]
    return {number: by_number[number].secret for number in usable}


def offset_keys(state: StoreState) -> dict[int, bytes]:
    """Return the secrets that check streams' offsets, by number; the highest number signs new offsets."""
    return {number: secret.secret for number, secret in _secrets(state, OFFSETS).items()}


def add_secrets(tx: Tx) -> int:
    """Add a new secret for each purpose; return the highest number."""
    for purpose in (OFFSETS, KEYS):
        secrets = tx.state.secrets
        number = max(secrets, default=0) + 1
        assert number <= MAX_SECRET, "the store has had as many secrets as there can be"
        # If this clock is behind, an early `made_at` would end older keys too soon.
        made = max(tx.times.stamp, *(secret.made_at for secret in secrets.values()))
        tx.append(SecretChanged(number, new_secret(number, purpose, made)))
    return max(tx.state.secrets)


def forget_secrets(tx: Tx, revoke: bool = False) -> int:
    """Delete secrets of expired keys, or with `revoke` all but the newest of each purpose; count them."""
    if revoke:
        retained = {max(_secrets(tx.state, purpose)) for purpose in (KEYS, OFFSETS)}
    else:
        # By the store's time, not this machine's clock alone: a deleted secret is lost for all.
        retained = {*seal_keys(tx.state, tx.times.expiry), *offset_keys(tx.state)}
    deleted = tx.state.secrets.keys() - retained
    for number in sorted(deleted):
        tx.append(SecretChanged(number, None))
    return len(deleted)


def _secrets(state: StoreState, purpose: str) -> dict[int, Secret]:
    return {secret.id: secret for secret in state.secrets.values() if secret.purpose == purpose}


# Copies


def take_incarnation(tx: Tx, incarnation: str, at_least: tuple[int, int]) -> None:
    """Make this log a copy of its own, with a new incarnation, and refuse what older secrets sealed.

    Numbers continue above `at_least` (a layout and a commit), so that no number has two meanings.
    """
    tx.append(Append(StoreAdopted(incarnation, at_least[1]), beyond=max(at_least)))
    add_secrets(tx)  # with new numbers, so that no old number names a secret
    forget_secrets(tx, revoke=True)
