"""Damage of each kind to a log in SQLite: what is read is what was written, or else a typed error."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from elasticscan.base.errors import (
    CatalogOutdated,
    CatalogUnavailable,
    SnapshotExpired,
    StoreDamaged,
    StoreTooNew,
)
from elasticscan.catalog import checkpoints
from elasticscan.catalog.appending import Append
from elasticscan.catalog.fold import apply
from elasticscan.catalog.leases import leases
from elasticscan.catalog.log import Log
from elasticscan.catalog.topology_history import topology
from elasticscan.catalog.transaction import Tx
from elasticscan.metadata import Secret, SecretChanged, TimeObserved
from elasticscan.store.context.leases import Hold
from tests.base.manual_clock import ManualClock
from tests.catalog.logs import append
from tests.catalog.programs import FileHome, Program, picture
from tests.seeds import seeds

TABLES = ("head", "log", "payload", "checkpoint", "topology_history", "lease")
SOME = Secret(1, "keys", b"secret", 1.0)
TYPED = (StoreDamaged, CatalogOutdated, StoreTooNew, SnapshotExpired)
STEPS = 50


class Sound:
    """A log with two checkpoints, a tail, and a lease, and what its readers see of it."""

    def __init__(self, directory: Path, seed: int, is_trimmed: bool) -> None:
        directory.mkdir(exist_ok=True)
        self.path, self.copy = directory / "sound.db", directory / "copy.db"
        program = Program(self.path, seed)
        for upto in (20, 35, STEPS):
            while len(program.history) < upto:
                program.step()
            program.observer.home.execute("DELETE FROM lease")
            if upto < STEPS:
                assert program.observer.write_checkpoint()
        if is_trimmed:
            program.observer.drop_payloads(program.history[-1][0].time)
        with program.observer.writing() as tx:
            tx.put_lease("me", Hold(1, 7, "scan"), 60.0)
        for log in (*program.logs, program.observer):
            log.home.close()
        self.state, self.newest = program.fold(), program.newest
        self.seen = dict(self.readings(self.opened(self.path)))

    def opened(self, path: Path) -> Log:
        return Log(FileHome(path, ManualClock(1.7e9)))

    def copied(self) -> Path:
        """A copy that can be damaged."""
        for path in self.copy.parent.glob("copy.db*"):
            path.unlink()
        return Path(shutil.copy(self.path, self.copy))

    def readings(self, log: Log) -> Iterator[tuple[str, Any]]:
        """Each thing that is read, as far as it can be: by name."""
        with suppress(*TYPED):
            log.follow()
        asked: dict[str, Callable[[], Any]] = {
            "state": lambda: picture(log.follow()),
            "entries": lambda: log.entries(0, 1 << 60),
            "leases": lambda: leases(log.home, Hold),
        }
        is_known = log.known is not None and log.known.number == self.newest
        for number in range(1, self.state.topology[0] + 1 if is_known else 0):
            asked[f"topology {number}"] = lambda n=number: topology(Tx(log, log.state, 0.0), n)  # type: ignore[misc]
        for number, table in (self.state.tables if is_known else {}).items():
            commits = table.memory
            asked[f"rows {number}"] = lambda n=number, c=commits: log.rows_of(n, c)  # type: ignore[misc]
            files = table.fragments.merged()["id"].to_pylist()
            asked[f"values {number}"] = lambda n=number, f=files: log.statistics_of(n, f)  # type: ignore[misc]
        for name, ask in asked.items():
            with suppress(*TYPED):
                yield name, ask()

    def check(self, log: Log) -> None:
        for name, seen in self.readings(log):
            expected = self.seen[name]
            if name.startswith(("rows", "values")):  # what is missing is looked for again, or left out
                expected = {number: expected[number] for number in seen}
            if name == "entries":  # as many as the database leads to, chained
                expected = [entry for entry in expected if entry in seen]
            assert seen == expected, name
        with suppress(*TYPED):
            number = append(log, Append(TimeObserved()))
            (entry,) = log.entries(number, number)
            assert picture(log.state) == picture(apply(self.state, entry, TimeObserved()))


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "trimmed"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return Sound(tmp_path_factory.mktemp("damage"), 7, request.param)


def altered(draw: Random, value: Any) -> Any:
    """A value with one bit flipped, or one of another type, as a flipped bit in a row's header gives."""
    if value is None or draw.random() < 0.15:
        return draw.choice((b"\x00\x01", "text", 2.5, -1, 0))
    if isinstance(value, int):
        flipped = value ^ (1 << draw.randrange(64))
        return flipped - (1 << 64) if flipped >= 1 << 63 else flipped
    content = bytearray(value if isinstance(value, bytes) else value.encode())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(content)


