"""A PostgreSQL server of the tests' own: of this session alone, on a Unix socket, gone when the tests are.

It flushes nothing, which a crash of the server alone (not of the machine) does not harm. Each test has a
database of its own. Where no server is installed tests that need one are skipped, and fail where `CI` is set.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.base.processes import ending_with_parent

MISSING = "no PostgreSQL server is installed: the system's package `postgresql` has one"
NO_DRIVER = "its driver is not installed: pip install 'elasticscan[postgres]'"
CHECKED = "checked"  # the user who is asked for a password
SETTINGS = """
listen_addresses = ''
unix_socket_directories = '{place}'
fsync = off
full_page_writes = off
max_connections = 200
shared_buffers = 16MB
max_wal_size = 64MB
min_wal_size = 32MB
autovacuum_naptime = 10s
"""
ACCESS = f"""
local all {CHECKED} scram-sha-256
local all all trust
local replication all trust
"""


def binaries() -> Path | None:
    """The folder of a server's programs, if there is one: Debian does not put it on the PATH."""
    found = shutil.which("postgres")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists()), None)


class Server:
    """A running server, which may be the standby of another one."""

    def __init__(self, programs: Path, primary: Server | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pg-"))
        self._programs, self._data = programs, self.directory / "data"
        self._as: dict[str, Any] = {"cwd": self.directory, "stdin": subprocess.DEVNULL}
        if os.geteuid() == 0:  # it refuses to run as root
            users = {user.pw_name: user for user in pwd.getpwall()}
            user = users.get("postgres") or users["nobody"]
            os.chown(self.directory, user.pw_uid, user.pw_gid)
            self._as |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._numbers, self._free = count(1), list[str]()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._make() if primary is None else self._copy(primary)
            self.start()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def socket(self) -> Path:
        return self.directory / ".s.PGSQL.5432"

    @property
    def process(self) -> int:
        """The parent of the server's processes."""
        assert self._process is not None
        return self._process.pid

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
        with suppress(Exception):  # it is there already
            self.execute(f"CREATE ROLE {CHECKED} LOGIN")
        self.execute(f"ALTER ROLE {CHECKED} PASSWORD '{password}'")
        return CHECKED

    def execute(self, sql: str, database: str = "postgres") -> None:
        """Carry a statement out as the server's owner."""
        import psycopg  # noqa: PLC0415 - an extra, which not all who run tests have

        parameters = {"host": str(self.directory), "user": "elasticscan", "dbname": database}
        with psycopg.connect(**parameters, autocommit=True) as connection:  # type: ignore[arg-type]
            connection.execute(sql.encode())

    def start(self) -> None:
        command = [self._programs / "postgres", "-D", self._data]
        with (self.directory / "log").open("ab") as log:
            # In a session of its own: a terminal's Ctrl-C is for the tests, which then end it.
            self._process = subprocess.Popen(
                ending_with_parent(command, "QUIT"),
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as,
            )
        ready = [self._programs / "pg_isready", "-q", "-h", self.directory, "-U", "elasticscan"]
        while subprocess.call(ready, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            if self._process.poll() is not None:
                raise RuntimeError((self.directory / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.05)

    def stop(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            self._signal(signal.SIGCONT)  # a process that stands still does not end
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run("pg_ctl", "promote", "-w", "-D", self._data)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have all processes of the server stand still for the length of a block."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _make(self) -> None:
        options = ["--username=elasticscan", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"]
        self._run("initdb", "-D", self._data, *options)
        self._configure(SETTINGS.format(place=self.directory))
        (self._data / "pg_hba.conf").write_text(ACCESS)

    def _copy(self, primary: Server) -> None:
        """Make a standby, which follows another server."""
        source = ["-R", "-h", primary.directory, "-U", "elasticscan", "-c", "fast", "--no-sync"]
        self._run("pg_basebackup", "-D", self._data, *source)
        self._configure(f"unix_socket_directories = '{self.directory}'\n")

    def _configure(self, settings: str) -> None:
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(settings)

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [self._programs / program, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, **self._as)
        if done.returncode:
            raise RuntimeError(done.stderr.decode(errors="replace"))

    def _signal(self, number: int) -> None:
        """Send a signal to the server, and then to the processes that it had started until then."""
        os.kill(self.process, number)
        listed = subprocess.run(
            ["pgrep", "-P", str(self.process)], check=False, capture_output=True, text=True
        )
        for child in map(int, listed.stdout.split()):
            with suppress(ProcessLookupError):
                os.kill(child, number)


def start_server(primary: Server | None = None) -> Server:
    """Start one, maybe as another one's standby, or skip the test; where `CI` is set, fail."""
    programs = binaries()
    if programs is not None and find_spec("psycopg") is not None:
        return Server(programs, primary)
    lacking = MISSING if programs is None else NO_DRIVER
    if os.environ.get("CI"):
        pytest.fail(lacking)
    pytest.skip(lacking)
