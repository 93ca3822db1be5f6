"""Hash slots of keys, and hash tags by which a key can be made for any slot."""

from __future__ import annotations

from functools import cache
from itertools import count

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

SLOTS = REDIS_CLUSTER_HASH_SLOTS


def slot_of(key: bytes) -> int:
    return int(key_slot(key))


@cache
def tags() -> tuple[bytes, ...]:
    """Return for each slot the first number whose text hashes to it: `{tag}` in a key chooses the slot."""
    found: dict[int, bytes] = {}
    for number in count():
        tag = b"%d" % number
        found.setdefault(slot_of(tag), tag)
        if len(found) == SLOTS:
            return tuple(found[slot] for slot in range(SLOTS))
    raise AssertionError("numbers never end")


def probe_of(prefix: bytes, slot: int, suffix: bytes) -> bytes:
    """Return a key of a slot that begins with a prefix, as the rules of access may demand."""
    return prefix + b"{" + tags()[slot] + b"}" + suffix
