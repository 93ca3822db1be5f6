"""Rules of the connector, each broken by a patch, to see that the soak notices."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import elasticscan.connector.streams.reader as streaming
from elasticscan.connector.stream_writing import ElasticScanStreamWriter
from elasticscan.connector.streams.lease import StreamLease
from elasticscan.connector.streams.offsets import InChanges, SnapshotPart


def _patch(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put what `make` makes of the old one in its place."""
    setattr(owner, name, make(getattr(owner, name)))


def repeated_batches_are_written() -> None:
    """A micro-batch that was committed before is not committed again."""
    _patch(ElasticScanStreamWriter, "_name", lambda _: lambda *_: f"stream:{secrets.token_hex(8)}")


def handover_skips_a_commit() -> None:
    """Behind the snapshot come the changes of the very next commit."""
    handover: set[int] = set()

    def watching(between: Any) -> Any:
        def watched(start: Any, end: Any, slots: int, may_jump: bool = False) -> Any:
            found = between(start, end, slots, may_jump)
            if isinstance(found, SnapshotPart) and found.end == slots:
                handover.add(found.at)
            return found

        return watched

    def skipping(plan: Any) -> Any:
        def skipped(store: Any, state: Any, first: InChanges, last: InChanges, *rest: Any) -> Any:
            if first.commit in handover and not first.slot:
                after = [commit.number for commit in state.commits[:1]]
                first = InChanges(min([*after, last.commit]))
            return plan(store, state, first, last, *rest)

        return skipped

    _patch(streaming, "between", watching)
    _patch(streaming, "plan_changes", skipping)


def cut_commits_begin_again() -> None:
    """The second part of a commit begins where its first part ended."""

    def from_the_start(plan: Any) -> Any:
        return lambda store, state, first, *rest: plan(store, state, replace(first, slot=0), *rest)

    _patch(streaming, "plan_changes", from_the_start)


def leases_are_not_taken() -> None:
    """What a stream with a name still needs is kept for it."""
    _patch(StreamLease, "keep", lambda _: lambda *_: None)


FAULTS: dict[str, Callable[[], None]] = {
    planted.__name__: planted
    for planted in (
        repeated_batches_are_written,
        handover_skips_a_commit,
        cut_commits_begin_again,
        leases_are_not_taken,
    )
}


def plant(name: str) -> None:
    if name not in FAULTS:
        os.write(2, f"there is no fault {name!r}, but {', '.join(FAULTS)}\n".encode())
        os._exit(2)
    FAULTS[name]()
