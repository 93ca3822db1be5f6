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
from threading import Event, Lock, Thread

import pyarrow as pa
import redis

from elasticscan.backends.redis.names import slot_of
from tests.backends.redis.servers import Server, ServerCluster

SCANS = int(os.environ.get("ELASTICSCAN_REDIS_SCANS", "5"))
SCHEMA = pa.schema([("key", pa.string()), ("name", pa.string()), ("version", pa.int64())])
STAYING = [f"k{n}" for n in range(2_000)] + [f"{{t{n % 20}}}k{n}" for n in range(2_000)]
GOING = [f"v{n}" for n in range(300)]
_KILL_EVERY = 10  # scans


class Soak:
    """What moves, writes and kills alongside scans, and what was found in their rows."""

    def __init__(self, cluster: ServerCluster, seed: int = 0) -> None:
        self.cluster, self.seed = cluster, seed
        self.counts: Counter[str] = Counter()
        self.sent, self.acknowledged = dict.fromkeys(STAYING, 0), dict.fromkeys(STAYING, 0)
        self.stop = Event()
        self._writing, self._kill = Lock(), Event()

    def scan(self, read: Callable[[], pa.Table], times: int) -> None:
        """Read so many times and count what is not as it has to be; a master is killed now and then."""
        started = time.monotonic()
        for number in range(times):
            if number % _KILL_EVERY == 1:
                self._kill.set()
            least = dict(self.acknowledged)
            self._count(read(), least)
        self.counts["seconds"] += round(time.monotonic() - started)

    def _count(self, rows: pa.Table, least: dict[str, int]) -> None:
        found = Counter(rows.column("key").to_pylist())
        self.counts.update(
            scans=1,
            keys=len(found),
            lost=len(least.keys() - found.keys()),
            repeated=sum(times - 1 for times in found.values()),
        )
        for row in rows.to_pylist():
            key, version = row["key"], row["version"]
            is_right = version is not None and least.get(key, 0) <= version <= self.sent.get(key, 0)
            self.counts["wrong"] += row["name"] != key or not is_right

    # -------------------------------------------------------------------------- what happens meanwhile

    def write(self) -> None:
        chance, client = random.Random(self.seed), self.cluster.client()
        while not self.stop.is_set():
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
        self.counts["writes"] += len(changed)

    def reshard(self) -> None:
        """Move slots in batches, as `redis-cli --cluster reshard` does; kill a master when it is wanted."""
        chance = random.Random(self.seed)
        slots = sorted({slot_of(f"person:{key}".encode()) for key in STAYING})
        while not self.stop.is_set():
            target, chosen = chance.choice(self.cluster.masters), chance.sample(slots, 41)
            if self.cluster.kind == "valkey" and chance.random() < 0.5:
                self.cluster.move_together(chosen, target)
                self.counts["moves"] += len(chosen)
            else:
                self._move_each(chosen, target, chance.random())
            self.cluster.settle()
            if self._kill.is_set():
                self._kill.clear()
                with self._writing:  # the cluster loses what was not copied, and no scan can find it
                    self.cluster.wait_for_replicas()
                    self.cluster.fail_over(chance.randrange(len(self.cluster.masters)))
                self.counts["kills"] += 1

    def _move_each(self, slots: list[int], target: Server, pause_seconds: float) -> None:
        """Move slots key by key; the first is half moved until the others are where they go."""
        first, *others = slots
        source = self.cluster.owner(first)
        if source is not target:
            self.cluster.begin_move(first, source, target)
            self.cluster.move_keys(first, source, target, most=30)
            self.counts["left open"] += 1
        for slot in others:
            if self.stop.is_set() or self._kill.is_set():
                break
            self.cluster.move(slot, target)
            self.counts["moves"] += 1
        if source is not target:
            self.stop.wait(pause_seconds)
            self.cluster.move_keys(first, source, target)
            self.cluster.end_move(first, target)
            self.counts["moves"] += 1


@contextmanager
def soaked(kind: str, reader: str) -> Iterator[Soak]:
    """A cluster that is resharded and written to for the length of a block, whose scans have to be right."""
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
            soak.stop.set()
            for thread in threads:
                thread.join()
            sys.stdout.write(f"\n{reader}, {kind}: {dict(soak.counts)}\n")
        if failed:
            raise failed[0]
    found = soak.counts
    assert not found["lost"] + found["repeated"] + found["wrong"], found
    assert found["moves"] and found["left open"] and found["writes"] and found["kills"], found
