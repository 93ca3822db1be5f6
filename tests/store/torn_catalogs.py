"""A catalog's own files, torn: SQLite's database, its log (-wal) and the log's index (-shm).

A store makes commits, and its catalog's files are kept as they are after each: what a `kill -9` would leave
there. One seed puts some of them back in their places, torn in one way, and opens the store. What may come:

- where all that was acknowledged is in the files (`whole`), every commit is there, and the store goes on;
- else the rows of an acknowledged commit, with right snapshots before it; and as the roots know that there
  were more, nothing can be written (`CatalogOutdated`);
- or a typed error. Never other rows, another exception or a signal.

A second program lets the system refuse writes of the log in their middle, as a device does that fails.

    python -m tests.store.torn_catalogs DIRECTORY SEED...

runs each program in a process of its own, which may die, and prints a line of JSON of what came of it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import shutil
import struct
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import apsw
import pyarrow as pa

from elasticscan.base.errors import CatalogOutdated, ElasticScanError
from elasticscan.store import Store
from tests.base.manual_clock import ManualClock

START = 4_000_000_000.0
HANGS_AFTER_SECONDS = 120
PAGE = 4_096
FRAME = 24 + PAGE  # of the log, behind its own 32 bytes
LOG_HEAD = 32
COMMITS = 14
CHECKPOINTS = (5, 10)  # after so many commits the log is copied into the database, and begins again

Rows = dict[int, int]
Content = dict[str, bytes]  # of the files by the end of their names


class TornUnseenError(AssertionError):
    """The store did what it must not do."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The catalog's files after a commit, and before and after the log was copied into the database."""

    commit: int
    files: Content
    checkpointed: bytes


@dataclass(frozen=True, slots=True)
class Torn:
    """Files to be put in place; `whole` says that they have all that was acknowledged."""

    what: str
    files: Content
    whole: bool = False


def opened(place: Path) -> Store:
    return Store.open(place, clock=ManualClock(START), upkeep="off")


def rows_at(store: Store, snapshot: int | None = None) -> Rows:
    found = store.table("t").scan(snapshot=snapshot).to_table()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


class Life:
    """A store that was made once, what it held after each commit, and its catalog's files then."""

    def __init__(self, place: Path) -> None:
        self.place, self.shards = place, place.with_name(f"{place.name}.shards")
        self.states: dict[int, Rows] = {}
        self.moments: list[Moment] = []
        rows: Rows = {}
        with Store.create(place, ["a", "b"], tablets=4, slots=16, clock=ManualClock(START)) as store:
            table = store.create_table("t", pa.schema({"id": pa.int64(), "v": pa.int64()}), ["id"])
            table.create_index("by_v", ["v"])
            for number in range(COMMITS):
                if number % 4 == 3:
                    gone = sorted(rows)[number::5]
                    commit = table.delete(gone)
                    rows = {key: value for key, value in rows.items() if key not in gone}
                else:
                    new = {number * 7 + key: number for key in range(20)}
                    commit = table.upsert({"id": list(new), "v": list(new.values())})
                    rows = rows | new
                self.states[commit] = rows
                self._keep(commit, number + 1 in CHECKPOINTS)
        shutil.copytree(place / "shards", self.shards)

    def _keep(self, commit: int, restarts: bool) -> None:
        files = self._files()
        scratch = self.place.with_name("checkpointed.db")
        for end, content in files.items():
            Path(f"{scratch}{end}").write_bytes(content)
        Path(f"{scratch}-shm").unlink(missing_ok=True)
        with closing(apsw.Connection(str(scratch))) as copy:
            copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.moments.append(Moment(commit, files, scratch.read_bytes()))
        if restarts:
            with closing(apsw.Connection(str(self.place / "catalog.db"))) as other:
                other.execute("PRAGMA wal_checkpoint(RESTART)")

    def _files(self) -> Content:
        there = {end: Path(f"{self.place / 'catalog.db'}{end}") for end in ("", "-wal", "-shm")}
        return {end: path.read_bytes() for end, path in there.items() if path.exists()}

    @property
    def newest(self) -> int:
        return self.moments[-1].commit

    def put(self, files: Content) -> None:
        """Put files where the catalog's are: the database's own file stays, or it would be a copy's."""
        database = self.place / "catalog.db"
        database.write_bytes(files[""])
        for end in ("-wal", "-shm"):
            path = Path(f"{database}{end}")
            path.unlink(missing_ok=True)
            if end in files:
                path.write_bytes(files[end])
        shutil.rmtree(self.place / "shards")
        shutil.copytree(self.shards, self.place / "shards")


# ------------------------------------------------------------------------------------- kinds of tearing

Tear = Callable[[Life, random.Random], Torn]
TEARS: dict[str, Tear] = {}


