"""Damage of each kind to a log in SQLite: a log with history, an oracle, and damage to its rows and files.

A program of `programs` makes the log with two checkpoints, a tail and a lease. Its files (the database, the
write-ahead log and the index of that) are copied after each of the last records, as a `kill -9` would leave
them. A process may know the newest state, an older one, or none. Then a copy is damaged. Every later read
returns what was written, or raises a typed error. If the damage requires it, a full check finds it. If the
files still have all acknowledged records, nothing fails, and appends work.

A damage is a function of the log and a generator. It changes the copy and returns the required outcome.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest

from elasticscan.base.errors import (
    ElasticScanError,
    ShardMismatch,
    SnapshotExpired,
    StoreDamaged,
    StoreTooNew,
)
from elasticscan.catalog import Catalog, Tx, checkpoints
from elasticscan.catalog.entries import Append
from elasticscan.catalog.fold import apply
from elasticscan.catalog.topology_history import slot_map
from elasticscan.metadata import MAX_FILES, TimeObserved
from elasticscan.store.context.leases import Hold
from tests.base.manual_clock import ManualClock
from tests.catalog.logs import FileHome, append, entries
from tests.catalog.programs import World, picture

TABLES = ("head", "log", "payload", "checkpoint", "topology_history", "lease")
KEYS = {"number", "id", "app_id", "part", "table_id"}
TYPED = (StoreDamaged, ShardMismatch, StoreTooNew, SnapshotExpired)
REFUSED = (apsw.ConstraintError, apsw.MismatchError)  # by SQLite: no row can be like that
PAGE, WAL_HEAD = 4_096, 32
FRAME = 24 + PAGE  # of the write-ahead log, after its header
ENDS = ("", "-wal", "-shm")  # of the names of a log's files

Content = dict[str, bytes]


class Must(Enum):
    """The required outcome of a damage; in each case no wrong value may be read."""

    NOTHING = auto()
    BE_FOUND = auto()  # by a check of everything
    BE_WHOLE = auto()  # all is as it was


@dataclass(frozen=True, slots=True)
class Moment:
    """A log's files after a record, and its number."""

    number: int
    files: Content


def put(path: Path, files: Content) -> None:
    for end in ENDS:
        Path(f"{path}{end}").unlink(missing_ok=True)
        if end in files:
            Path(f"{path}{end}").write_bytes(files[end])


def files_at(path: Path) -> Content:
    return {end: Path(f"{path}{end}").read_bytes() for end in ENDS if Path(f"{path}{end}").exists()}


