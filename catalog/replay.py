"""Replay: the state as of the log's head, from a state that is known or a checkpoint, and the records since.

The digests of the entries prove that they were appended after the state. The value of a record
may have been dropped because a checkpoint covers it: then the replay begins with that.
"""

from __future__ import annotations

from contextlib import suppress

from elasticscan.base.errors import CatalogOutdated, StoreDamaged, StoreNotFound
from elasticscan.catalog import checkpoints, tables
from elasticscan.catalog.database import LogHome, Row, head_in
from elasticscan.catalog.entries import GENESIS, check_chain, damaged_log, entry_of, record_of
from elasticscan.catalog.fold import apply
from elasticscan.catalog.state import StoreState


def replay(home: LogHome, state: StoreState | None) -> StoreState:
    """Return the state as of the head, from an earlier one, or from nothing.

    One statement gives the head, what the log has of the state that is known, and the rest.

    Raises:
        CatalogOutdated: an older copy of the log was put back.
        StoreDamaged: the log is not what was appended, or a value was dropped, which a checkpoint covers.
    """
    if state is not None and head_in(home.execute(tables.HEAD)) == head_of(state):
        return state
    rows = home.execute(tables.TAIL, {"known": -1 if state is None else state.number})
    head = head_in([row[:4] for row in rows[:1]])
    rows = [row[4:] for row in rows if row[4] is not None]
    if state is not None:
        if [row[2] for row in rows[:1] if row[0] == state.number] != [state.digest]:
            raise CatalogOutdated(
                f"record {state.number} was seen, and the log ends with {head[0]} or has another in its "
                "place; put the newest log back, or run `elasticscan adopt`",
                known=state.number,
                found=head[0],
            )
        rows = rows[1:]
    elif not rows and head[0] == -1:
        raise StoreNotFound("the log has no record yet; create the store again")
    entries = [entry_of(row) for row in rows]
    check_chain(GENESIS if state is None else state.digest, entries)
    for entry, row in zip(entries, rows, strict=True):
        state = apply(state, entry, record_of(entry, row[-1]))
    if state is None or head != head_of(state):
        raise damaged_log(f"its head is {head[0]}, and its entries end elsewhere")
    return state


def replay_newest(home: LogHome, known: StoreState | None) -> StoreState:
    """As `replay`, from the newest checkpoint if nothing is known, or values since then are not there."""
    with suppress(StoreDamaged):
        if known is not None:
            return replay(home, known)
    with home.reading():  # this process begins, or has slept
        return replay(home, checkpoints.newest_state(home))


def head_of(state: StoreState) -> Row:
    """Return the row of the head that belongs to a state."""
    return state.number, state.digest, state.time, state.layout
