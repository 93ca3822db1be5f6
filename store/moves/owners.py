"""Owners of moves and of steps of upkeep, and the signs that they still live.

A move or a step belongs to an *owner*: one operation (an expansion, a round of a keeper, …) of one process,
named `machine:pid:start:token`. It is a lease without an end, which outlives an owner whose process dies, or
when the catalog is away while the move is undone; then another process must detect that the owner is gone:

    the owner is of                  it is gone when
    this process                     the operation has ended: a registry says which run
    another process of this machine  there is no such process, or one that started at another time
    another machine                  silent for ten minutes; keepers and plans of moves give a sign every two

A machine is a host name, a boot and a namespace of process ids, so that two containers of one name, which do
not see each other's processes, take each other for two machines.

A move is entered in the first phase of `elasticscan.topology.moves`, goes from phase to phase by that table,
and is removed with the phase that ends it.
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
    """A move under way, as every process sees it; the times are in seconds since 1970."""

    owner: str = ""
    started_at: float = 0.0
    heartbeat_at: float = 0.0


@dataclass(frozen=True, slots=True)
class OwnedStep:
    """A step of upkeep under way, as every process sees it.

    Attributes:
        target: what it works at: `merge/<table>/<shard>`, `flush/<table>`, `balance` or `garbage`.
    """

    target: str
    owner: str
    started_at: float
    heartbeat_at: float


# Owners


@contextmanager
def owning() -> Iterator[str]:
    """Hold an owner during a block."""
    owner = new_owner()
    try:
        yield owner
    finally:
        retire(owner)


def new_owner() -> str:
    """Enter an operation of this process; it counts as running until `retire`."""
    pid = os.getpid()
    owner = f"{machine()}:{pid}:{_start_ticks(pid)}:{secrets.token_hex(6)}"
    _RUNNING.add(owner)
    return owner


def retire(owner: str) -> None:
    """End an operation: its leftovers are anybody's."""
    _RUNNING.discard(owner)


@contextmanager
def beating(catalog: Catalog, owner: str) -> Iterator[None]:
    """Let other machines know that an owner is at work."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(BEAT_SECONDS):
            with suppress(ElasticScanError), catalog.writing() as tx:  # the next one may come through
                beat(tx, owner)

    with suppress(RuntimeError):  # no more threads: on its own machine it is known to live anyway
        threading.Thread(target=go_on, name="heartbeat", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def beat(tx: Tx, owner: str) -> None:
    """Show that an owner of moves or steps is alive."""
    owned: list[Lease[OwnedMove] | Lease[OwnedStep]] = [*tx.leases(OwnedMove), *tx.leases(OwnedStep)]
    for lease in owned:
        if lease.value.owner == owner:
            tx.put_lease(lease.name, replace(lease.value, heartbeat_at=tx.times.stamp))


def owner_is_gone(owned: OwnedMove | OwnedStep, now: float) -> bool:
    """Return whether the owner of a move or step is gone; `now` is the trusted time."""
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
    """Name the machine within which processes can see each other."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")[:8]
    with suppress(OSError):
        namespace = "".join(filter(str.isdigit, os.readlink("/proc/self/ns/pid")))  # noqa: PTH115
    return f"{socket.gethostname().replace(':', '-')}/{boot}/{namespace}"


def _start_ticks(pid: int) -> str:
    """Return the start of a process, in clock ticks: a later process with the same id has another."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return "0"


# Moves


def moves_in(tx: Tx) -> list[OwnedMove]:
    """Return all moves under way, the oldest first."""
    found = (lease.value for lease in tx.leases(OwnedMove))
    return sorted(found, key=lambda move: (move.started_at, move.tablet))


def move_of(tx: Tx, tablet: int) -> OwnedMove | None:
    lease = tx.lease(OwnedMove, str(tablet))
    return None if lease is None else lease.value


def check_at_rest(tx: Tx, tablets: Collection[int]) -> None:
    """Raise `Busy` if one of some tablets is being moved."""
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
    """Enter planned moves, or none of them; no other process may move their tablets until they ended."""
    assert all(move.phase is Phase.PLANNED for move in planned), f"a move begins with a plan: {planned}"
    check_at_rest(tx, {move.tablet for move in planned})
    at = tx.times.stamp
    for move in planned:
        owned = OwnedMove(move.tablet, move.source, move.target, move.phase, owner, at, at)
        tx.put_lease(str(move.tablet), owned)


def transition(tx: Tx, move: Move, owner: str, event: Event) -> Move | None:
    """Let something happen to a move, by the table of its phases; it is forgotten when it is over.

    The caller switches the placement before it reports `SWITCHED`, in the same transaction.

    Returns the move in the phase that it is in now; None, and nothing changed, when it is not this owner's.
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
    """End the move of a tablet if its mover died: the source goes on serving. Returns whether it did."""
    move = move_of(tx, tablet)
    if move is None or not owner_is_gone(move, tx.times.expiry):
        return False
    transition(tx, move, move.owner, Event.FAILED)
    return True


# Steps


def steps_in(tx: Tx) -> list[OwnedStep]:
    """Return all steps under way, the oldest first."""
    found = (lease.value for lease in tx.leases(OwnedStep))
    return sorted(found, key=lambda step: (step.started_at, step.target))


@retry_interrupted
def claim(catalog: Catalog, target: str, owner: str) -> bool:
    """Begin a step, or take it over, unless a live owner is at it."""
    with catalog.leasing() as tx:
        held, now = tx.lease(OwnedStep, target), tx.times
        if held is not None and held.value.owner != owner and not owner_is_gone(held.value, now.expiry):
            return False
        tx.put_lease(target, OwnedStep(target, owner, now.stamp, now.stamp))
    return True


@retry_interrupted
def end_step(catalog: Catalog, target: str, owner: str) -> None:
    """End the step of an owner, unless another one has taken it over."""
    with catalog.leasing() as tx:
        lease = tx.lease(OwnedStep, target)
        if lease is not None and lease.value.owner == owner:
            tx.remove_lease(OwnedStep, target)