def checkpoint(path: Path, kind: str) -> None:
    """Copy the write-ahead log into the database."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(f"PRAGMA wal_checkpoint({kind})")


class Lived:
    """A log with history, and the states that its readers may see.

    Attributes:
        path: the copy that is damaged; `log` is the log of the process that reads the damaged copy.
        moments: the files after each of the last records; `early` is before all checkpoints.
        states: pictures of its states, by their numbers.
        known: the number of the state that the process knows; -1 for none.
    """

    log: Catalog
    known: int

    def __init__(self, directory: Path, seed: int, is_trimmed: bool) -> None:
        self.path, self.moments, self.is_trimmed = directory / "copy.db", list[Moment](), is_trimmed
        sound = directory / "sound.db"
        world = World(sound, seed)
        left_out = ("checkpoint", "drop", "lease", "forget_topologies", "break_next", "adopt")
        world.weights |= dict.fromkeys(left_out, 0)
        for upto in (8, 20, 35):
            world.live(upto)
            if upto == 8:
                self.early = Moment(world.newest, files_at(sound))
            else:
                world.observer.write_checkpoint()
        with world.observer.appending() as tx:
            tx.put_lease("me", Hold(1, 7, "scan"), 60.0)
            world.leases = {each.name: (each.value, each.until) for each in tx.leases(Hold)}
        if is_trimmed:
            world.observer.drop_payloads((world.history[-1][0].time + 1) / 1e6)
        while world.newest < 50:
            if world.newest in (40, 45):  # the log starts again; frames of older rounds follow
                checkpoint(sound, "RESTART")
            world.live(world.newest + 1)
            self.moments.append(Moment(world.newest, files_at(sound)))
        world.close()
        self.history, self.newest, self.state = world.history, world.newest, world.fold()
        numbers = [entry.number for entry, _ in world.history]
        self.states = {number: picture(world.fold(upto=number)) for number in numbers}
        self.sound = files_at(sound)
        put(self.path, self.sound)
        with closing(self.opened().home) as home:
            self.seen = dict(self._readings(Catalog(home), ()))
        for number, table in self.state.tables.items():
            bodies = {n: world.statistics[f.shard, f.path] for n, f in table.fragments.by_id.items()}
            self.seen[f"values {number}"] = {n: body for n, body in bodies.items() if body}

    def opened(self) -> Catalog:
        return Catalog(FileHome(self.path, ManualClock(1.7e9)))

    def whole_database(self, moment: Moment) -> bytes:
        """The database of a moment with all of its write-ahead log."""
        scratch = self.path.with_name("scratch.db")
        put(scratch, {end: moment.files[end] for end in ("", "-wal")})
        checkpoint(scratch, "TRUNCATE")
        return scratch.read_bytes()

    def befall(self, damage: Damage, seed: int) -> None:
        """Damage a copy, and check everything that is read from it."""
        draw = Random(seed)
        knows = draw.choice(("the newest", "an older one", "none"))
        older = draw.choice((self.early, draw.choice(self.moments)))
        put(self.path, older.files if knows == "an older one" else self.sound)
        self.log = self.opened()
        if knows != "none":
            self.log.follow()
        self.known = self.log.known.number if self.log.known else -1
        if knows == "an older one" or damage in OF_FILES:
            self.log.home.close()
            put(self.path, self.sound)
        must = damage(self, draw)
        try:
            self._check(must, (ElasticScanError,) if damage in OF_FILES else TYPED)
        finally:
            self.log.home.close()

    def _check(self, must: Must, typed: tuple[type[Exception], ...]) -> None:
        log, seen = self.log, dict(self._readings(self.log, () if must is Must.BE_WHOLE else typed))
        state = seen.pop("state", None)
        if state is not None and log.known is not None and log.known.number != 0:
            (number,) = [number for number, each in self.states.items() if each == state]
            assert number >= self.known, "a process that has seen more goes back"
        for name, there in seen.items():
            expected = self.seen[name]
            if (
                name.startswith(("rows", "values")) and must is not Must.BE_WHOLE
            ):  # missing values are looked up again, or left out
                expected = {number: expected[number] for number in there}
            if name == "topologies":  # the oldest may have been forgotten
                expected = expected[len(expected) - len(there) :]
            if name in ("entries", "leases"):  # as many as the database finds; a lost lease has ended
                expected = [entry for entry in expected if entry in there]
            assert there == expected, name
        if must is Must.BE_FOUND:
            with pytest.raises(typed):
                self._check_everything()
            return
        if must is Must.BE_WHOLE:
            assert state == self.states[self.newest]
            assert seen.keys() == self.seen.keys() - {"state"}
            self._check_everything()
        with suppress(*(() if must is Must.BE_WHOLE else typed)):
            before = log.follow()
            number = append(log, Append(TimeObserved()))
            (entry,) = entries(log.home, number, number)
            assert picture(log.seen()) == picture(apply(before, entry, TimeObserved()))
            with closing(self.opened().home) as home:
                assert number == Catalog(home).follow().number

    def _check_everything(self) -> None:
        self.log.home.check_sound()
        self.log.check_whole()

    def _readings(self, log: Catalog, typed: tuple[type[Exception], ...]) -> Iterator[tuple[str, Any]]:
        """Yield the values that can be read, by name."""
        with suppress(*typed):
            log.follow()
        asked: dict[str, Callable[[], Any]] = {
            "state": lambda: picture(log.follow()),
            "entries": lambda: entries(log.home),
            "leases": lambda: Tx(log.home, None).leases(Hold),
        }
        is_known = log.known is not None and log.known.number == self.newest
        if is_known:
            asked["topologies"] = lambda: slot_map(Tx(log.home, log.seen()), 1_000).topologies
        for number, table in (self.state.tables if is_known else {}).items():
            commits, files = table.memory, table.fragments.by_id.keys()
            asked[f"rows {number}"] = lambda n=number, c=commits: Tx(log.home, None).rows_of(n, c)  # type: ignore[misc]
            asked[f"values {number}"] = lambda n=number, f=files: Tx(log.home, None).statistics(n, f)  # type: ignore[misc]
        for name, ask in asked.items():
            with suppress(*typed):
                yield name, ask()


Damage = Callable[[Lived, Random], Must]

# ------------------------------------------------------------------------------------------------- of rows


def _columns(path: Path) -> list[tuple[str, str]]:
    with closing(apsw.Connection(str(path))) as connection:
        return [(t, row[1]) for t in TABLES for row in connection.execute(f"PRAGMA table_info({t})")]


def _altered(draw: Random, value: Any) -> Any:
    """A value with one bit flipped, or of another type, as after a flipped bit in a row's header."""
    if value is None or draw.random() < 0.15:
        return draw.choice((b"\x00\x01", "text", 2.5, -1, 0))
    if isinstance(value, int):
        flipped = value ^ (1 << draw.randrange(64))
        return flipped - (1 << 64) if flipped >= 1 << 63 else flipped
    content = bytearray(value if isinstance(value, bytes) else value.encode())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(content)