def columns(path: Path) -> list[tuple[str, str]]:
    with apsw.Connection(str(path)) as connection:
        return [(t, row[1]) for t in TABLES for row in connection.execute(f"PRAGMA table_info({t})")]


class Damaged:
    """A copy of a log that is altered while one process has it open, which may know its state."""

    def __init__(self, sound: Sound, draw: Random) -> None:
        self.sound, self.log = sound, sound.opened(sound.copied())
        if draw.random() < 0.5:
            self.log.follow()

    def __enter__(self) -> apsw.Connection:
        self.connection = apsw.Connection(str(self.sound.copy))
        return self.connection

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        try:
            self.sound.check(self.log)
        finally:
            self.log.home.close()


REFUSED = (apsw.ConstraintError, apsw.MismatchError)  # by SQLite: no row can be like that


@pytest.mark.parametrize("seed", seeds(8, short=2))
def test_a_flipped_bit_in_any_column_is_noticed_or_changes_nothing(sound: Sound, seed: int) -> None:
    draw = Random(seed)
    for table, column in columns(sound.path):
        with Damaged(sound, draw) as connection, suppress(*REFUSED):
            row, before = draw.choice(list(connection.execute(f"SELECT rowid, {column} FROM {table}")))
            cast = "CAST(? AS TEXT)" if isinstance(before, str) else "?"
            values = (altered(draw, before), row)
            connection.execute(f"UPDATE {table} SET {column} = {cast} WHERE rowid = ?", values)


@pytest.mark.parametrize("seed", seeds(8, short=2))
@pytest.mark.parametrize("kind", ["lost", "repeated", "exchanged"])
def test_a_row_that_is_lost_repeated_or_exchanged_is_noticed_or_changes_nothing(
    sound: Sound, kind: str, seed: int
) -> None:
    draw = Random(seed)
    for table in TABLES[: -1 if kind == "lost" else None]:  # a lost lease is one that ended
        with Damaged(sound, draw) as connection, suppress(*REFUSED), connection:
            keys = {"number", "id", "app_id", *(("part", "table_id") if table != "log" else ())}
            names = [name for of, name in columns(sound.path) if of == table and name not in keys]
            rows = list(connection.execute(f"SELECT rowid, {', '.join(names)} FROM {table}"))
            (one, *content), (other, *others) = draw.choice(rows), draw.choice(rows)
            if kind == "lost":
                connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (one,))
                continue
            update = f"UPDATE {table} SET {', '.join(f'{name} = ?' for name in names)} WHERE rowid = ?"
            connection.execute(update, (*others, one))
            if kind == "exchanged":
                connection.execute(update, (*content, other))


@pytest.mark.parametrize("seed", seeds(12, short=2))
def test_a_flipped_bit_anywhere_in_the_file_is_noticed_or_changes_nothing(sound: Sound, seed: int) -> None:
    draw, content = Random(seed), sound.path.read_bytes()
    for _ in range(10):
        damaged = bytearray(content)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        log = sound.opened(sound.copied())
        sound.copy.write_bytes(damaged)
        with suppress(CatalogUnavailable):  # SQLite cannot open it
            sound.check(log)
        log.home.close()


