"""The demo's arithmetic: what was expected, what came, and when. Pure, so that tests can trust it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

# Fewer moves than this during the scan would not show much.
NEEDED_MOVES = 20
# Spark's pipes hold pages that were read but have not reached the job: about a megabyte a task
# with Unix sockets. A page that arrives may have been read when so much was still to come.
READ_AHEAD_BYTES = 1_500_000
# From here on the job waits for what the demo is about, should the moves be slow on this machine.
WAIT_FOR_MOVES_AT, WAIT_FOR_ACTS_AT = 0.35, 0.85


@dataclass(frozen=True, slots=True)
class Account:
    """What came of a scan, against what it should have been.

    Attributes:
        expected: rows in the source.
        read: rows that came.
        missing: rows of the source that never came.
        repeated: rows that came more often than once, counted without their first time.
        unknown: rows that came and are not in the source.
    """

    expected: int
    read: int
    missing: int
    repeated: int
    unknown: int

    @property
    def exact(self) -> bool:
        return not (self.missing or self.repeated or self.unknown)


def account(expected: pa.Table, seen: pa.Table, key: Sequence[str]) -> Account:
    """Compare two tables as multisets of keys; each key is expected once."""
    keys = list(key)
    wanted = expected.select(keys)
    came = seen.select(keys).cast(wanted.schema).group_by(keys).aggregate([])
    return Account(
        expected=wanted.num_rows,
        read=seen.num_rows,
        missing=wanted.join(came, keys, join_type="left anti").num_rows,
        repeated=seen.num_rows - came.num_rows,
        unknown=came.join(wanted, keys, join_type="left anti").num_rows,
    )


@dataclass(frozen=True, slots=True)
class Arrival:
    """A page that reached the job: when (seconds since 1970), and its size."""

    at: float
    rows: int
    bytes: int


def window(tasks: Sequence[Sequence[Arrival]], ahead_bytes: int = READ_AHEAD_BYTES) -> tuple[float, float]:
    """A span within which Spark surely was reading: from the first page's arrival, to the last
    moment at which some task had more to come than the pipes can hold."""
    begun = [task for task in tasks if task]
    if not begun:
        return (0.0, 0.0)
    ends = []
    for task in begun:
        to_come, at = 0, task[0].at
        for page in reversed(task):
            if to_come > ahead_bytes:
                at = page.at
                break
            to_come += page.bytes
        ends.append(at)
    return min(task[0].at for task in begun), max(ends)


def count_within(moments: Sequence[float], span: tuple[float, float]) -> int:
    return sum(span[0] <= moment <= span[1] for moment in moments)


def pause_seconds(fraction: float, moves: int, acts_done: bool, usual: float) -> float:
    """How long the job takes for a page now: as long as usual, or until moves have caught up."""
    if (fraction >= WAIT_FOR_MOVES_AT and moves < NEEDED_MOVES) or (
        fraction >= WAIT_FOR_ACTS_AT and not acts_done
    ):
        return math.inf
    return usual


def usual_pause(rows: int, page_rows: int, tasks: int, seconds: float) -> float:
    """The pause after each page with which a scan of so many tasks at a time takes about `seconds`."""
    return seconds * tasks / max(1, math.ceil(rows / page_rows))


def failures(elastic: Account, plain: Account, moves: int) -> list[str]:
    """Why the demo failed; empty if it showed what it should."""
    found = []
    if not elastic.exact:
        found.append(
            f"the elastic scan missed {elastic.missing:,} rows, repeated {elastic.repeated:,} and invented "
            f"{elastic.unknown:,}"
        )
    if moves < NEEDED_MOVES:
        found.append(f"only {moves} moves finished while it read; the demo wants {NEEDED_MOVES}")
    if plain.exact:
        found.append("the plain scan lost and repeated nothing, so there was nothing to see")
    return found
