"""Offsets of a stream, their check, and the changes between two of them. Pure.

A stream first reads a snapshot, slot by slot, then follows the commits after it:

    {"v": 1, "store": ..., "table": ..., "at": S, "slot": k, "mac": ...}
        the rows of the slots [0, k) of snapshot S were delivered
    {"v": 1, "store": ..., "table": ..., "commit": N, "slot": k, "mac": ...}
        all changes of the commits up to N were, and those of commit N + 1 of the slots [0, k)

k is 0 after whole commits; only inside a commit that is larger than a micro-batch may be it is
more. The snapshot ends with {"commit": S, "slot": 0}. Two offsets alone decide which rows lie
between them, wherever tablets are by then, so a micro-batch that is repeated has the same rows.

Spark does not keep where the first batch began: when it repeats that batch, it asks for the
initial offset again, which may have become another one. So that offset names itself in `since`,
and the end of the first batch repeats it; when the batch is repeated, that value counts.

Spark stores offsets as plain JSON. `mac`, an HMAC over everything else with a key derived from the
store's secrets, proves that an offset was made by the store. The newest secret signs; replaced secrets still
verify until they are revoked, since a checkpoint may be continued after years.
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
    """A place of a stream in a table's history.

    Attributes:
        in_changes: whether it is behind the snapshot; else in it.
        commit: the snapshot's, or the last one whose changes were delivered; all after it are needed.
        slot: the slots [0, slot) of the snapshot, or of the number after `commit`, were delivered.
    """

    in_changes: bool
    commit: int
    slot: int = 0


InSnapshot, InChanges = partial(Position, False), partial(Position, True)


@dataclass(frozen=True, slots=True)
class Offset:
    """A position in a table's history; `since` is where the stream began, at its first offsets."""

    table: int
    position: Position
    since: Position | None = None

    @property
    def is_initial(self) -> bool:
        return self.since == self.position


def canonical(content: Mapping[str, Any]) -> str:
    """Return the one JSON text that stands for plain values."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class OffsetFormat:
    """Writes and reads the offsets of one store, by its id and the codes that sign their texts."""

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
        """Return the inverse of `write`.

        Raises:
            ContinuationKeyError: it is none, of another release or store, or was altered.
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
        except (TypeError, ValueError, RecursionError):  # a value that is no JSON
            is_signed = False
        if not is_signed:
            raise _refusal(
                "it was altered since it was handed out, or the secret that signed it was revoked "
                "(rotate-secret --revoke); a new stream can go on by 'startingVersion' after its 'commit'"
            )
        # The signature is good: we wrote it, so its form is known.
        since = None if "since" not in offset else _position(offset["since"])
        return Offset(offset["table"], _position(offset), since)


def _number(position: Position) -> dict[str, int]:
    return {"commit" if position.in_changes else "at": position.commit}


def _position(offset: Mapping[str, Any]) -> Position:
    in_changes = "at" not in offset
    return Position(in_changes, offset["commit" if in_changes else "at"], offset.get("slot", 0))


def between(start: Offset, end: Offset) -> tuple[Position, Position]:
    """Return the positions between which a micro-batch reads: in one snapshot or to its end, or in changes.

    Raises:
        ContinuationKeyError: the end lies before the start, or they are not of one stream.
    """
    first, last = start.position, end.position
    if end.since is not None and start.is_initial:
        first = end.since  # Spark repeats the first batch, perhaps with a new initial offset
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
        commits: the numbers of the commits with changes, ascending, and which are to be read; those outside
            of the positions do not count.
    """
    built: list[Segment] = []
    goes_on = False
    for number, is_wanted in commits:
        start = first.slot if number == first.commit + 1 else 0
        end = last.slot if number == last.commit + 1 else slots
        is_inside = first.commit < number <= last.commit + bool(last.slot) and start < end
        is_read = is_wanted and is_inside
        if is_read and goes_on and (built[-1].start, built[-1].end) == (start, end):
            built[-1] = Segment(built[-1].after, number, start, end)
        elif is_read:
            built.append(Segment(number - 1, number, start, end))
        goes_on = is_read
    return built


def cut_slots(counts: Counts, start: int, most: int) -> int:
    """Return where to end a part that begins at a slot, to hold at most so many rows.

    With rows 3 0 4 0 0 in the slots 0 to 4 and `most` 5 a part that begins at 0 ends at 2; the next one
    takes slot 2, and the empty slots behind it, so that no part without rows is left over. A part has
    at least one slot that has rows, even if these are more than `most`.
    """
    sums = np.cumsum(counts[start:])
    taken = int(np.searchsorted(sums, most, "right"))
    if not taken or not sums[taken - 1]:
        taken = int(np.searchsorted(sums, 0, "right")) + 1
    done = taken >= len(sums) or sums[taken - 1] == sums[-1]
    return len(counts) if done else start + taken


def _refusal(why: str) -> ContinuationKeyError:
    return ContinuationKeyError(
        f"the stream cannot go on from this offset: {why}; check the checkpoint, or start a new stream "
        "with a new one",
        why=why,
    )