def altered_value(lived: Lived, draw: Random) -> Must:
    """Change a value in any column; statistics, and a checkpoint's number and fold, have no effect."""
    table, column = draw.choice(_columns(lived.path))
    some = " WHERE part != 'statistics'" if table == "payload" else ""
    with closing(apsw.Connection(str(lived.path))) as connection:
        before = list(connection.execute(f"SELECT * FROM {table}"))
        with suppress(*REFUSED):
            row, value = draw.choice(list(connection.execute(f"SELECT rowid, {column} FROM {table}{some}")))
            cast = "CAST(? AS TEXT)" if isinstance(value, str) else "?"
            values = (_altered(draw, value), row)
            connection.execute(f"UPDATE {table} SET {column} = {cast} WHERE rowid = ?", values)
        after = list[Any]()
        with suppress(UnicodeDecodeError):
            after = list(connection.execute(f"SELECT * FROM {table}"))
    is_unused = table == "checkpoint" and column in ("number", "fold")
    is_unused |= (table, column) == ("topology_history", "number")  # as if the oldest was forgotten
    return Must.NOTHING if after == before or is_unused else Must.BE_FOUND


def lost_row(lived: Lived, draw: Random) -> Must:
    table = draw.choice(TABLES[:-1])  # a lost lease counts as ended
    with closing(apsw.Connection(str(lived.path))) as connection, suppress(*REFUSED):
        rows = [row for (row,) in connection.execute(f"SELECT rowid FROM {table} ORDER BY 1")]
        lost = draw.choice((draw.choice(rows), rows[-1]))
        connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (lost,))
    return Must.NOTHING


def exchanged_rows(lived: Lived, draw: Random) -> Must:
    """Exchange two rows of a table, or two parts of one name, or replace one by a copy of the other."""
    table, alike = draw.choice((*TABLES, "payload", "payload")), draw.random() < 0.7
    names = [name for of, name in _columns(lived.path) if of == table and name not in KEYS]
    with closing(apsw.Connection(str(lived.path))) as connection, suppress(*REFUSED), connection:
        part = "part" if table == "payload" and alike else "1"
        rows = list(connection.execute(f"SELECT rowid, {part}, {', '.join(names)} FROM {table}"))
        rows = draw.choice((rows, rows[-15:]))
        (one, part, *content) = draw.choice(rows)
        (other, _, *others) = draw.choice([row for row in rows if row[1] == part])
        update = f"UPDATE {table} SET {', '.join(f'{name} = ?' for name in names)} WHERE rowid = ?"
        connection.execute(update, (*others, one))
        if draw.random() < 0.5:
            connection.execute(update, (*content, other))
    return Must.NOTHING


