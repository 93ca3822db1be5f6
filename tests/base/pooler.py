"""A proxy that pools the transactions of a PostgreSQL server, so that many clients share few connections."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.base.postgres import Server

_PORT = 6543
_SETTINGS = """
[databases]
{database} = host={directory} port=5432 user=elasticscan
[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {directory}
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 500
logfile = {directory}/pooler.log
"""


@contextmanager
def pooled(server: Server, database: str, connections: int) -> Iterator[str]:
    """The URL of a database through a proxy with so many connections to it."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("no proxy is installed: the system's package `pgbouncer` is one")
    directory, socket = server.directory, server.directory / f".s.PGSQL.{_PORT}"
    settings = directory / "pooler.ini"
    settings.write_text(
        _SETTINGS.format(database=database, directory=directory, port=_PORT, connections=connections)
    )
    command = [program, str(settings)]
    if os.geteuid() == 0:  # it refuses to run as root
        command[1:1] = ["-u", pwd.getpwuid(directory.stat().st_uid).pw_name]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not socket.exists():
            assert process.poll() is None, f"it ended: see {directory}/pooler.log"
            time.sleep(0.01)
        yield f"{server.url(database)}&port={_PORT}"
    finally:
        process.terminate()
        process.wait()
