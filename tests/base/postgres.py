"""A PostgreSQL server of the tests' own: of this session alone, on a Unix socket, gone when the tests are.

It flushes nothing, which a crash of the server alone (not of the machine) does not harm. Each test has a
database of its own. Where no server is installed tests that need one are skipped, and fail where `CI` is set.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import TracebackType

import pytest

MISSING = "no PostgreSQL server is installed: the system's package `postgresql` has one"
CHECKED = "checked"  # postgres_keeper.py says so of the user with this name
NO_DRIVER = "its driver is not installed: pip install 'elasticscan[postgres]'"


def binaries() -> Path | None:
    """The folder of a server's programs, if there is one: Debian does not put it on the PATH."""
    places = [Path(place).resolve().parent for place in (shutil.which("postgres"),) if place]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists()), None)


class Server:
    """A running server, which may be the standby of another one."""

    def __init__(self, programs: Path, primary: Server | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pg-"))
        command = [sys.executable, str(Path(__file__).parent / "postgres_keeper.py")]
        command += [] if primary is None else ["--standby-of", str(primary.directory)]
        command += [str(programs), str(self.directory)]
        if os.geteuid() == 0:  # it refuses to run as root
            user = _ordinary_user()
            os.chown(self.directory, user.pw_uid, user.pw_gid)
            command.append(user.pw_name)
        self._keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._expect("started")
        self._numbers, self._free = count(1), list[str]()
        self._has_checked = False

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keeper.communicate()

    @property
    def socket(self) -> Path:
        return self.directory / ".s.PGSQL.5432"

    @property
    def process(self) -> int:
        """The parent of the server's processes."""
        return self._keeper.pid

    def url(self, database: str, user: str = "elasticscan") -> str:
        return f"postgresql+psycopg://{user}@/{database}?host={self.directory}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """The name of an empty database, for one test: to empty one takes less than to make one."""
        if not self._free:
            self._free.append(f"d{next(self._numbers)}")
            self.execute(f"CREATE DATABASE {self._free[-1]}")
        name = self._free.pop()
        yield name
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        self.execute(f"{others} WHERE datname = '{name}' AND pid != pg_backend_pid()")
        self.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public", name)
        self._free.append(name)

    def checked_user(self, password: str) -> str:
        """The name of a user whom it asks for this password from here on."""
        if not self._has_checked:
            self.execute(f"CREATE ROLE {CHECKED} LOGIN")
            self._has_checked = True
        self.execute(f"ALTER ROLE {CHECKED} PASSWORD '{password}'")
        return CHECKED

    def execute(self, sql: str, database: str = "postgres") -> None:
        """Carry a statement out as the server's owner."""
        import psycopg  # noqa: PLC0415 - an extra, which not all who run tests have

        parameters = {"host": str(self.directory), "user": "elasticscan", "dbname": database}
        with psycopg.connect(**parameters, autocommit=True) as connection:  # type: ignore[arg-type]
            connection.execute(sql.encode())

    def order(self, word: str) -> None:
        """Crash ("stop"), "start" or "restart" it, "pause" and "resume" it, or "promote" a standby."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(f"{word}\n")
        self._keeper.stdin.flush()
        self._expect("done")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have all processes of the server stand still for the length of a block."""
        self.order("pause")
        try:
            yield
        finally:
            self.order("resume")

    def _expect(self, word: str) -> None:
        assert self._keeper.stdout is not None
        said = self._keeper.stdout.readline().strip()
        assert said == word, f"the server did not start: {said!r}"


def _ordinary_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def start_server(primary: Server | None = None) -> Server:
    """Start one, maybe as another one's standby, or skip the test; where `CI` is set, fail."""
    programs = binaries()
    if programs is not None and find_spec("psycopg") is not None:
        return Server(programs, primary)
    lacking = MISSING if programs is None else NO_DRIVER
    if os.environ.get("CI"):
        pytest.fail(lacking)
    pytest.skip(lacking)
