"""A log's own files, torn: SQLite's database, its write-ahead log (-wal) and the index of that (-shm).

A log is appended to, and its files are kept as they are after each record: what a `kill -9` would leave.
One seed puts some of them back in their places, torn in one way. Where all that was acknowledged is in the
files (`is_whole`), every record is there, and the log goes on. Else the log has the state of an earlier
record, or there is a typed error; never another state, another exception or a signal.

Set ELASTICSCAN_TORN_SEEDS to one seed, or to a range such as 0-999, to run others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from elasticscan.base.errors import ElasticScanError, StoreDamaged
from elasticscan.catalog.appending import Append
from elasticscan.catalog.log import Log
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.metadata import Secret, SecretChanged, StoreCreated, TimeObserved
from elasticscan.topology import Tablet
from tests.catalog.logs import append, begin
from tests.catalog.programs import picture
from tests.seeds import ranges_of_seeds

CREATED = StoreCreated("s", 8, "murmur3", 60.0, (), (Tablet(1, 0, 8, 1, 1),))
PAGE = 4_096
FRAME = 24 + PAGE  # of the write-ahead log, behind its own 32 bytes
WAL_HEAD = 32
RECORDS = 14
RESTARTS = (5, 10)  # after so many records the write-ahead log is copied into the database, and begins again

Content = dict[str, bytes]  # of the files by the end of their names


@dataclass(frozen=True, slots=True)
class Moment:
    """A log's files after a record, its state then, and the database with all of its write-ahead log."""

    state: Any
    files: Content
    checkpointed: bytes


def record(draw: Random) -> Append:
    return Append(SecretChanged(1, Secret(1, "keys", draw.randbytes(draw.randrange(3 * PAGE)), 1.0)))


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> list[Moment]:
    place, draw, found = tmp_path_factory.mktemp("torn"), Random(1), list[Moment]()
    path, scratch = place / "log.db", place / "scratch.db"
    with closing(SqliteHome.create(path)) as home:
        log = begin(home, CREATED)
        for number in range(1, RECORDS + 1):
            append(log, record(draw))
            if number == 3:
                log.write_checkpoint()
            files = {end: Path(f"{path}{end}").read_bytes() for end in ("", "-wal", "-shm")}
            put(scratch, {end: files[end] for end in ("", "-wal")})
            checkpoint(scratch, "TRUNCATE")
            found.append(Moment(picture(log.follow()), files, scratch.read_bytes()))
            if number in RESTARTS:
                checkpoint(path, "RESTART")
    return found


def put(path: Path, files: Content) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
        if end in files:
            Path(f"{path}{end}").write_bytes(files[end])


def checkpoint(path: Path, kind: str) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(f"PRAGMA wal_checkpoint({kind})")


# ------------------------------------------------------------------------------------- kinds of tearing

Torn = tuple[Content, bool]  # files to be put in place, and whether they have all that was acknowledged


