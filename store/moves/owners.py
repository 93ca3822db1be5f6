"""Owners of moves and of steps of upkeep, and the detection of owners that are gone.

A move or a step belongs to an *owner*: one operation (an expansion, a round of a keeper, …) of one process,
named `machine:pid:start:token`. Moves and steps are leases without an expiry. A lease outlives its owner if
the process dies, or if the catalog is unreachable while a move is undone. Another process then has to detect
that the owner is gone:

    the owner runs in                it is gone if
    this process                     the operation has ended: it is not in the set of running ones
    another process of this machine  the process does not exist, or its id has another start time
    another machine                  it was silent for ten minutes; a heartbeat is due every two minutes

A machine is a host name, a boot id and a namespace of process ids. So two containers with the same host name,
which do not see each other's processes, count as two machines.

The phase of a move's lease changes by the table in `elasticscan.topology.moves`. The lease is removed when
the move is over.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from elasticscan.base.errors import Busy, ElasticScanError
from elasticscan.base.limits import BEAT_SECONDS, SILENT_SECONDS
from elasticscan.catalog import Catalog, Lease, Tx, retry_interrupted
from elasticscan.topology import Event, Move, Phase

_RUNNING: set[str] = set()


@dataclass(frozen=True, slots=True)
class OwnedMove(Move):
    """A planned or running move, as stored in its lease; times are in seconds since 1970."""

    owner: str = ""
    started_at: float = 0.0
    heartbeat_at: float = 0.0


@dataclass(frozen=True, slots=True)
class OwnedStep:
    """A running step of upkeep, as stored in its lease; times are in seconds since 1970.

    Attributes:
        target: `merge/<table>/<shard>`, `flush/<table>`, `balance` or `garbage`.
    """

    target: str
    owner: str
    started_at: float
    heartbeat_at: float


# Owners


@contextmanager
def owning() -> Iterator[str]:
    """Yield a new owner, which counts as gone after the block."""
    owner = new_owner()
    try:
        yield owner
    finally:
        retire(owner)


def new_owner() -> str:
    """Return a new owner for an operation of this process; it counts as running until `retire`."""
    pid = os.getpid()
    owner = f"{machine()}:{pid}:{_start_ticks(pid)}:{secrets.token_hex(6)}"
    _RUNNING.add(owner)
    return owner


def retire(owner: str) -> None:
    """End an operation: other owners may take over its moves and steps."""
    _RUNNING.discard(owner)


@contextmanager
def beating(catalog: Catalog, owner: str) -> Iterator[None]:
    """Run a thread that renews an owner's heartbeat during the block, for other machines."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(BEAT_SECONDS):
            with suppress(ElasticScanError), catalog.writing() as tx:  # the next heartbeat may succeed
                beat(tx, owner)

    with suppress(RuntimeError):  # no threads left; its own machine needs no heartbeat
        threading.Thread(target=renew, name="heartbeat", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def beat(tx: Tx, owner: str) -> None:
    """Renew the heartbeat of an owner's moves and steps."""
    owned: list[Lease[OwnedMove] | Lease[OwnedStep]] = [*tx.leases(OwnedMove), *tx.leases(OwnedStep)]
    for lease in owned:
        if lease.value.owner == owner:
            tx.put_lease(lease.name, replace(lease.value, heartbeat_at=tx.times.stamp))


def owner_is_gone(owned: OwnedMove | OwnedStep, now: float) -> bool:
    """Return whether the owner of a move or step is gone; `now` is `Times.expiry`."""
    where, pid, started, _ = f"{owned.owner}:::".split(":", 3)
    if where != machine() or not pid.isdigit():
        return now - owned.heartbeat_at > SILENT_SECONDS
    if _start_ticks(int(pid)) != started:
        return True
    if int(pid) == os.getpid():
        return owned.owner not in _RUNNING
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def machine() -> str:
    """Return the name of this machine; processes with the same name can see each other."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")[:8]
    with suppress(OSError):
        namespace = "".join(filter(str.isdigit, os.readlink("/proc/self/ns/pid")))  # noqa: PTH115
    return f"{socket.gethostname().replace(':', '-')}/{boot}/{namespace}"


def _start_ticks(pid: int) -> str:
    """Return the start time of a process in clock ticks; it differs if the process id was reused."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return "0"


# Moves


def moves_in(tx: Tx) -> list[OwnedMove]:
    """Return all planned and running moves, the oldest first."""
    found = (lease.value for lease in tx.leases(OwnedMove))
    return sorted(found, key=lambda move: (move.started_at, move.tablet))


def move_of(tx: Tx, tablet: int) -> OwnedMove | None:
    lease = tx.lease(OwnedMove, str(tablet))
    return None if lease is None else lease.value


def check_at_rest(tx: Tx, tablets: Collection[int]) -> None:
    """Raise `Busy` if one of the tablets is being moved."""
    for move in moves_in(tx):
        if move.tablet in tablets:
            raise Busy(
                f"tablet {move.tablet} is being moved by {move.owner}; wait for it, or run "
                "`elasticscan move --resume` if that process is gone",
                tablet=move.tablet,
                owner=move.owner,
                kind="tablet",
            )


def enter_moves(tx: Tx, planned: Sequence[Move], owner: str) -> None:
    """Claim planned moves for an owner, all or none; until they end, no other process moves their tablets."""
    assert all(move.phase is Phase.PLANNED for move in planned), f"a move begins with a plan: {planned}"
    check_at_rest(tx, {move.tablet for move in planned})
    at = tx.times.stamp
    for move in planned:
        owned = OwnedMove(move.tablet, move.source, move.target, move.phase, owner, at, at)
        tx.put_lease(str(move.tablet), owned)


def transition(tx: Tx, move: Move, owner: str, event: Event) -> Move | None:
    """Change the phase of a move by an event, and remove the move if it is over.

    Before `SWITCHED`, the caller changes the placement in the same transaction.

    Returns the move in its new phase. Returns None and changes nothing if the move has another owner.
    """
    before = move_of(tx, move.tablet)
    if before is None or before.owner != owner:
        return None
    after = before.after(event)
    if after.server != before.server:
        assert tx.state.tablet(move.tablet).shard == after.server, f"{after} and the placement differ"
    if after.is_over:
        tx.remove_lease(OwnedMove, str(move.tablet))
    else:
        tx.put_lease(str(move.tablet), replace(after, heartbeat_at=tx.times.stamp))
    return after


def forget_dead(tx: Tx, tablet: int) -> bool:
    """Undo the move of a tablet if its owner is gone; return whether it was undone."""
    move = move_of(tx, tablet)
    if move is None or not owner_is_gone(move, tx.times.expiry):
        return False
    transition(tx, move, move.owner, Event.FAILED)
    return True


# Steps


def steps_in(tx: Tx) -> list[OwnedStep]:
    """Return all running steps, the oldest first."""
    found = (lease.value for lease in tx.leases(OwnedStep))
    return sorted(found, key=lambda step: (step.started_at, step.target))


@retry_interrupted
def claim(catalog: Catalog, target: str, owner: str) -> bool:
    """Claim a step, or take it over if its owner is gone; return whether the owner has it now."""
    with catalog.leasing() as tx:
        lease, now = tx.lease(OwnedStep, target), tx.times
        if lease is not None and lease.value.owner != owner and not owner_is_gone(lease.value, now.expiry):
            return False
        tx.put_lease(target, OwnedStep(target, owner, now.stamp, now.stamp))
    return True


@retry_interrupted
def end_step(catalog: Catalog, target: str, owner: str) -> None:
    """End the step of an owner, unless another owner has taken it over."""
    with catalog.leasing() as tx:
        lease = tx.lease(OwnedStep, target)
        if lease is not None and lease.value.owner == owner:
            tx.remove_lease(OwnedStep, target)
