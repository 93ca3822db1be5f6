"""Scans without pause of a cluster whose slots move, with writers and killed masters, against an oracle.

The oracle knows the versions that each key may have: a writer notes a version before it writes it (`sent`)
and after the server said yes (`acknowledged`). A key that stays has to come exactly once, with a version
between that acknowledged before the scan and that sent when it ended; a key that comes and goes once at most,
with a version that it had.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Lock, Thread

import pyarrow as pa
import redis

from tests.backends.redis.servers import Server, ServerCluster, slot_of

SCANS = int(os.environ.get("ELASTICSCAN_REDIS_SCANS", "5"))
SCHEMA = pa.schema([("key", pa.string()), ("name", pa.string()), ("version", pa.int64())])
STAYING = [f"k{n}" for n in range(2_000)] + [f"{{t{n % 20}}}k{n}" for n in range(2_000)]
GOING = [f"v{n}" for n in range(300)]
_KILL_EVERY = 10  # scans


@dataclass
class Soak:
    """What moves, writes and kills alongside scans, and what was found in their rows."""

    cluster: ServerCluster = field(repr=False)
    seed: int = field(default=0, repr=False)
    scans: int = 0
    keys: int = 0
    lost: int = 0
    repeated: int = 0
    wrong: int = 0
    moves: int = 0
    left_open: int = 0
    writes: int = 0
    kills: int = 0
    seconds: float = 0.0
    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STAYING, 0), repr=False)
    acknowledged: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STAYING, 0), repr=False)
    _writing: Lock = field(default_factory=Lock, repr=False)
    _stop: Event = field(default_factory=Event, repr=False)
    _kill: Event = field(default_factory=Event, repr=False)

    def scan(self, read: Callable[[], pa.Table], times: int) -> Soak:
        """Read so many times and count what is not as it has to be; a master is killed now and then."""
        started = time.monotonic()
        for number in range(times):
            if number % _KILL_EVERY == 1:
                self._kill.set()
            least = dict(self.acknowledged)
            self._count(read(), least)
        self.seconds += time.monotonic() - started
        return self

    def _count(self, rows: pa.Table, least: dict[str, int]) -> None:
        found = Counter(rows.column("key").to_pylist())
        self.scans += 1
        self.keys += len(found)
        self.lost += len(least.keys() - found.keys())
        self.repeated += sum(times - 1 for times in found.values())
        for row in rows.to_pylist():
            key, version = row["key"], row["version"]
            is_right = version is not None and least.get(key, 0) <= version <= self.sent.get(key, 0)
            if row["name"] != key or not is_right:
                self.wrong += 1

    # -------------------------------------------------------------------------- what happens meanwhile

    def write(self) -> None:
        chance, client = random.Random(self.seed), self.cluster.client()
        while not self._stop.is_set():
            # redis-py raises the latter where a node left its map while a pipeline was sent.
            with self._writing, suppress(redis.RedisError, AttributeError):
                self._write_some(chance, client)
            time.sleep(0.01)
        client.close()

    def _write_some(self, chance: random.Random, client: redis.RedisCluster) -> None:
        pipe, changed = client.pipeline(), chance.sample(STAYING, 30)
        for key in changed:
            self.sent[key] += 1
            pipe.hset(f"person:{key}", "version", str(self.sent[key]))
        for key in chance.sample(GOING, 20):
            pipe.hset(f"person:{key}", mapping={"name": key, "version": "0"})
            pipe.pexpire(f"person:{key}", chance.randrange(20, 200))
        for key in chance.sample(GOING, 10):
            pipe.delete(f"person:{key}")
        pipe.execute()
        self.acknowledged.update((key, self.sent[key]) for key in changed)
        self.writes += len(changed)

    def reshard(self) -> None:
        """Move slots in batches, as `redis-cli --cluster reshard` does; kill a master when it is wanted."""
        chance = random.Random(self.seed)
        slots = sorted({slot_of(f"person:{key}".encode()) for key in STAYING})
        while not self._stop.is_set():
            target, chosen = chance.choice(self.cluster.masters), chance.sample(slots, 41)
            if self.cluster.kind == "valkey" and chance.random() < 0.5:
                self.cluster.move_together(chosen, target)
                self.moves += len(chosen)
            else:
                self._move_each(chosen, target, chance.random())
            self.cluster.settle()
            if self._kill.is_set():
                self._kill.clear()
                with self._writing:  # the cluster loses what was not copied, and no scan can find it
                    self.cluster.wait_for_replicas()
                    self.cluster.fail_over(chance.randrange(len(self.cluster.masters)))
                self.kills += 1

    def _move_each(self, slots: list[int], target: Server, pause_seconds: float) -> None:
        """Move slots key by key; the first is half moved until the others are where they go."""
        first, *others = slots
        source = self.cluster.owner(first)
        if source is not target:
            self.cluster.begin_move(first, source, target)
            self.cluster.move_keys(first, source, target, most=30)
            self.left_open += 1
        for slot in others:
            if self._stop.is_set() or self._kill.is_set():
                break
            self.cluster.move(slot, target)
            self.moves += 1
        if source is not target:
            self._stop.wait(pause_seconds)
            self.cluster.move_keys(first, source, target)
            self.cluster.end_move(first, target)
            self.moves += 1


@contextmanager
def soaked(kind: str, reader: str) -> Iterator[Soak]:
    """A cluster that is resharded and written to for the length of a block."""
    failed: list[BaseException] = []
    with ServerCluster(kind, replicas=True) as cluster:
        cluster.load({f"person:{key}": {"name": key, "version": "0"} for key in STAYING})
        soak = Soak(cluster)

        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:
                failed.append(error)

        threads = [Thread(target=guarded, args=(work,)) for work in (soak.write, soak.reshard)]
        for thread in threads:
            thread.start()
        try:
            yield soak
        finally:
            soak._stop.set()
            for thread in threads:
                thread.join()
            sys.stdout.write(f"\n{reader}, {kind}: {soak}\n")
        if failed:
            raise failed[0]