def tear(function: Tear) -> Tear:
    TEARS[function.__name__] = function
    return function


def frames_of(log: bytes) -> int:
    return (len(log) - LOG_HEAD) // FRAME


def valid_frames(log: bytes) -> int:
    """The number of frames up to the last commit of the log's present round; older rounds lie behind it."""
    salts, last = log[16:24], 0
    for number in range(frames_of(log)):
        head = log[LOG_HEAD + number * FRAME :][:24]
        if head[8:16] != salts:
            break
        if struct.unpack(">I", head[4:8])[0]:
            last = number + 1
    return last


@tear
def cut_log(life: Life, rng: random.Random) -> Torn:
    """At the end of a frame, within one, or within the log's head."""
    files = life.moments[-1].files
    log = files["-wal"]
    at = rng.choice(
        [
            LOG_HEAD + FRAME * rng.randint(0, valid_frames(log)),
            rng.randrange(len(log)),
            LOG_HEAD + FRAME * rng.randrange(valid_frames(log)) + rng.choice([8, 24, 24 + 512, 24 + 2_048]),
            rng.randrange(LOG_HEAD),
        ]
    )
    whole = at >= LOG_HEAD + FRAME * valid_frames(log)
    return Torn(f"the log is cut at {at} of {len(log)}", files | {"-wal": log[:at]}, whole)


@tear
def flipped_log(life: Life, rng: random.Random) -> Torn:
    files = life.moments[-1].files
    log = bytearray(files["-wal"])
    places = [rng.randrange(len(log)) for _ in range(rng.choice([1, 1, 3]))]
    for at in places:
        log[at] ^= 1 << rng.randrange(8)
    return Torn(f"bits of the log at {places}", files | {"-wal": bytes(log)})


@tear
def zeros_in_the_log(life: Life, rng: random.Random) -> Torn:
    """Blocks whose space was given and which were never written."""
    files = life.moments[-1].files
    log = bytearray(files["-wal"])
    start = rng.randrange(len(log)) // 512 * 512
    end = min(len(log), start + rng.choice([512, PAGE, 1 << 20]))
    log[start:end] = bytes(end - start)
    return Torn(f"zeros in the log at [{start}, {end})", files | {"-wal": bytes(log)})


@tear
def no_log(life: Life, rng: random.Random) -> Torn:
    files = dict(life.moments[-1].files)
    del files["-wal"]
    if rng.random() < 0.5:
        files.pop("-shm", None)
    return Torn("the log is gone", files)


@tear
def no_index(life: Life, rng: random.Random) -> Torn:
    files = dict(life.moments[-1].files)
    del files["-shm"]
    return Torn("the log's index is gone", files, whole=True)


@tear
def another_index(life: Life, rng: random.Random) -> Torn:
    """It is memory that processes share, not kept for later ones."""
    files = life.moments[-1].files
    index = rng.choice(
        [rng.choice(life.moments).files["-shm"], rng.randbytes(len(files["-shm"])), b"", bytes(32_768)]
    )
    return Torn("the log's index is another one", files | {"-shm": index}, whole=True)


@tear
def older_log(life: Life, rng: random.Random) -> Torn:
    """That of an earlier round, or of the same."""
    old, new = sorted(rng.sample(range(len(life.moments)), 2))
    files = life.moments[new].files | {"-wal": life.moments[old].files["-wal"]}
    if rng.random() < 0.5:
        files["-shm"] = life.moments[old].files["-shm"]
    return Torn(f"the log of moment {old} alongside the database of {new}", files)


@tear
def newer_log(life: Life, rng: random.Random) -> Torn:
    old, new = sorted(rng.sample(range(len(life.moments)), 2))
    files = life.moments[old].files | {"-wal": life.moments[new].files["-wal"]}
    return Torn(f"the log of moment {new} alongside the database of {old}", files)


@tear
def torn_checkpoint(life: Life, rng: random.Random) -> Torn:
    """Some pages of the database are written, wholly or in part, and the log still has all of them."""
    moment = life.moments[-1]
    database = torn_pages(moment.files[""], moment.checkpointed, rng)
    files = moment.files | {"": database}
    if rng.random() < 0.5:
        del files["-shm"]
    return Torn("the log was being copied into the database", files, whole=True)


def torn_pages(old: bytes, new: bytes, rng: random.Random) -> bytes:
    pages = []
    share = rng.choice([0.1, 0.5, 0.9])
    for at in range(0, max(len(old), len(new)), PAGE):
        before, after = old[at : at + PAGE], new[at : at + PAGE]
        if rng.random() >= share:
            pages.append(before)
        elif rng.random() < 0.3 and before and after:
            upto = 512 * rng.randint(1, 7)
            pages.append(after[:upto] + before[upto:])
        else:
            pages.append(after or before)
    return b"".join(pages)