def valid_frames(wal: bytes) -> int:
    """The number of frames up to the last commit of the present round; older rounds lie behind it."""
    salts, last = wal[16:24], 0
    for number in range((len(wal) - WAL_HEAD) // FRAME):
        head = wal[WAL_HEAD + number * FRAME :][:24]
        if head[8:16] != salts:
            break
        if struct.unpack(">I", head[4:8])[0]:
            last = number + 1
    return last


def cut_wal(moments: list[Moment], draw: Random) -> Torn:
    """At the end of a frame, within one, or within the head."""
    files = moments[-1].files
    wal, frames = files["-wal"], valid_frames(files["-wal"])
    at = draw.choice(
        [
            WAL_HEAD + FRAME * draw.randint(0, frames),
            draw.randrange(len(wal)),
            WAL_HEAD + FRAME * draw.randrange(frames) + draw.choice([8, 24, 24 + 512, 24 + 2_048]),
            draw.randrange(WAL_HEAD),
        ]
    )
    return files | {"-wal": wal[:at]}, at >= WAL_HEAD + FRAME * frames


def flipped_wal(moments: list[Moment], draw: Random) -> Torn:
    files = moments[-1].files
    wal = bytearray(files["-wal"])
    for _ in range(draw.choice([1, 1, 3])):
        wal[draw.randrange(len(wal))] ^= 1 << draw.randrange(8)
    return files | {"-wal": bytes(wal)}, False


def zeros_in_the_wal(moments: list[Moment], draw: Random) -> Torn:
    """Blocks whose space was given and which were never written."""
    files = moments[-1].files
    wal = bytearray(files["-wal"])
    start = draw.randrange(len(wal)) // 512 * 512
    end = min(len(wal), start + draw.choice([512, PAGE, 1 << 20]))
    wal[start:end] = bytes(end - start)
    return files | {"-wal": bytes(wal)}, False


def no_wal(moments: list[Moment], draw: Random) -> Torn:
    kept = draw.choice((("",), ("", "-shm")))
    return {end: moments[-1].files[end] for end in kept}, False


def another_index(moments: list[Moment], draw: Random) -> Torn:
    """It is memory that processes share, not kept for later ones."""
    files, size = moments[-1].files, len(moments[-1].files["-shm"])
    index = draw.choice([draw.choice(moments).files["-shm"], draw.randbytes(size), b"", bytes(32_768), None])
    if index is None:
        return {"": files[""], "-wal": files["-wal"]}, True
    return files | {"-shm": index}, True


def another_wal(moments: list[Moment], draw: Random) -> Torn:
    """That of an earlier or a later record, of the same round or another one."""
    one, other = draw.sample(moments, 2)
    return one.files | {"-wal": other.files["-wal"], "-shm": draw.choice((one, other)).files["-shm"]}, False


def torn_checkpoint(moments: list[Moment], draw: Random) -> Torn:
    """Some pages of the database are written, wholly or in part, and the write-ahead log has all of them."""
    old, new, pages = moments[-1].files[""], moments[-1].checkpointed, list[bytes]()
    share = draw.choice([0.1, 0.5, 0.9])
    for at in range(0, max(len(old), len(new)), PAGE):
        before, after = old[at : at + PAGE], new[at : at + PAGE]
        if draw.random() >= share:
            pages.append(before)
        elif draw.random() < 0.3 and before and after:
            upto = 512 * draw.randint(1, 7)
            pages.append(after[:upto] + before[upto:])
        else:
            pages.append(after or before)
    kept = draw.choice((("-wal",), ("-wal", "-shm")))
    return {"": b"".join(pages)} | {end: moments[-1].files[end] for end in kept}, True


TEARS: list[Callable[[list[Moment], Random], Torn]] = [
    cut_wal, flipped_wal, zeros_in_the_wal, no_wal, another_index, another_wal, torn_checkpoint,
]  # fmt: skip


# ------------------------------------------------------------------------------------------------ tests


@pytest.mark.parametrize("tear", TEARS)
@pytest.mark.parametrize("seeds", ranges_of_seeds(2, 8, 1, "ELASTICSCAN_TORN_SEEDS"), ids=str)
def test_a_torn_log_has_the_state_of_a_record_or_a_typed_error(
    moments: list[Moment], tmp_path: Path, seeds: range, tear: Callable[[list[Moment], Random], Torn]
) -> None:
    for seed in seeds:
        check_torn(moments, tmp_path / f"{seed}.db", *tear(moments, Random(seed)))


def check_torn(moments: list[Moment], path: Path, files: Content, is_whole: bool) -> None:
    states = {moment.state[0]: moment.state for moment in moments}
    put(path, files)
    with closing(SqliteHome(path)) as home:
        log = Log(home)
        try:
            state = log.follow()
            number = append(log, Append(TimeObserved()))
            log.check_whole()
            home.check_sound()
        except ElasticScanError:
            assert not is_whole
            return
        assert state.number == 0 or picture(state) == states[state.number]
        assert state.number == RECORDS or not is_whole
        assert number == Log(home).follow().number == state.number + 1


@pytest.mark.parametrize("newer", ["name = 'head'", "type = 'table'", "name <> 'head'"])
def test_some_newer_pages_in_an_older_database_are_noticed(tmp_path: Path, newer: str) -> None:
    """Each page is what was written once, whole; no write-ahead log tells of the others any more."""
    path, contents, draw = tmp_path / "log.db", list[bytes](), Random(2)
    with closing(SqliteHome.create(path)) as home:
        log = begin(home, CREATED)
        for _ in range(2):
            append(log, record(draw))
            checkpoint(path, "TRUNCATE")
            contents.append(path.read_bytes())
            pages = f"SELECT rootpage FROM sqlite_master WHERE {newer} ORDER BY 1"
            roots = [root for (root,) in home.execute(pages)]
    older, newest = contents
    mixed = bytearray(older.ljust(len(newest), b"\0"))
    for at in ((root - 1) * PAGE for root in roots):
        mixed[at : at + PAGE] = newest[at : at + PAGE]
    put(path, {"": bytes(mixed)})
    with closing(SqliteHome(path)) as home, pytest.raises(StoreDamaged):
        Log(home).follow()
    put(path, {"": newest})
    with closing(SqliteHome(path)) as home:
        Log(home).check_whole()
