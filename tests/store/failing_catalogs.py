"""Programs on a store whose catalog's files fail: calls of SQLite on them meet EIO, or a disk without room.

python -m tests.store.failing_catalogs DIRECTORY SEED ...    with `failing_files.c`, compiled, in LD_PRELOAD
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import json
import random
import shutil
import sys
import traceback
from pathlib import Path

import pyarrow as pa

from elasticscan.base.errors import CommitUnknown, ElasticScanError
from elasticscan.store import Store
from tests.store.copies_of_stores import copied_store

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
STEPS = 8
HANGS_AFTER_SECONDS = 120
# Which calls fail: reads, writes, flushes, changes of length, any of the last three, any.
KINDS = (1, 2, 4, 8, 14, 15)

Rows = dict[int, int]


class WrongError(AssertionError):
    """Finds that should not be."""


def make(place: Path) -> Rows:
    with Store.create(place, ["s1", "s2"], tablets=4, slots=32, upkeep="off") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        for number in range(3):
            table.upsert(pa.table({"id": range(100), "v": [number] * 100}, schema=SCHEMA))
    return dict.fromkeys(range(100), 2)


class Program:
    """Random steps with an account of its own of what was acknowledged."""

    def __init__(self, place: Path, rows: Rows, seed: int) -> None:
        self._random = random.Random(seed)
        self._place, self._store = place, Store.open(place, upkeep="off")
        self._failing = ctypes.CDLL(None)
        self._may_be = [rows]  # after a commit of which nobody knows there are two
        self.done: list[str] = []
        self.failures = 0

    def run(self) -> str:
        message: list[str] = []
        for _ in range(STEPS):
            step = self._random.choice(
                ("write", "write", "delete", "compact", "move", "split", "index", "collect", "table", "read")
            )
            self._arm()
            after: Rows | None = None
            try:
                after = getattr(self, f"_{step}")()
                if after is not None:
                    self._may_be = [after]
                self.done.append(step)
            except CommitUnknown as error:
                self.done.append(f"{step} ({error.code})")
                message.append(error.code)
                if self._wanted is not None:
                    self._may_be = [*self._may_be, self._wanted]
            except ElasticScanError as error:
                self.done.append(f"{step} ({error.code})")
                message.append(error.code)
            self.failures += self._failing.failures()
            self._failing.fail_at(0, 0, 0, 0)
            self._check(self._store)
        self._store.close()
        with Store.open(self._place, upkeep="off") as store:
            self._check(store)
            store.table("t").upsert(pa.table({"id": [7], "v": [7]}, schema=SCHEMA))
            store.collect_garbage()
            self._may_be = [rows | {7: 7} for rows in self._may_be]
            self._check(store)
            if found := store.verify():
                raise WrongError(f"damage: {found}")
        return ",".join(sorted(set(message)))

    def _arm(self) -> None:
        chance = self._random
        self._wanted: Rows | None = None
        calls, times = int(2 ** chance.uniform(0, 7)) - 1, chance.choice((1, 1, 2, 5, 10_000))
        error = chance.choice((errno.EIO, errno.EIO, errno.ENOSPC))
        self._failing.fail_at(chance.choice(KINDS), calls, error, times)

    def _check(self, store: Store) -> None:
        found = dict(zip(*store.table("t").scan().to_table().to_pydict().values(), strict=True))
        fit = [rows for rows in self._may_be if rows == found]
        if not fit:
            missing = [len(rows.items() - found.items()) for rows in self._may_be]
            raise WrongError(f"rows are wrong: {missing} of {len(found)} are missing or others")
        self._may_be = fit[:1]

    def _write(self) -> Rows:
        ids, value = self._random.sample(range(150), 20), self._random.randrange(1000)
        self._wanted = self._may_be[0] | dict.fromkeys(ids, value)
        self._store.table("t").upsert(pa.table({"id": ids, "v": [value] * 20}, schema=SCHEMA))
        return self._wanted

    def _delete(self) -> Rows:
        ids = self._random.sample(range(150), 10)
        self._wanted = {key: value for key, value in self._may_be[0].items() if key not in ids}
        self._store.table("t").delete(ids)
        return self._wanted

    def _compact(self) -> None:
        self._store.table("t").compact()

    def _move(self) -> None:
        tablet = self._random.choice(self._store.topology.placement.tablets)
        self._store.move(tablet.id, self._random.choice(("s1", "s2")))

    def _split(self) -> None:
        self._store.split(self._random.choice(self._store.topology.placement.tablets).id)

    def _index(self) -> None:
        self._store.table("t").create_index(f"by_v_{self._random.randrange(100)}", ["v"])

    def _collect(self) -> None:
        self._store.collect_garbage(grace_seconds=0, share=1.0)

    def _table(self) -> None:
        self._store.create_table(f"u{self._random.randrange(1000)}", SCHEMA, ["id"])

    def _read(self) -> None:
        with Store.open(self._place, upkeep="off") as store:
            self._check(store)


def main() -> None:
    faulthandler.enable()
    faulthandler.dump_traceback_later(HANGS_AFTER_SECONDS * 4, exit=True)
    directory, *seeds = sys.argv[1:]
    template = Path(directory) / "template"
    rows = make(template)
    for seed in map(int, seeds):
        place = Path(directory) / str(seed)
        copied_store(template, place)
        program: Program | None = None
        try:
            program = Program(place, dict(rows), seed)
            said: dict[str, object] = {"seed": seed, "reported": program.run(), "failures": program.failures}
        except BaseException:
            done = [] if program is None else program.done
            said = {"seed": seed, "failed": f"seed {seed}, after {done}: {traceback.format_exc()}"}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