# ------------------------------------------------------------------------------------------- programs


def run_torn(life: Life, seed: int) -> str:
    """The outcome of one program."""
    rng = random.Random(seed)
    torn = TEARS[sorted(TEARS)[seed % len(TEARS)]](life, rng)
    life.put(torn.files)
    try:
        return _look(life, torn)
    except ElasticScanError as error:
        if torn.whole:
            raise TornUnseenError(f"{torn.what}: all is there, but {error}") from error
        return error.code


def _look(life: Life, torn: Torn) -> str:
    with opened(life.place) as store:
        seen = store.status()["snapshot"]
        commits = [commit for commit in life.states if commit <= seen]
        if torn.whole and seen != life.newest:
            raise TornUnseenError(f"{torn.what}: the newest commit is {seen}, not {life.newest}")
        if seen not in life.states and commits:
            raise TornUnseenError(f"{torn.what}: it says to be at {seen}")
        for commit in commits[-1:] + commits[::4]:
            if rows_at(store, commit) != life.states[commit]:
                raise TornUnseenError(f"{torn.what}: other rows at {commit}")
        if seen != life.newest:
            _refuses(store, torn, seen)
            return "older"
        if {each.number for each in store.table("t").history()} & life.states.keys() != set(commits):
            raise TornUnseenError(f"{torn.what}: the history is not that of {commits}")
        store.table("t").upsert({"id": [-1], "v": [-1]})
        if rows_at(store) != life.states[seen] | {-1: -1}:
            raise TornUnseenError(f"{torn.what}: other rows after a write")
        if (found := store.verify()) and torn.whole:
            raise TornUnseenError(f"{torn.what}: {found[0]}")
        return "damage that verify tells of" if found else "newest"


def _refuses(store: Store, torn: Torn, seen: int) -> None:
    """The roots know of later commits, so nobody is reported that there are none, and nothing is written."""
    table = store.table("t")
    for call in (table.history, lambda: table.upsert({"id": [-1], "v": [-1]})):
        try:
            call()
        except CatalogOutdated:
            continue
        raise TornUnseenError(f"{torn.what}: it went on after {seen}, and later commits were acknowledged")


def run_refused(life: Life, seed: int) -> str:
    """Write while the system takes a part of what goes into the log and no more: what fails is not there."""
    rng = random.Random(seed)
    life.put(life.moments[-1].files)
    log, rows = Path(f"{life.place / 'catalog.db'}-wal"), dict(life.states[life.newest])
    limits, refused = resource.getrlimit(resource.RLIMIT_FSIZE), 0
    with opened(life.place) as store:
        store.table("t").upsert({"id": [-1], "v": [-1]})
        rows[-1] = -1
        for number in range(12):
            room = rng.choice([0, rng.randrange(FRAME), rng.randrange(12 * FRAME)])
            resource.setrlimit(resource.RLIMIT_FSIZE, (_end_of(log) + room, limits[1]))
            try:
                store.table("t").upsert({"id": [number], "v": [-number]})
                rows[number] = -number
            except ElasticScanError:
                refused += 1
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            if rows_at(store) != rows:
                raise TornUnseenError(f"write {number} with room for {room} bytes: other rows")
            if number % 5 == 4:
                with opened(life.place) as other:
                    if rows_at(other) != rows:
                        raise TornUnseenError(f"write {number}: another process sees other rows")
        if found := store.verify():
            raise TornUnseenError(str(found[0]))
    return f"{bool(refused)}"


def _end_of(log: Path) -> int:
    """Where the log's next frame goes."""
    content = log.read_bytes()
    return LOG_HEAD + FRAME * valid_frames(content) if content else 0


def main() -> None:
    faulthandler.enable()
    directory, *seeds = sys.argv[1:]
    life = Life(Path(directory) / "store")
    for seed in map(int, seeds):
        # A process of its own: SQLite keeps in memory what it knows of a file, also of one that was torn.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the other threads are idle ones of Arrow
            child = os.fork()
        if not child:
            _tell(life, seed)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            _print({"failed": f"seed {seed}: the process ended: {status}"})


def _tell(life: Life, seed: int) -> None:
    faulthandler.dump_traceback_later(HANGS_AFTER_SECONDS, exit=True)
    try:
        if seed < 0:
            _print({"kind": "refused", "came": run_refused(life, seed)})
        else:
            _print({"kind": sorted(TEARS)[seed % len(TEARS)], "came": run_torn(life, seed)})
    except BaseException:  # whatever it is, it is reported with its seed
        _print({"failed": f"seed {seed}:\n{traceback.format_exc()}"})


def _print(line: dict[str, str]) -> None:
    print(json.dumps(line), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
