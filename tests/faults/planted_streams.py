"""Faults of streams, which random micro-batches of the source and of the sink must find."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import elasticscan.connector.streams.reader as streaming
from elasticscan.connector.stream_writing import ElasticScanStreamWriter
from elasticscan.connector.streams.lease import StreamLease
from elasticscan.connector.streams.offsets import InChanges, SnapshotPart
from tests.faults.planted import Patch, fault


@fault("sink", "a micro-batch that was committed before is not committed again")
def repeated_batches_are_written(patch: Patch) -> None:
    patch.setattr(ElasticScanStreamWriter, "_name", lambda *_: f"stream:{secrets.token_hex(8)}")


@fault("stream", "behind the snapshot come the changes of the very next commit")
def handover_skips_a_commit(patch: Patch) -> None:
    handover: set[int] = set()
    between, plan = streaming.between, streaming.plan_changes

    def watched(start: Any, end: Any, slots: int) -> Any:
        found = between(start, end, slots)
        if isinstance(found, SnapshotPart) and found.end == slots:
            handover.add(found.at)
        return found

    def skipped(store: Any, state: Any, first: InChanges, last: InChanges, *rest: Any) -> Any:
        if first.commit in handover and not first.slot:
            first = InChanges(min([*(commit.number for commit in state.commits[:1]), last.commit]))
        return plan(store, state, first, last, *rest)

    patch.setattr(streaming, "between", watched)
    patch.setattr(streaming, "plan_changes", skipped)


@fault("stream", "the second part of a commit begins where its first part ended")
def cut_commits_begin_again(patch: Patch) -> None:
    plan: Callable[..., Any] = streaming.plan_changes
    patch.setattr(
        streaming,
        "plan_changes",
        lambda store, state, first, *rest: plan(store, state, replace(first, slot=0), *rest),
    )


@fault("stream", "what a stream with a name still needs is kept for it")
def leases_are_not_taken(patch: Patch) -> None:
    patch.setattr(StreamLease, "keep", lambda *_, **__: None)
