"""Runs a PostgreSQL server for as long as its standard input is open; then ends it and removes its directory.

    python postgres_keeper.py [--standby-of DIRECTORY] BINARIES DIRECTORY [USER]

Whoever started it may die in any way: the pipe is closed then. A line "restart" ends the server at once, as a
crash would, and starts it again; "stop" only ends it, "start" starts it, "promote" makes a standby the
primary. "pause" has all of its processes stand still, which keep what they have open and answer nobody, until
"resume". Each is answered by a line.
"""

import argparse
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

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
ACCESS = """
local all checked scram-sha-256
local all all trust
local replication all trust
"""


class Keeper:
    def __init__(self, binaries: Path, place: Path, user: str | None) -> None:
        self._binaries, self._place = binaries, place
        self._as = (
            {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
        )
        self._server: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        options = ["--username=elasticscan", "--auth=trust", "--no-sync", "--no-instructions"]
        options += ["--encoding=UTF8", "--locale=C"]
        self._call("initdb", "-D", str(self._place / "data"), *options)
        with (self._place / "data" / "postgresql.conf").open("a") as file:
            file.write(SETTINGS.format(place=self._place))
        (self._place / "data" / "pg_hba.conf").write_text(ACCESS)

    def copy(self, primary: str) -> None:
        """Make a standby, which follows another server."""
        data = str(self._place / "data")
        self._call(
            "pg_basebackup", "-D", data, "-R", "-h", primary, "-U", "elasticscan", "-c", "fast", "--no-sync"
        )
        with (self._place / "data" / "postgresql.conf").open("a") as file:
            file.write(f"unix_socket_directories = '{self._place}'\n")

    def promote(self) -> None:
        self._call("pg_ctl", "promote", "-w", "-D", str(self._place / "data"))

    def start(self) -> None:
        with (self._place / "log").open("ab") as log:
            command = [str(self._binaries / "postgres"), "-D", str(self._place / "data")]
            self._server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._place, **self._as
            )
        while subprocess.call(self._ready(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            if self._server.poll() is not None:
                raise RuntimeError((self._place / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.05)

    def signal(self, number: int) -> None:
        """Send a signal to the server, and then to the processes that it had started until then."""
        assert self._server is not None
        self._server.send_signal(number)
        for process in children(self._server.pid):
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def stop(self) -> None:
        if self._server is not None:
            self.signal(signal.SIGCONT)  # who stands still does not end
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait()
            self._server = None

    def _ready(self) -> list[str]:
        return [str(self._binaries / "pg_isready"), "-q", "-h", str(self._place), "-U", "elasticscan"]

    def _call(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._binaries / program), *arguments],
            check=False,
            capture_output=True,
            cwd=self._place,
            stdin=subprocess.DEVNULL,
            **self._as,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode(errors="replace"))


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True
    ).stdout
    pairs = [[int(number) for number in line.split()] for line in listed.splitlines()]
    return [child for child, parent in pairs if parent == process]


def tell(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(binaries: str, place: str, user: str | None, primary: str | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the tests end first
    keeper = Keeper(Path(binaries), Path(place), user)
    try:
        if primary is None:
            keeper.make()
        else:
            keeper.copy(primary)
        keeper.start()
        tell("started")
        for line in sys.stdin:
            order = line.strip()
            if order in ("stop", "restart"):
                keeper.stop()
            if order in ("start", "restart"):
                keeper.start()
            if order in ("pause", "resume"):
                keeper.signal(signal.SIGSTOP if order == "pause" else signal.SIGCONT)
            if order == "promote":
                keeper.promote()
            tell("done")
    finally:
        keeper.stop()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--standby-of", dest="primary")
    parser.add_argument("binaries")
    parser.add_argument("place")
    parser.add_argument("user", nargs="?")
    main(**vars(parser.parse_args()))
