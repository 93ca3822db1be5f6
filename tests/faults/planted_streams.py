"""Faults of streams, which random micro-batches of the source and of the sink must find."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import elasticscan.connector.streams.reader as streaming
from elasticscan.connector.streams.offsets import InChanges, Position
from elasticscan.connector.writing import ElasticScanStreamWriter
from tests.faults.planted import Patch, fault


@fault("sink", "a micro-batch that was committed before is not committed again")
def repeated_batches_are_written(patch: Patch) -> None:
    patch.setattr(ElasticScanStreamWriter, "_name", lambda *_: f"stream:{secrets.token_hex(8)}")


@fault("stream", "behind the snapshot come the changes of the very next commit")
def handover_skips_a_commit(patch: Patch) -> None:
    handover: set[int] = set()
    plan = streaming.plan_micro_batch

    def skipped(store: Any, state: Any, first: Position, last: Position, *rest: Any) -> Any:
        if not first.in_changes and last.in_changes:
            handover.add(last.commit)
        elif first.commit in handover and not first.slot:
            first = InChanges(min([*(commit.number for commit in state.commits[:1]), last.commit]))
        return plan(store, state, first, last, *rest)

    patch.setattr(streaming, "plan_micro_batch", skipped)


@fault("stream", "the second part of a commit begins where its first part ended")
def cut_commits_begin_again(patch: Patch) -> None:
    plan: Callable[..., Any] = streaming.plan_micro_batch

    def again(store: Any, state: Any, first: Position, *rest: Any) -> Any:
        return plan(store, state, replace(first, slot=0) if first.in_changes else first, *rest)

    patch.setattr(streaming, "plan_micro_batch", again)


@fault("stream", "what a stream with a name still needs is kept for it")
def leases_are_not_taken(patch: Patch) -> None:
    patch.setattr(streaming.ElasticScanStreamReader, "_renew_lease", lambda *_, **__: None)
