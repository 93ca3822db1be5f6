"""A process whose threads scan, write, move and look after the store, and that forks such children.

python forks.py URI CHILDREN     forks so many, one after another; says what became of them

A child that hangs is ended by its alarm. The program says what it saw as one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable

import pyarrow as pa

from elasticscan.base.errors import TryAgain, UnsafeFork
from elasticscan.store import Store

ROWS = 20_000
CHILD_SECONDS = 60
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def numbered(ids: range) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(ids, pa.int64())})


def check_fixed(store: Store) -> None:
    """The table that nobody changes has its rows, each once."""
    seen = [page.rows.column("id").to_pylist() for page in store.table("fixed").scan(page_rows=1_500)]
    assert sorted(key for page in seen for key in page) == list(range(ROWS)), "wrong rows"


class Busy:
    """Threads that use the store until they are stopped."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.errors: list[str] = []
        self.done: Counter[str] = Counter()
        self._stop = threading.Event()
        work = [self._scan, self._scan, self._write, self._move, self._look_after]
        self._threads = [threading.Thread(target=self._repeat, args=(each,)) for each in work]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, work: Callable[[int], None]) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                work(number)
            except TryAgain:
                continue
            except Exception:
                self.errors.append(traceback.format_exc())
                return
            number += 1
            self.done[work.__name__] += 1

    def _scan(self, _number: int) -> None:
        check_fixed(self.store)

    def _write(self, number: int) -> None:
        self.store.table("written").upsert(numbered(range(number * 10, number * 10 + 10)))

    def _move(self, number: int) -> None:
        chance = random.Random(number)
        tablet = chance.choice(self.store.context.placement().tablets)
        names = self.store.context.shard_names()
        self.store.move(tablet.id, next(name for shard, name in names.items() if shard != tablet.shard))

    def _look_after(self, _number: int) -> None:
        """Both look at all of the catalog, and let connections go that others use."""
        assert self.store.verify() == []
        self.store.collect_garbage()


def child(store: Store, number: int) -> int:
    """What a child does; returns its exit status."""
    signal.alarm(CHILD_SECONDS)
    try:
        check_fixed(store)
        store.table("children").upsert(numbered(range(number, number + 1)))
        assert number in store.table("children").scan().to_table()["id"].to_pylist()
        return 0
    except UnsafeFork:
        return 3
    except BaseException:
        traceback.print_exc()
        return 1


def main(uri: str, children: int) -> None:
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    store = Store.create(uri, shards=["a", "b"], tablets=8)
    for name in ("fixed", "written", "children"):
        store.create_table(name, SCHEMA, ["id"])
    store.table("fixed").upsert(numbered(range(ROWS)))
    busy, ends = Busy(store), Counter[int]()
    for number in range(children):
        process = os.fork()
        if process == 0:
            os._exit(child(store, number))
        ends[os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])] += 1
    busy.stop()
    written = store.table("written").scan().to_table()["id"].to_pylist()
    message = {
        "ends": ends,
        "errors": busy.errors,
        "done": busy.done,
        "written": sorted(written) == list(range(busy.done["_write"] * 10)),
        "children": sorted(store.table("children").scan().to_table()["id"].to_pylist())
        == list(range(children)),
    }
    sys.stdout.write(json.dumps(message) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
