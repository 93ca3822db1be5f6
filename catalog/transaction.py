"""A transaction of the catalog: one state of the log, and the records that are appended to it.

A reading transaction is a state, and asks the database only for what states do not hold: entries of the log,
statistics, leases. A writing one holds the log's lock; each record that it appends changes its state, and all
become visible together at its end, or none does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticscan.base.hashing import HASH
from elasticscan.base.limits import CLAIM_SECONDS, MAX_SLOTS
from elasticscan.catalog.appending import Append, Appended, LogTransaction
from elasticscan.catalog.believed_time import Times, observe
from elasticscan.catalog.entries import damaged_log
from elasticscan.catalog.home import NOTHING, Row
from elasticscan.catalog.log import Log
from elasticscan.catalog.state import StoreState
from elasticscan.metadata import Record, TimeObserved


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """Facts that are fixed when a store is created."""

    store_id: str
    slots: int
    hash: str
    retention_seconds: float
    created_at: float


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a log: its store, which copy of it this is, and its newest commit.

    Attributes:
        incarnation: 32 hexadecimal digits; another one since a copy was written to, or adopted.
        layout, last_commit: as of `versions`.
    """

    store_id: str
    incarnation: str
    layout: int
    last_commit: int


class StateTx:
    """A transaction's look at the store, and its way of changing it.

    Args:
        log: of the store.
        state: at its beginning.
        now: what this process's clock says. What things are stamped with, and what decides that the time
            of something is over, is in `times`.
        writing: the log's own transaction; None for one that reads.
    """

    def __init__(
        self, log: Log, state: StoreState, now: float, writing: LogTransaction | None = None
    ) -> None:
        self.log, self.now = log, now
        self.begun, self._writing = state, writing
        self.files_at = frozenset[int]()  # the shards at which it has entered files of a table

    @property
    def state(self) -> StoreState:
        """The store as it is now, with what this transaction has changed."""
        return self.begun if self._writing is None else self._writing.state

    @property
    def writing(self) -> LogTransaction:
        assert self._writing is not None, "a transaction that only reads changes nothing"
        return self._writing

    def append(
        self,
        record: Record,
        app: tuple[str, int] | None = None,
        metadata: str | None = None,
        topology: tuple[int, bytes] | None = None,
        beyond: int | None = None,
        rows: bytes | None = None,
    ) -> Appended:
        """Append a record; see `Append`."""
        return self.writing.append(Append(record, rows, app, metadata, topology, beyond))

    def execute(self, statement: str, values: Mapping[str, Any] = NOTHING) -> list[Row]:
        """Return all rows of a statement, as this transaction sees them."""
        execute = self.log.home.execute if self._writing is None else self._writing.execute
        return execute(statement, values)

    def info(self) -> StoreInfo:
        state = self.state
        slots = state.placement.slot_count
        if not 1 <= slots <= MAX_SLOTS or state.hash != HASH:
            raise damaged_log(f"{slots!r} is no number of slots, or {state.hash!r} no hash")
        return StoreInfo(state.store_id, slots, state.hash, state.retention_seconds, state.created_at)

    def identity(self) -> Identity:
        return identity_of(self.state)

    def versions(self) -> tuple[int, int]:
        """(layout, last commit): whatever was cached under an equal pair is still true."""
        return self.state.layout, self.state.commit

    # Time

    @property
    def times(self) -> Times:
        """This process's clock alongside the time that the store believes."""
        return Times(self.now, observe(self.state.belief, self.now).believed_at)

    def observe_time(self) -> None:
        """Let the store know what time it is here, if that changes a claim, or its belief by an hour."""
        before = self.state.belief
        after = observe(before, self.now)
        is_later = after.believed_at > before.believed_at + CLAIM_SECONDS
        if is_later or after.claimed_at != before.claimed_at:
            self.append(TimeObserved())


def identity_of(state: StoreState) -> Identity:
    return Identity(state.store_id, state.incarnation, state.layout, state.commit)
