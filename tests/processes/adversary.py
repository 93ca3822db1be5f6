"""Processes that work on one store and are killed at any moment, over and over, and what must be left.

python -m tests.processes.adversary PLACE [--rounds 1000] [--seed 1] [--server URL]

Writers (which fork, and go on in both processes), a mover, one that merges, collects garbage and keeps, and
a reader share a store. Each round kills some of them with SIGKILL, sometimes all, together with what they
forked or apart from it, and starts others in their place. With `--server` the catalog is in a database, and
keepers share it with the writers and the mover. Each process says in a journal what it is about to do and
what it was reported, in lines that a killed one leaves whole. Every so often, and at the end, all are killed
and the oracle looks:

- every write that was acknowledged is in the history, once, at the number that was reported;
- one that was refused is not; one that was cut off is there once or not at all;
- the rows are those of these commits in their order, each once;
- at the end, after moves were resumed, a merge and a collection without grace, still so, and `verify` finds
  nothing.

Says what happened as one JSON object; the exit code is 1 if something was wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

from elasticscan.base import limits
from elasticscan.base.errors import StartAgain, TryAgain, UsageError
from elasticscan.store import Scan, Store
from elasticscan.store.moves.balancing import Balance
from elasticscan.store.moves.mover import Mover
from elasticscan.store.moves.owners import enter_moves, new_owner
from elasticscan.store.upkeep.executor import keep
from elasticscan.store.upkeep.planning import Policy
from elasticscan.topology import Move
from tests.base.topology_changes import change_topology

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
SHARED = 400  # keys that all writers change; each has others that no one else has
ROLES = ("write", "write", "move", "tend", "read")
KEEPERS = ("write", "write", "keep", "keep", "keep", "move")  # of a store whose catalog is at a server
ROUNDS_BETWEEN_CHECKS = 50
WAITS = (0, 0, 0, 400, 1_200, 4_000)  # bytes of the journal from one kill to the next
MOST_SECONDS = 5.0  # as long as that may take
SUBREAPER = 36
POLICY = Policy(
    slot_fragments=3,
    small_bytes=2_000,
    step_bytes=30_000,
    balance=Balance(split_bytes=9_000, join_bytes=4_000, fewest_tablets=4, share=0.1, bytes=1_000),
)


class Journal:
    """Lines that stay whole, whoever is killed: each is one write at the end of the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(self, **what: object) -> None:
        os.write(self._file, json.dumps(what).encode() + b"\n")

    @property
    def size(self) -> int:
        return os.fstat(self._file).st_size

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]


# What is killed


