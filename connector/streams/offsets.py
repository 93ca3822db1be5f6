"""Offsets of a stream, their check, and the changes between two offsets. Pure.

A stream first reads a snapshot, slot by slot, then follows the commits after it:

    {"v": 1, "store": ..., "table": ..., "at": S, "slot": k, "mac": ...}
        delivered: the rows of the slots [0, k) of snapshot S
    {"v": 1, "store": ..., "table": ..., "commit": N, "slot": k, "mac": ...}
        delivered: all changes of the commits up to N, and the changes of commit N + 1 in the slots [0, k)

k is 0 after a whole commit. It is more than 0 only within a commit that is larger than a micro-batch. The
snapshot ends with {"commit": S, "slot": 0}. Two offsets alone decide which rows lie between them, wherever
tablets are, so a repeated micro-batch has the same rows.

Spark does not store where the first batch began. When it repeats that batch, it asks for the initial offset
again, which may be a newer one. So the initial offset has its position in `since`, and the end of the first
batch copies it. A repeated first batch begins at the `since` of its end.

Spark stores offsets as plain JSON. `mac` is an HMAC over all other fields with a key derived from the store's
secrets: it proves that the store made the offset. The newest secret signs. Replaced secrets verify until they
are revoked, since a checkpoint may be continued after years.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from elasticscan.base.errors import ContinuationKeyError
from elasticscan.base.formatting import brief
from elasticscan.protocol import Macs, Segment

OFFSET_VERSION = 1

Counts = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A position of a stream in a table's history.

    Attributes:
        in_changes: True if the snapshot was delivered and commits follow.
        commit: the snapshot; with `in_changes` the last commit whose changes were all delivered.
        slot: the slots [0, slot) of the snapshot, or of the next commit, were delivered.
    """

    in_changes: bool
    commit: int
    slot: int = 0


InSnapshot, InChanges = partial(Position, False), partial(Position, True)


@dataclass(frozen=True, slots=True)
class Offset:
    """A position in a table's history. The first two offsets of a stream have its beginning in `since`."""

    table: int
    position: Position
    since: Position | None = None

    @property
    def is_initial(self) -> bool:
        return self.since == self.position


def canonical(content: Mapping[str, Any]) -> str:
    """Return the JSON text of plain values that is signed: equal values have equal texts."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class OffsetFormat:
    """The format of the offsets of one store: its id, and the codes that sign them."""

    store_id: str
    codes: Macs

    def write(self, offset: Offset) -> dict[str, Any]:
        content = {
            "v": OFFSET_VERSION,
            "store": self.store_id,
            "table": offset.table,
            "slot": offset.position.slot,
            **_number(offset.position),
        }
        if offset.since is not None:
            assert offset.since.slot == 0, "a stream begins with whole commits or a whole snapshot"
            content["since"] = _number(offset.since)
        return content | {"mac": self.codes.of(canonical(content))}

    def read(self, offset: Any) -> Offset:
        """Return the offset that `write` wrote.

        Raises:
            ContinuationKeyError: it is not an offset, was altered, or is of another release or store.
        """
        is_offset = isinstance(offset, dict) and isinstance(offset.get("mac"), str)
        if not is_offset or offset.get("v") != OFFSET_VERSION:
            raise _refusal(f"{brief(offset, 200)} is no offset of a stream that this release reads")
        if offset.get("store") != self.store_id:
            raise _refusal(
                f"it is of the store {brief(offset.get('store'))}, not of this one, {self.store_id!r}"
            )
        content = {name: value for name, value in offset.items() if name != "mac"}
        try:
            is_signed = self.codes.verify(canonical(content), offset["mac"])
        except (TypeError, ValueError, RecursionError):  # a value that JSON cannot represent
            is_signed = False
        if not is_signed:
            raise _refusal(
                "it was altered since it was handed out, or the secret that signed it was revoked "
                "(rotate-secret --revoke); a new stream can go on by 'startingVersion' after its 'commit'"
            )
        # The signature is valid, so `write` made the content: its form needs no check.
        since = None if "since" not in offset else _position(offset["since"])
        return Offset(offset["table"], _position(offset), since)


def _number(position: Position) -> dict[str, int]:
    return {"commit" if position.in_changes else "at": position.commit}


def _position(offset: Mapping[str, Any]) -> Position:
    in_changes = "at" not in offset
    return Position(in_changes, offset["commit" if in_changes else "at"], offset.get("slot", 0))


def between(start: Offset, end: Offset) -> tuple[Position, Position]:
    """Return the first and last position of a micro-batch. Both are in the snapshot (or the last is its end),
    or both are in changes.

    Raises:
        ContinuationKeyError: the end lies before the start, or the offsets are of two streams.
    """
    first, last = start.position, end.position
    if end.since is not None and start.is_initial:
        first = end.since  # Spark may repeat the first batch with a newer initial offset
    elif end.since is not None and first != last:
        raise _refusal(f"the batch that ends at {last} began at {end.since}, not at {first}")
    in_another = last.commit != first.commit or (last.in_changes and last.slot > 0)
    if last < first or (not first.in_changes and in_another):
        raise _refusal(f"the batch would go back from {first} to {last}")
    return first, last


def segments(
    commits: Iterable[tuple[int, bool]], first: Position, last: Position, slots: int
) -> list[Segment]:
    """Return the changes between two positions in the fewest possible ranges of commits.

    Args:
        commits: (number, whether to read it) of the commits with changes, ascending. Commits outside of the
            positions are skipped.
    """
    built: list[Segment] = []
    was_read = False
    for number, is_wanted in commits:
        start = first.slot if number == first.commit + 1 else 0
        end = last.slot if number == last.commit + 1 else slots
        is_inside = first.commit < number <= last.commit + bool(last.slot) and start < end
        is_read = is_wanted and is_inside
        if is_read and was_read and (built[-1].start, built[-1].end) == (start, end):
            built[-1] = Segment(built[-1].after, number, start, end)
        elif is_read:
            built.append(Segment(number - 1, number, start, end))
        was_read = is_read
    return built


def cut_slots(counts: Counts, start: int, most: int) -> int:
    """Return the end of a part of slots that begins at `start` and has at most `most` rows.

    With 3, 0, 4, 0 and 0 rows in the slots 0 to 4 and `most` 5, a part that begins at 0 ends at 2. The next
    one has slot 2 and the empty slots after it, so that no part is without rows. A part has at least one slot
    with rows, even if that slot has more than `most`.
    """
    sums = np.cumsum(counts[start:])
    count = int(np.searchsorted(sums, most, "right"))
    if not count or not sums[count - 1]:
        count = int(np.searchsorted(sums, 0, "right")) + 1
    done = count >= len(sums) or sums[count - 1] == sums[-1]
    return len(counts) if done else start + count


def _refusal(why: str) -> ContinuationKeyError:
    return ContinuationKeyError(
        f"the stream cannot go on from this offset: {why}; check the checkpoint, or start a new stream "
        "with a new one",
        why=why,
    )
