"""Names of keys: their hash slots, keys for any slot, and patterns in the syntax of Redis."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import count

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from elasticscan.base.errors import InvalidOption
from elasticscan.topology import SlotSet

SLOTS = REDIS_CLUSTER_HASH_SLOTS
_SPECIAL = re.compile(rb"[*?\[\\]")
_MEMBER = rb"\\.|[^]]-.|[^]]"  # of a class in brackets: escaped, a range, or itself
_TOKEN = re.compile(rb"\[(?P<not>\^?)(?P<members>(?:%b)*)\]?|\\.|." % _MEMBER, re.DOTALL)


def slot_of(key: bytes) -> int:
    return int(key_slot(key))


@lru_cache(maxsize=8)
def _tags(begin: bytes) -> tuple[bytes, ...]:
    """Return, for each slot, a hash tag that begins with `begin`."""
    found: dict[int, bytes] = {}
    for number in count():
        tag = begin + b"%d" % number
        found.setdefault(slot_of(tag), tag)
        if len(found) == SLOTS:
            return tuple(found[slot] for slot in range(SLOTS))
    raise AssertionError("numbers never end")


def probe_of(prefix: bytes, slot: int, suffix: bytes) -> bytes:
    """Return the name of a key in a slot that begins with a prefix: ACL rules may allow no other names.

    If the prefix has a whole hash tag, its slot is fixed and `slot` is ignored. An open tag is completed.
    """
    head, _, begin = prefix.partition(b"{")
    if b"}" in begin:
        return prefix + suffix
    return head + b"{" + _tags(begin)[slot] + b"}" + suffix


def slots_of_prefix(prefix: bytes) -> SlotSet:
    """Return the slots that can have keys with a prefix: one slot if the prefix has a hash tag, else all."""
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
    """Return the common prefix of all names that match a pattern."""
    found = _SPECIAL.search(pattern)
    return pattern if found is None else pattern[: found.start()]


def expression_of(pattern: bytes) -> bytes | None:
    """Return a pattern as a regular expression; None for a plain prefix that `*` follows."""
    if pattern == prefix_of(pattern) + b"*":
        return None
    parts = [_expression_of(token) for token in _TOKEN.finditer(pattern)]
    return b"".join([b"(?s)^", *parts, b"$"])


def _expression_of(token: re.Match[bytes]) -> bytes:
    """Return the expression of a character or of a class in brackets.

    As in Redis, a range may be in reverse order, and a class without `]` ends with the pattern.
    """
    text, members = token[0], token["members"]
    if members is None:
        return {b"*": b".*", b"?": b"."}.get(text) or _literal(text[-1])
    ranges = []
    for member in re.findall(_MEMBER, members, re.DOTALL):
        low, high = sorted(member[::2]) if len(member) == 3 else (member[-1], member[-1])
        ranges.append(_literal(low) + b"-" + _literal(high))
    if not ranges:
        return b"." if token["not"] else rb"[^\x00-\xff]"
    return b"[" + token["not"] + b"".join(ranges) + b"]"


def _literal(byte: int) -> bytes:
    return rb"\x%02x" % byte