@pytest.mark.parametrize("seed", seeds(8, short=2))
def test_a_check_of_all_finds_each_value_that_was_altered(sound: Sound, seed: int) -> None:
    draw = Random(seed)
    log = sound.opened(sound.copied())
    log.check_whole()
    log.home.close()
    for table, column in columns(sound.path):
        if table == "checkpoint" and column in ("number", "part", "fold"):  # another one is not used, or kept
            continue
        log, connection = sound.opened(sound.copied()), apsw.Connection(str(sound.copy))
        before = list(connection.execute(f"SELECT * FROM {table}"))
        with suppress(*REFUSED):
            parts = " WHERE part NOT LIKE 'statistics%'"  # on which no row depends
            some = parts if table in ("payload", "checkpoint") else ""
            row, value = draw.choice(list(connection.execute(f"SELECT rowid, {column} FROM {table}{some}")))
            cast = "CAST(? AS TEXT)" if isinstance(value, str) else "?"
            values = (altered(draw, value), row)
            connection.execute(f"UPDATE {table} SET {column} = {cast} WHERE rowid = ?", values)
        after = list[Any]()
        with suppress(UnicodeDecodeError):
            after = list(connection.execute(f"SELECT * FROM {table}"))
        connection.close()
        if after != before:
            with pytest.raises(TYPED):
                log.check_whole()
        log.home.close()


def test_a_checkpoint_of_another_log_is_not_used(tmp_path: Path) -> None:
    one, other = (Sound(tmp_path / str(seed), seed, is_trimmed=False) for seed in (2, 3))
    log = one.opened(one.copied())
    with apsw.Connection(str(one.copy)) as connection:
        connection.execute(f"ATTACH '{other.path}' AS other; DELETE FROM checkpoint")
        connection.execute("INSERT INTO checkpoint SELECT * FROM other.checkpoint")
    assert checkpoints.newest_state(log.home) is None
    with suppress(StoreDamaged):  # where values were dropped
        assert picture(log.follow()) == picture(one.state)
    log.home.close()


@pytest.mark.parametrize("is_longer", [False, True])
def test_an_older_copy_is_refused_by_a_process_that_has_seen_more(tmp_path: Path, is_longer: bool) -> None:
    sound = Sound(tmp_path, 2, is_trimmed=False)
    log = sound.opened(sound.copied())
    append(log, Append(TimeObserved()))
    log.home.close()
    sound.copied()  # which lacks the record
    if is_longer:
        other = sound.opened(sound.copy)
        for _ in range(3):
            append(other, Append(SecretChanged(1, SOME)))
        assert other.write_checkpoint()
        other.home.close()
    with pytest.raises(CatalogOutdated):
        log.follow()
    with pytest.raises(CatalogOutdated):
        append(log, Append(TimeObserved()))
    log.home.close()


def test_an_entry_that_was_altered_is_noticed(tmp_path: Path) -> None:
    sound = Sound(tmp_path, 2, is_trimmed=False)
    log = sound.opened(sound.copied())
    with apsw.Connection(str(sound.copy)) as connection:
        connection.execute("UPDATE log SET metadata = '{}' WHERE number = (SELECT max(number) FROM log)")
    with pytest.raises(StoreDamaged, match=f"record {sound.newest}"):
        log.follow()
    log.home.close()


def test_a_process_that_slept_while_values_were_dropped_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    sound = Sound(tmp_path, 2, is_trimmed=False)
    log, other = sound.opened(sound.copied()), sound.opened(sound.copy)
    log.follow()
    for step in range(4):
        append(other, Append(SecretChanged(step, replace(SOME, id=step))))
        assert step % 2 == 0 or other.write_checkpoint()
    assert other.drop_payloads(1 << 62)
    assert picture(log.follow()) == picture(other.state)
    assert append(log, Append(TimeObserved())) == sound.newest + 5
    log.home.execute("DELETE FROM payload WHERE number = :number", {"number": sound.newest + 5})
    for slept in (other, sound.opened(sound.copy)):
        with pytest.raises(StoreDamaged):
            slept.follow()
        slept.home.close()
    log.home.close()
