"""Checkpoints: packed states, so that opening a store does not fold its whole log.

A checkpoint is sealed together with the log's digest at its number, so one of another log is not accepted.
The two newest are kept. If the newest is damaged, the one before it is used with more of the log.

`replay` continues from a checkpoint or from a known state; the digests of the entries prove that they were
appended after it. Values of records that the checkpoints cover may have been dropped. A process whose known
state is older then starts from a checkpoint again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from elasticscan.base.errors import NotFound, ShardMismatch, StoreDamaged, StoreTooNew
from elasticscan.catalog import tables
from elasticscan.catalog.codec import pack_value, unpack_value
from elasticscan.catalog.database import LogHome, Row, head_in
from elasticscan.catalog.entries import GENESIS, check_chain, damaged_log, entry_of, record_of, row_digest
from elasticscan.catalog.failures import change
from elasticscan.catalog.fold import FOLD_VERSION, apply
from elasticscan.catalog.state import StoreState

KEPT = 2  # number of checkpoints


class Checkpoint(NamedTuple):
    """A checkpoint of this log: its number, and the digest of the log entry with this number."""

    number: int
    digest: bytes


def all_checkpoints(home: LogHome) -> list[Checkpoint]:
    """Return the checkpoints with this release's `FOLD_VERSION`, newest first; they may be damaged."""
    rows = home.execute(tables.CHECKPOINTS)
    for number, _, fold in rows:
        if isinstance(fold, int) and fold > FOLD_VERSION:
            raise StoreTooNew(
                f"checkpoint {number} of the log was written by a newer release; upgrade elasticscan",
                known=FOLD_VERSION,
            )
    return [Checkpoint(number, digest) for number, digest, fold in rows if fold == FOLD_VERSION]


def newest_state(home: LogHome) -> StoreState | None:
    """Return the state of the newest undamaged checkpoint, or None."""
    for checkpoint in all_checkpoints(home):
        with suppress(StoreDamaged):  # then the checkpoint before it
            return read_state(home, checkpoint)
    return None


def read_state(home: LogHome, checkpoint: Checkpoint) -> StoreState:
    """Return the state of a checkpoint. Raises `StoreDamaged` if it is damaged."""
    for seal, content in home.execute(tables.CHECKPOINT, {"number": checkpoint.number}):
        if row_digest((checkpoint.digest, content)) == seal:
            return unpack_value(StoreState, content)
    raise damaged_log(f"checkpoint {checkpoint.number} is not what was written")


def replay(home: LogHome, state: StoreState | None) -> StoreState:
    """Return the state as of the head, from an earlier state, or from the whole log if that is None.

    Reads the head first. If it has moved, a second statement reads the head, the entry of the earlier state,
    and all later entries.

    Raises:
        ShardMismatch: an older copy of the log was put back.
        StoreDamaged: the log is damaged, or a value was dropped because a checkpoint covers it.
    """
    if state is not None and head_in(home.execute(tables.HEAD)) == head_of(state):
        return state
    rows = home.execute(tables.TAIL, {"known": -1 if state is None else state.number})
    head = head_in([row[:4] for row in rows[:1]])
    rows = [row[4:] for row in rows if row[4] is not None]
    if state is not None:
        if [row[2] for row in rows[:1] if row[0] == state.number] != [state.digest]:
            raise ShardMismatch(
                f"record {state.number} was seen, and the log ends with {head[0]} or has another in its "
                "place; put the newest log back, or run `elasticscan adopt`",
                known=state.number,
                found=head[0],
            )
        rows = rows[1:]
    elif not rows and head[0] == -1:
        raise NotFound("the log has no record yet; create the store again", kind="store")
    entries = [entry_of(row) for row in rows]
    check_chain(GENESIS if state is None else state.digest, entries)
    for entry, row in zip(entries, rows, strict=True):
        state = apply(state, entry, record_of(entry, row[-1]))
    if state is None or head != head_of(state):
        raise damaged_log(f"its head is record {head[0]}, but its entries end at another one")
    return state


def replay_newest(home: LogHome, known: StoreState | None) -> StoreState:
    """Return `replay` of a known state, or of the newest checkpoint if that is None or fails."""
    with suppress(StoreDamaged):
        if known is not None:
            return replay(home, known)
    with home.reading():  # at the start, or after a long pause of this process
        return replay(home, newest_state(home))


def head_of(state: StoreState) -> Row:
    """Return the row of the head for a state."""
    return state.number, state.digest, state.time, state.layout


def write(home: LogHome, state: StoreState) -> None:
    """Write the checkpoint of a state, and remove all but the newest `KEPT`."""
    content, numbers = pack_value(state), {state.number, *(each.number for each in all_checkpoints(home))}
    seal = row_digest((state.digest, content))
    values = {"number": state.number, "fold": FOLD_VERSION, "digest": seal, "bytes": content}
    before = {"before": sorted(numbers)[-KEPT:][0]}
    change(home, [(tables.PUT_CHECKPOINT, values), (tables.FORGET_CHECKPOINTS, before)])