def older_row(lived: Lived, draw: Random) -> Must:
    """Replace a row by its older version."""
    older = lived.path.with_name("older.db")
    put(older, {"": lived.whole_database(draw.choice(lived.moments))})
    with closing(apsw.Connection(str(lived.path))) as connection:
        connection.execute(f"ATTACH '{older}' AS older")
        changed = {
            table: list(connection.execute(f"SELECT * FROM older.{table} EXCEPT SELECT * FROM main.{table}"))
            for table in TABLES
        }
        for table, rows in changed.items():
            if rows and draw.random() < 0.7:
                values = draw.choice(rows)
                connection.execute(f"REPLACE INTO {table} VALUES ({', '.join('?' * len(values))})", values)
    return Must.NOTHING


def damaged_statistics(lived: Lived, draw: Random) -> Must:
    """Damage statistics: those of one record are left out, and no others."""
    files = [file for name, values in lived.seen.items() if name.startswith("values") for file in values]
    number = draw.choice(files or [0]) // MAX_FILES
    altered = "UPDATE payload SET bytes = x'00' WHERE part = 'statistics' AND number = ?"
    with closing(apsw.Connection(str(lived.path))) as connection:
        connection.execute(altered, (number,))
    for name, values in lived.seen.items():
        if name.startswith("values"):
            found = Tx(lived.log.home, None).statistics(int(name.split()[1]), values.keys())
            assert found == {n: body for n, body in values.items() if n // MAX_FILES != number}
    return Must.NOTHING


def damaged_checkpoint(lived: Lived, draw: Random) -> Must:
    """Damage a checkpoint: the other one leads to the state, even if values were dropped."""
    with closing(apsw.Connection(str(lived.path))) as connection:
        (one, content), (_, other) = draw.sample(
            list(connection.execute("SELECT number, bytes FROM checkpoint")), 2
        )
        altered = draw.choice((other, content[:-1]))
        connection.execute("UPDATE checkpoint SET bytes = ? WHERE number = ?", (altered, one))
    with closing(lived.opened().home) as home:
        assert picture(Catalog(home).follow()) == lived.states[lived.newest]
    return Must.BE_FOUND


def checkpoints_of_another_log(lived: Lived, draw: Random) -> Must:
    with TemporaryDirectory(dir=lived.path.parent) as directory:
        another = Lived(Path(directory), draw.randrange(1_000, 1_010), is_trimmed=False)
        with closing(apsw.Connection(str(lived.path))) as connection:
            connection.execute(f"ATTACH '{another.path}' AS another; DELETE FROM checkpoint")
            connection.execute("INSERT INTO checkpoint SELECT * FROM another.checkpoint")
    with closing(lived.opened().home) as home:
        assert checkpoints.newest_state(home) is None
        with suppress(StoreDamaged):  # if values were dropped
            assert picture(Catalog(home).follow()) == lived.states[lived.newest]
    lived.log.home.close()
    put(lived.path, lived.sound)
    return Must.BE_WHOLE


def lost_index_entry(lived: Lived, draw: Random) -> Must:
    """Lose the index entry of an application's commit; no digest covers the database's own indexes."""
    lived.log.home.close()
    checkpoint(lived.path, "TRUNCATE")
    with closing(apsw.Connection(str(lived.path))) as connection:
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'log_by_app'")
    content = bytearray(lived.path.read_bytes())
    at = content.rfind(b"app", (page - 1) * PAGE, page * PAGE)
    if at < 0:
        return Must.NOTHING
    content[at] ^= 1
    put(lived.path, {"": bytes(content)})
    return Must.BE_FOUND


# ------------------------------------------------------------------------------------------------ of files


def flipped_bits(lived: Lived, draw: Random) -> Must:
    """Flip bits anywhere in the database or in its write-ahead log."""
    files = draw.choice((lived.sound, lived.moments[-1].files))
    end = draw.choice([end for end in ("", "-wal") if files.get(end)])
    content = bytearray(files[end])
    for _ in range(draw.choice([1, 1, 3])):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    put(lived.path, files | {end: bytes(content)})
    return Must.NOTHING


def older_copy(lived: Lived, draw: Random) -> Must:
    """Restore an older copy, and append to it or not; then restore the newest one."""
    older = draw.choice(lived.moments[:-1])
    put(lived.path, {"": lived.whole_database(older)})
    with closing(lived.opened().home) as home:
        for _ in range(draw.choice((0, 0, 3, 30))):
            append(Catalog(home), Append(TimeObserved()))
    for ask in (lived.log.follow, lambda: append(lived.log, Append(TimeObserved()))):
        if lived.known > older.number:
            with pytest.raises(ShardMismatch):
                ask()
    lived.log.home.close()
    put(lived.path, lived.sound)
    return Must.BE_WHOLE


def _valid_frames(wal: bytes) -> int:
    """The number of frames up to the last commit of the current round; older rounds follow it."""
    salts, last = wal[16:24], 0
    for number in range((len(wal) - WAL_HEAD) // FRAME):
        head = wal[WAL_HEAD + number * FRAME :][:24]
        if head[8:16] != salts:
            break
        if struct.unpack(">I", head[4:8])[0]:
            last = number + 1
    return last


def cut_wal(lived: Lived, draw: Random) -> Must:
    """Cut the write-ahead log at the end of a frame, within one, or within the header."""
    files = lived.moments[-1].files
    wal, frames = files["-wal"], _valid_frames(files["-wal"])
    frame = WAL_HEAD + FRAME * draw.randint(0, frames)
    within = frame + draw.choice([8, 24, 24 + 512, 24 + 2_048])
    at = draw.choice([frame, draw.randrange(len(wal)), within, draw.randrange(WAL_HEAD)])
    put(lived.path, files | {"-wal": wal[:at]})
    return Must.BE_WHOLE if at >= WAL_HEAD + FRAME * frames else Must.NOTHING


def other_files(lived: Lived, draw: Random) -> Must:
    """Remove or exchange the database's write-ahead log and its index; others are of any record and round.

    The index alone is shared memory of the processes; later processes do not use it.
    """
    one, other = draw.choice((lived.moments[-1], draw.choice(lived.moments))), draw.choice(lived.moments)
    log = draw.choice((one, one, other)).files["-wal"]
    index = draw.choice((one, other)).files["-shm"]
    index = draw.choice((index, draw.randbytes(len(index)), b"", bytes(32_768), None))
    files = {"": one.files[""], "-wal": draw.choice((log, log, None)), "-shm": index}
    put(lived.path, {end: content for end, content in files.items() if content is not None})
    newest = lived.moments[-1].files
    return Must.BE_WHOLE if (files[""], files["-wal"]) == (newest[""], newest["-wal"]) else Must.NOTHING


def torn_checkpoint(lived: Lived, draw: Random) -> Must:
    """Write some pages of the database, wholly or in part; the write-ahead log has them, or is lost."""
    moment = lived.moments[-1]
    old, new, pages = moment.files[""], lived.whole_database(moment), list[bytes]()
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
    kept = draw.choice((("-wal",), ("-wal", "-shm"), ()))
    put(lived.path, {"": b"".join(pages)} | {end: moment.files[end] for end in kept})
    return Must.BE_WHOLE if kept else Must.NOTHING


OF_ROWS: tuple[Damage, ...] = (
    altered_value, lost_row, exchanged_rows, older_row, damaged_statistics, damaged_checkpoint,
    lost_index_entry,
)  # fmt: skip
RARE: tuple[Damage, ...] = (checkpoints_of_another_log,)
OF_FILES: tuple[Damage, ...] = (
    flipped_bits, older_copy, cut_wal, other_files, torn_checkpoint,
)  # fmt: skip
DAMAGES = {damage.__name__: damage for damage in (*OF_ROWS, *RARE, *OF_FILES)}


def befall_some(directory: Path, seed: int, name: str) -> None:
    """Make a log, and damage copies of it."""
    lived = Lived(directory, seed, is_trimmed=seed % 2 == 0)
    for number in range(1 if DAMAGES[name] in RARE else 25):
        lived.befall(DAMAGES[name], 100 * seed + number)
