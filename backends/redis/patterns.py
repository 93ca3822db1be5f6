"""Patterns of key names, as Redis writes them: `*`, `?`, `[abc]`, `[^a]`, `[a-z]` and `\\`."""

from __future__ import annotations

import re

from elasticscan.backends.redis.hash_slots import SLOTS, slot_of
from elasticscan.base.errors import InvalidOption
from elasticscan.topology import SlotSet

_SPECIAL = re.compile(rb"[*?\[\\]")


def prefix_of(pattern: bytes) -> bytes:
    """Return what every name that matches begins with."""
    found = _SPECIAL.search(pattern)
    return pattern if found is None else pattern[: found.start()]


def expression_of(pattern: bytes) -> bytes | None:
    """Return the regular expression of whole names; None where the prefix and `*` say it all."""
    prefix = prefix_of(pattern)
    if pattern == prefix + b"*":
        return None
    parts, at = [b"(?s)^"], 0
    while at < len(pattern):
        this = pattern[at : at + 1]
        end = pattern.find(b"]", at + 2)
        if this == b"[" and end > 0:
            inner = pattern[at + 1 : end].replace(b"\\", b"\\\\")
            parts.append(b"[" + inner + b"]")
            at = end
        elif this == b"\\" and at + 1 < len(pattern):
            at += 1
            parts.append(re.escape(pattern[at : at + 1]))
        else:
            parts.append({b"*": b".*", b"?": b"."}.get(this, re.escape(this)))
        at += 1
    return b"".join([*parts, b"$"])


def slots_of_prefix(prefix: bytes) -> SlotSet:
    """Return the slots that can hold keys with a prefix: one where a hash tag is part of it."""
    start = prefix.find(b"{")
    end = prefix.find(b"}", start)
    if start < 0 or end < 0:
        return SlotSet.span(0, SLOTS)
    if end == start + 1:
        raise InvalidOption(
            "keysPattern begins with an empty hash tag {}; choose one without", option="keysPattern"
        )
    slot = slot_of(prefix)
    return SlotSet.span(slot, slot + 1)
