"""The secrets that seal continuation keys and sign streams' offsets.

A new copy of a store gets new ones, so that what was sealed by the others is refused.
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
MAX_SECRET: Final = 2**16 - 1  # its number takes two bytes of every sealed scan

# The purposes of secrets. Old ones of keys go when no key can have them. Those of offsets stay until they are
# revoked: a checkpoint may be picked up after years.
KEYS, OFFSETS = "keys", "offsets"


def new_secret(id: int, purpose: str, now: float) -> Secret:  # noqa: A002
    return Secret(id, purpose, token_bytes(SECRET_BYTES), now)


def key_seconds(state: StoreState) -> float:
    """Return how long a continuation key can be used: never shorter than what it reads is kept."""
    own = (table.info.retention_seconds for table in state.tables.values())
    retentions = (seconds for seconds in own if seconds is not None)
    return max(float(KEY_SECONDS), state.retention_seconds, *retentions)


def seal_keys(state: StoreState, now: float) -> dict[int, bytes]:
    """Return the secrets that open keys at a time, by their number; the highest seals."""
    by_number = _secrets(state, KEYS)
    newest, times = max(by_number), {number: own.made_at for number, own in by_number.items()}
    limit = now - key_seconds(state) - 2 * SECRETS_SECONDS  # other processes notice a new secret later
    live = [n for n in by_number if n == newest or min(times[m] for m in by_number if m > n) > limit]
    return {number: by_number[number].secret for number in live}


def offset_keys(state: StoreState) -> dict[int, bytes]:
    """Return the secrets of streams' offsets, by their number; the highest signs."""
    return {number: secret.secret for number, secret in _secrets(state, OFFSETS).items()}


def add_secrets(tx: Tx) -> int:
    """Make a secret for each purpose; returns the last one's number."""
    for purpose in (OFFSETS, KEYS):
        secrets = tx.state.secrets
        number = max(secrets, default=0) + 1
        assert number <= MAX_SECRET, "the store has had as many secrets as there can be"
        # A clock that is behind must not end keys early.
        made = max(tx.times.stamp, *(secret.made_at for secret in secrets.values()))
        tx.append(SecretChanged(number, new_secret(number, purpose, made)))
    return max(tx.state.secrets)


def forget_secrets(tx: Tx, revoke: bool = False) -> int:
    """Delete secrets that no key in use can have, or (`revoke`) all but the newest of each purpose."""
    if revoke:
        retained = {max(_secrets(tx.state, purpose)) for purpose in (KEYS, OFFSETS)}
    else:
        # By the store's time, not this machine's clock: a deleted secret is gone for all.
        retained = {*seal_keys(tx.state, tx.times.expiry), *offset_keys(tx.state)}
    going = tx.state.secrets.keys() - retained
    for number in sorted(going):
        tx.append(SecretChanged(number, None))
    return len(going)


def _secrets(state: StoreState, purpose: str) -> dict[int, Secret]:
    return {own.id: own for own in state.secrets.values() if own.purpose == purpose}


# Copies


def take_incarnation(tx: Tx, incarnation: str, at_least: tuple[int, int]) -> None:
    """Become another copy of the store than all others; new secrets make what they sealed be refused.

    Numbers go on beyond `at_least`, a layout and a commit, so that none means two things.
    """
    tx.append(Append(StoreAdopted(incarnation, at_least[1]), beyond=max(at_least)))
    add_secrets(tx)  # numbered on, so that the numbers of old ones name nothing
    forget_secrets(tx, revoke=True)