class Worker:
    """One process. What it may meet is written down; anything else ends the run.

    Attributes:
        number: its own; of a fork another one.
        lifeline: a pipe that ends with the process that kills: no one is left behind then.
    """

    def __init__(self, uri: str, journal: Journal, number: int, seed: int, lifeline: int) -> None:
        self.lifeline = lifeline
        self.uri, self.journal, self.number = uri, journal, number
        self.chance = random.Random(seed)
        if number % 2:  # half of the writers write files
            limits.INLINE_BYTES = 0

    def run(self, role: str) -> None:
        try:
            while self._goes_on():
                try:
                    store = Store.open(self.uri, upkeep="auto" if self.chance.random() < 0.7 else "off")
                except TryAgain as error:
                    self._met(error)
                    continue
                getattr(self, role)(store)
        except BaseException:
            self.journal.tell(wrong=traceback.format_exc(), role=role)
        finally:
            os._exit(1)

    def _goes_on(self) -> bool:
        if select.select([self.lifeline], [], [], 0)[0]:
            os._exit(1)
        return True

    def _met(self, error: Exception) -> None:
        self.journal.tell(met=type(error).__name__)
        time.sleep(0.01)

    def write(self, store: Store) -> None:
        fork_at = self.chance.choice([None, 1, 3, 10])
        for step in count():
            self._goes_on()
            if step == fork_at and os.fork() == 0:
                self.number += 500_000
                self.chance.seed(self.number)
                self.journal.tell(forked=self.number)
            op = f"{self.number}.{step}"
            deletes = self.chance.random() < 0.25
            keys = self.chance.sample(range(SHARED), self.chance.randrange(1, 30))
            if not deletes:
                keys.append(SHARED + self.number * 10_000 + step)
            value = self.number * 10_000 + step
            self.journal.tell(begun=op, deletes=deletes, keys=keys, value=value)
            try:
                if deletes:
                    commit = store.table("t").delete(keys, user_metadata={"op": op})
                else:
                    rows = pa.table({"id": keys, "v": [value] * len(keys)}, schema=SCHEMA)
                    commit = store.table("t").upsert(rows, user_metadata={"op": op})
            except TryAgain as error:
                self.journal.tell(refused=op, known=not str(error).startswith("[ES_COMMIT_UNKNOWN]"))
                self._met(error)
            else:
                self.journal.tell(done=op, commit=commit)

    def move(self, store: Store) -> None:
        for step in count():
            with self._meeting("move", UsageError):
                drawn = self.chance.random()
                if drawn < 0.2:
                    store.resume_moves()
                elif drawn < 0.5:
                    self._move_slowly(store)
                else:
                    change_topology(store, self.chance, f"n{self.number}_{step}")

    def _move_slowly(self, store: Store) -> None:
        """Pause in each phase of a move, so that some are killed in each."""
        tablet = self.chance.choice(store.context.placement().tablets)
        with store.context.catalog.writing() as tx:
            target = self.chance.choice([shard for shard in tx.state.shards if shard != tablet.shard])
            owner = new_owner()
            enter_moves(tx, [move := Move(tablet.id, tablet.shard, target)], owner)

        def pause(phase: str) -> None:
            self.journal.tell(did=f"move: {phase}")
            time.sleep(self.chance.uniform(0, 0.02))

        Mover(store.context, owner, move, pause).carry_out()

    def tend(self, store: Store) -> None:
        def collect() -> None:
            store.collect_garbage(grace_seconds=0, orphan_seconds=self.chance.choice([0, 60]), share=1.0)

        while True:
            with self._meeting("tend", UsageError):
                self.chance.choice([store.compact, collect, partial(keep, store.context, POLICY)])()

    def keep(self, store: Store) -> None:
        """Keepers that want the same find so in the catalog: that is no problem of any."""
        while True:
            with self._meeting("keep"):
                kept = keep(store.context, POLICY)
                assert kept.problems == []
                for what, count in (
                    ("merge", kept.merges),
                    ("other step", kept.splits + kept.joins + kept.moves),
                ):
                    if count:
                        self.journal.tell(did=what)

    def read(self, store: Store) -> None:
        """A snapshot is the same each time, has no key twice, and its scan goes on by a key."""
        while True:
            with self._meeting("read", StartAgain):
                first = store.table("t").scan(page_rows=self.chance.choice([50, 300, 5_000]))
                page = next(iter(first))
                rest = _rows_of(store.resume(page.key) if page.key else first)
                read = {tuple(row.values()) for row in page.rows.to_pylist()} | set(rest.items())
                assert len(read) == page.rows.num_rows + len(rest), "a row was returned twice"
                again = _rows_of(store.table("t").scan(snapshot=first.snapshot))
                assert read == set(again.items()), f"{first.snapshot}: {len(read)}, {len(again)} rows"

    @contextmanager
    def _meeting(self, what: str, *more: type[Exception]) -> Iterator[None]:
        self._goes_on()
        try:
            yield
        except (TryAgain, *more) as error:
            self._met(error)
        else:
            self.journal.tell(did=what)


def _rows_of(scan: Scan) -> dict[int, int]:
    rows = [tuple(row.values()) for page in scan for row in page.rows.to_pylist()]
    found = dict(rows)
    assert len(found) == len(rows), "a key was returned twice"
    return found


# The oracle


def check(uri: str, journal: Journal, last: bool = False) -> Counter[str]:
    """Compare the store with the journal; what was counted. All processes are dead."""
    said = journal.read()
    wrong = [line["wrong"] for line in said if "wrong" in line]
    assert not wrong, wrong[0]
    begun = {line["begun"]: line for line in said if "begun" in line}
    done = {line["done"]: line["commit"] for line in said if "done" in line}
    refused = {line["refused"] for line in said if line.get("known")}
    with Store.open(uri, upkeep="off") as store:
        _compare(store, begun, done, refused)
        if last:
            store.resume_moves()
            store.compact()
            store.context.catalog.check_whole()
            store.collect_garbage(grace_seconds=0, orphan_seconds=0, share=1.0)
            assert store.status()["moves"] == []
            kept = _compare(store, begun, done, refused)
            assert [str(finding) for finding in store.verify()] == []
            return kept | Counter(
                f"{what} {line[what]}" for line in said for what in ("met", "did") if what in line
            )
    return Counter()


def _compare(
    store: Store, begun: dict[str, dict[str, Any]], done: dict[str, int], refused: set[str]
) -> Counter[str]:
    history = [commit for commit in store.table("t").history() if "op" in commit.user_metadata]
    made = {commit.user_metadata["op"]: commit.number for commit in history}
    assert len(made) == len(history), "a write was committed twice"
    lost = [op for op, number in done.items() if made.get(op) != number]
    assert not lost, f"acknowledged, but not there or at another commit: {lost[:5]} ({len(lost)} in all)"
    undead = refused & made.keys()
    assert not undead, f"refused, but there: {sorted(undead)[:5]}"
    wanted: dict[int, int] = {}
    for op in sorted(made, key=made.__getitem__):
        for key in begun[op]["keys"]:
            if begun[op]["deletes"]:
                wanted.pop(key, None)
            else:
                wanted[key] = begun[op]["value"]
    found = _rows_of(store.table("t").scan())
    other = {key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key)}
    assert not other, (
        f"{len(other)} keys have other rows: {[(k, wanted.get(k), found.get(k)) for k in sorted(other)[:5]]}"
    )
    return Counter(
        {
            "acknowledged": len(done),
            "cut off but there": len(made.keys() - done.keys()),
            "refused": len(refused),
        }
    )


