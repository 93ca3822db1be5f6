"""Names of keys: their hash slots, keys for any slot, and patterns as Redis writes them."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import count

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from elasticscan.base.errors import InvalidOption
from elasticscan.topology import SlotSet

SLOTS = REDIS_CLUSTER_HASH_SLOTS
_SPECIAL = re.compile(rb"[*?\[\\]")


def slot_of(key: bytes) -> int:
    return int(key_slot(key))


@lru_cache(maxsize=8)
def _tags(begin: bytes) -> tuple[bytes, ...]:
    """Return for each slot a hash tag that begins so and lies in it."""
    found: dict[int, bytes] = {}
    for number in count():
        tag = begin + b"%d" % number
        found.setdefault(slot_of(tag), tag)
        if len(found) == SLOTS:
            return tuple(found[slot] for slot in range(SLOTS))
    raise AssertionError("numbers never end")


def probe_of(prefix: bytes, slot: int, suffix: bytes) -> bytes:
    """Return a key of a slot that begins with a prefix, as the rules of access may demand.

    A prefix with a whole hash tag has one slot, and one that ends within a tag is completed.
    """
    head, _, begin = prefix.partition(b"{")
    if b"}" in begin:
        return prefix + suffix
    return head + b"{" + _tags(begin)[slot] + b"}" + suffix


def slots_of_prefix(prefix: bytes) -> SlotSet:
    """Return the slots that can hold keys with a prefix: one where a hash tag is part of it."""
    _, _, begin = prefix.partition(b"{")
    tag, whole, _ = begin.partition(b"}")
    if not whole:
        return SlotSet.span(0, SLOTS)
    if not tag:
        raise InvalidOption(
            "keysPattern begins with an empty hash tag {}; choose one without", option="keysPattern"
        )
    slot = slot_of(prefix)
    return SlotSet.span(slot, slot + 1)


def prefix_of(pattern: bytes) -> bytes:
    """Return what every name that matches a pattern begins with."""
    found = _SPECIAL.search(pattern)
    return pattern if found is None else pattern[: found.start()]


def expression_of(pattern: bytes) -> bytes | None:
    """Return the regular expression of whole names; None where the prefix and `*` say it all."""
    if pattern == prefix_of(pattern) + b"*":
        return None
    parts, at = [b"(?s)^"], 0
    while at < len(pattern):
        this, at = pattern[at : at + 1], at + 1
        if this == b"[":
            part, at = _class_at(pattern, at)
        elif this == b"\\" and at < len(pattern):
            part, at = _literal(pattern[at]), at + 1
        else:
            part = {b"*": b".*", b"?": b"."}.get(this) or _literal(this[0])
        parts.append(part)
    return b"".join([*parts, b"$"])


def _class_at(pattern: bytes, at: int) -> tuple[bytes, int]:
    """Return the expression of a class in brackets, whose inside begins at a place, and where it ends.

    As in Redis a range may be written backwards, and a class without an end goes to the end of the pattern.
    """
    negated = pattern[at : at + 1] == b"^"
    at += negated
    members = []
    while at < len(pattern) and pattern[at] != ord("]"):
        if pattern[at] == ord("\\") and at + 1 < len(pattern):
            members.append(_literal(pattern[at + 1]))
            at += 2
        elif pattern[at + 1 : at + 2] == b"-" and at + 2 < len(pattern):
            low, high = sorted((pattern[at], pattern[at + 2]))
            members.append(_literal(low) + b"-" + _literal(high))
            at += 3
        else:
            members.append(_literal(pattern[at]))
            at += 1
    if not members:
        return (b"." if negated else rb"[^\x00-\xff]"), at + 1
    return b"[" + b"^" * negated + b"".join(members) + b"]", at + 1


def _literal(byte: int) -> bytes:
    return rb"\x%02x" % byte