# The killer


class Adversary:
    """Starts processes and kills them; opens no store itself, so that what it forks is free of one."""

    def __init__(self, uri: str, journal: Journal, seed: int, roles: tuple[str, ...]) -> None:
        self._uri, self._journal, self._roles = uri, journal, roles
        self._chance = random.Random(seed)
        self._running: dict[int, str] = {}  # leaders of groups, with their roles
        self._orphaned: set[int] = set()  # groups whose leaders are dead
        self._started = 0
        self._lifeline, self._held = os.pipe()
        self.rounds = self.kills = 0

    def run(self, rounds: int) -> None:
        try:
            for number in range(rounds):
                self.rounds += 1
                self._start()
                self._wait()
                kill_all = self._chance.random() < 0.1 or not (number + 1) % ROUNDS_BETWEEN_CHECKS
                most = len(self._running) if kill_all else self._chance.randrange(1, len(self._running))
                for leader in self._chance.sample(sorted(self._running), most):
                    self._kill(leader, whole=kill_all or self._chance.random() < 0.5)
                if kill_all:
                    self._kill_orphans()
                if not (number + 1) % ROUNDS_BETWEEN_CHECKS:
                    in_child(check, self._uri, self._journal)
                    sys.stderr.write(f"{self.rounds} rounds, {self.kills} kills, nothing wrong\n")
        finally:
            for leader in list(self._running):
                self._kill(leader, whole=True)
            self._kill_orphans()

    def _wait(self) -> None:
        """Let something be done, however slow the machine is, and then a little more."""
        end, wanted = time.monotonic() + MOST_SECONDS, self._journal.size + self._chance.choice(WAITS)
        while self._journal.size < wanted and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(self._chance.uniform(0, 0.02))

    def _start(self) -> None:
        for role in (Counter(self._roles) - Counter(self._running.values())).elements():
            self._started += 1
            seed = self._chance.getrandbits(32)
            leader = os.fork()
            if leader == 0:
                os.setpgid(0, 0)
                os.close(self._held)
                Worker(self._uri, self._journal, self._started, seed, self._lifeline).run(role)
            with suppress(PermissionError, ProcessLookupError):
                os.setpgid(leader, leader)  # whoever of both is first
            self._running[leader] = role

    def _kill(self, leader: int, whole: bool) -> None:
        del self._running[leader]
        self.kills += 1
        (os.killpg if whole else os.kill)(leader, signal.SIGKILL)
        os.waitpid(leader, 0)  # it belonged to the group until now, so the number is no one else's
        self._orphaned.add(leader)
        self._reap(leader, os.WNOHANG)

    def _kill_orphans(self) -> None:
        for group in list(self._orphaned):
            os.killpg(group, signal.SIGKILL)
            self._reap(group, 0)

    def _reap(self, group: int, how: int) -> None:
        """Forks of the dead are this process's children: it is their subreaper."""
        try:
            while os.waitpid(-group, how)[0]:
                pass
        except ChildProcessError:
            self._orphaned.discard(group)


def in_child(work: Callable[..., Any], *given: Any) -> Any:
    """The result of work that is done in a process of its own; raises where it does."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return pool.submit(work, *given).result()


def _make(uri: str, where: Path) -> list[str]:
    """Make the store and use it a little; returns the modules that this took."""
    shards = {name: str(where / name) for name in ("s1", "s2", "s3")}
    with Store.create(uri, shards, tablets=8, slots=64, retention_seconds=0) as store:
        store.create_table("t", SCHEMA, ["id"]).create_index("by_v", ["v"])
        for value in range(4):
            store.table("t").upsert(pa.table({"id": [value], "v": [value]}, schema=SCHEMA))
        store.table("t").delete(range(4))
        store.move(store.topology.placement.tablets[0].id, "s2")
        keep(store.context, POLICY)
        store.compact()
        store.collect_garbage(grace_seconds=0, orphan_seconds=0)
        _rows_of(store.table("t").scan())
        store.verify()
    return sorted(sys.modules)


def besiege(place: Path, rounds: int, seed: int, server: str | None) -> dict[str, object]:
    """Run so many rounds; what happened. Raises `AssertionError` with what was wrong."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    uri, journal = server or str(place / "store"), Journal(place / "journal")
    for module in in_child(_make, uri, place):  # each process would load them again
        with suppress(ImportError):
            import_module(module)
    adversary = Adversary(uri, journal, seed, ROLES if server is None else KEEPERS)
    adversary.run(rounds)
    counted = in_child(check, uri, journal, True)
    return {"rounds": adversary.rounds, "kills": adversary.kills, **dict(sorted(counted.items()))}


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill processes that work on one store.")
    parser.add_argument("place", type=Path, help="a directory that is empty")
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server", help="an empty database for the catalog")
    try:
        message = besiege(**vars(parser.parse_args()))
    except AssertionError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(message) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
