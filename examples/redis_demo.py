"""Spark reads every key of a Redis cluster exactly once while `redis-cli` reshards it; others do not.

    make demo-redis     or, with all flights and a picture: ARGUMENTS="--rows 336776 --svg FILE"

The flights are hashes in a cluster of three masters and an empty one, which this program starts on this
machine. `redis-cli --cluster reshard` moves slots between random masters without pause, while two readers
read all flights: Spark with `format("elasticscan")`, and a reader that works like spark-redis. Their rows are
compared with the source, value by value. The exit code is 1 unless Spark got each flight once.
"""

from __future__ import annotations

import argparse
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import redis
from redis.connection import Connection
from redis.crc import key_slot
from rich.console import Console

from elasticscan.topology import Placement, SlotMap, Tablet, Topology
from examples.demo import account, flights, result, spark_session

SLOTS, MASTERS, PARTITIONS = 16_384, 3, 3
AT_ONCE = 1_000  # keys of one SCAN, and of one pipeline
LACKING = """{} not found. Install them, for example by one of
  apt install redis-server redis-tools
  brew install redis"""

Fields = dict[bytes, bytes]
Command = tuple[bytes | str | int, ...]


# ------------------------------------------------------------------ a reader in the manner of spark-redis


@contextmanager
def connected(port: int) -> Iterator[Connection]:
    connection = Connection(host="127.0.0.1", port=port, protocol=2)  # type: ignore[no-untyped-call]
    try:
        yield connection
    finally:
        connection.disconnect()  # type: ignore[no-untyped-call]


def ask(connection: Connection, commands: Sequence[Command]) -> list[Any]:
    """Send commands in one pipeline; return errors as answers."""
    connection.send_packed_command(connection.pack_commands(commands))  # type: ignore[no-untyped-call]
    answers: list[Any] = []
    for _ in commands:
        try:
            answers.append(connection.read_response())
        except redis.RedisError as error:
            answers.append(error)
    return answers


def walk(connection: Connection, pattern: str) -> Iterator[list[bytes]]:
    """Yield the names of a server's keys by SCAN."""
    cursor = b"0"
    while True:
        ((cursor, keys),) = ask(connection, [("SCAN", cursor, "MATCH", pattern, "COUNT", AT_ONCE)])
        yield keys
        if cursor == b"0":
            return


def hashes(connection: Connection, keys: Sequence[bytes]) -> Iterator[tuple[bytes, Fields | None]]:
    """Yield keys with their fields; None if the server refuses a key because its slot has moved."""
    for start in range(0, len(keys), AT_ONCE):
        some = keys[start : start + AT_ONCE]
        for key, answer in zip(some, ask(connection, [("HGETALL", key) for key in some]), strict=True):
            is_read = isinstance(answer, list)
            yield key, dict(zip(answer[::2], answer[1::2], strict=True)) if is_read else None


def in_the_manner_of_spark_redis(port: int, pattern: str) -> Iterator[tuple[bytes, Fields | None]]:
    """Read the placement once, then all partitions of slots, and follow no redirects.

    Each partition runs SCAN over all keys of the nodes with its slots, and keeps the keys of its slots.
    """
    with connected(port) as connection:
        (placed,) = ask(connection, [("CLUSTER", "SLOTS")])
    nodes = [(first, last + 1, at) for first, last, (_, at, *_), *_ in placed]
    bounds = [SLOTS * part // PARTITIONS for part in range(PARTITIONS + 1)]
    for start, end in pairwise(bounds):
        for node in {at for first, last, at in nodes if first < end and start < last}:
            mine = [(max(start, first), min(end, last)) for first, last, at in nodes if at == node]
            with connected(node) as connection:
                keys = {key for some in walk(connection, pattern) for key in some}
                slots = ((key, key_slot(key)) for key in keys)
                kept = [key for key, slot in slots if any(first <= slot < last for first, last in mine)]
                yield from hashes(connection, kept)


# -------------------------------------------------------------------------------- the cluster, and moves


def program(*names: str) -> str:
    """Return the path of a program with one of these names; exit if there is none."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    return found or sys.exit(LACKING.format(" or ".join(names)))


def free_ports(count: int) -> list[int]:
    """Return free ports whose bus ports, 10,000 higher, are free, too."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(21_000, 30_000)
        with suppress(OSError), closing(socket.socket()) as one, closing(socket.socket()) as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            found.append(port)
    return found


@dataclass(slots=True)
class Cluster:
    """The demo's own servers, and the moves of slots between them."""

    cli: str
    ports: list[int]
    topologies: list[Topology] = field(default_factory=list)
    moved: int = 0

    def run(self, *words: str | int) -> bool:
        """Run a command of `redis-cli --cluster`."""
        command = [self.cli, "--cluster", *map(str, words), "--cluster-yes"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def ask(self, port: int, *command: str) -> Any:
        with connected(port) as connection:
            return ask(connection, [command])[0]

    def form(self) -> None:
        """Connect the servers to a cluster; the last one has no slots."""
        addresses = [f"127.0.0.1:{port}" for port in self.ports]
        for step in (["create", *addresses[:MASTERS]], ["add-node", addresses[-1], addresses[0]]):
            until = time.monotonic() + 30  # time for servers to start and to find each other
            while not self.run(*step):
                if time.monotonic() > until:
                    sys.exit("redis-cli could not make a cluster; run the demo again")
                time.sleep(0.2)

    def look(self, reason: str) -> None:
        """Read and store the current placement of the slots."""
        placed = self.ask(self.ports[0], "CLUSTER", "SLOTS")
        tablets = sorted((first, last + 1, self.ports.index(node[1]) + 1) for first, last, node, *_ in placed)
        placement = Placement.of(Tablet(at, *tablet, 0) for at, tablet in enumerate(tablets, start=1))
        names = tuple((shard, f"node {port}") for shard, port in enumerate(self.ports, start=1))
        self.topologies.append(Topology(len(self.topologies) + 1, placement, names, time.time(), reason))

    @contextmanager
    def resharding(self) -> Iterator[None]:
        """Move slots between random masters without pause, during a block."""
        stop = threading.Event()
        ids = {port: self.ask(port, "CLUSTER", "MYID").decode() for port in self.ports}

        def move() -> None:
            while not stop.is_set():
                source, target = random.sample(self.ports, 2)
                slots = random.randrange(50, 400)
                how = f"--cluster-from {ids[source]} --cluster-to {ids[target]} --cluster-slots {slots}"
                if self.run("reshard", f"127.0.0.1:{source}", *how.split(), "--cluster-pipeline", 100):
                    self.moved += slots
                    self.look(f"{slots} slots from {source} to {target}")

        self.look("begin")
        thread = threading.Thread(target=move)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@contextmanager
def servers(binary: str, cli: str, place: Path) -> Iterator[Cluster]:
    """Start a cluster without persistence, and stop its servers after the block."""
    cluster, running = Cluster(cli, free_ports(MASTERS + 1)), list[subprocess.Popen[bytes]]()
    try:
        for port in cluster.ports:
            directory = place / str(port)
            directory.mkdir()
            words = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
            command = [binary, *words, "--cluster-enabled", "yes", "--appendonly", "no", "--save", ""]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        cluster.form()
        yield cluster
    finally:
        for server in running:
            server.terminate()
            server.wait()


def load(port: int, rows: pa.Table) -> None:
    """Write each row as a hash; the hash has no field for a null."""
    with closing(redis.RedisCluster(host="127.0.0.1", port=port)) as client:
        for start in range(0, rows.num_rows, 10_000):
            pipe = client.pipeline()  # type: ignore[no-untyped-call]
            for number, row in enumerate(rows.slice(start, 10_000).to_pylist(), start):
                pipe.hset(f"flight:{number}", mapping={k: v for k, v in row.items() if v is not None})
            pipe.execute()


def table_of(rows: Iterable[tuple[bytes, Fields | None]], schema: pa.Schema) -> tuple[pa.Table, int]:
    """Return the rows that could be read, and how many reads were refused."""
    found = [fields for _, fields in rows]
    read = [{name.decode(): text.decode() for name, text in row.items()} for row in found if row]
    return pa.Table.from_pylist(read, schema=schema), len(found) - len(read)


def main() -> int:
    parser = argparse.ArgumentParser(description="Scan flights in a Redis cluster while it is resharded.")
    parser.add_argument("--rows", type=int, default=100_000, help="how many flights, at most 336776")
    parser.add_argument("--svg", type=Path, help="a file for a picture of where the slots were")
    options = parser.parse_args()
    cli, binary = program("redis-cli", "valkey-cli"), program("redis-server", "valkey-server")
    console, source = Console(highlight=False), flights(options.rows)
    source = source.cast(pa.schema([(name, pa.string()) for name in source.schema.names]))
    console.print(f"Starting Spark and a cluster, and loading {source.num_rows:,} flights ...")
    with (
        tempfile.TemporaryDirectory(prefix="elasticscan-demo-", ignore_cleanup_errors=True) as place,
        spark_session(Path(place)) as spark,
        servers(binary, cli, Path(place)) as cluster,
    ):
        load(cluster.ports[0], source)
        first, columns = cluster.ports[0], ", ".join(f"{name} string" for name in source.schema.names)
        reader = spark.read.format("elasticscan").schema(columns).option("numPartitions", 2)
        frame = reader.load(f"redis://127.0.0.1:{first}/flight")
        frame.limit(1).collect()  # the start of workers is not measured
        with cluster.resharding():
            started = time.monotonic()
            exact = frame.toArrow()
            between = time.monotonic()
            plain, refused = table_of(in_the_manner_of_spark_redis(first, "flight:*"), source.schema)
            ended = time.monotonic()
    if options.svg:
        options.svg.write_text(SlotMap(tuple(cluster.topologies)).svg, encoding="utf-8")
    truth, spark_got = account(source, source), account(source, exact)
    readers = {"the source": truth, "Spark, elasticscan": spark_got, "as spark-redis": account(source, plain)}
    shown = result(readers)
    shown.add_row("seconds", "", f"{between - started:.1f}", f"{ended - between:.1f}")
    console.print(shown)
    console.print(
        f"\n{cluster.moved:,} slots moved meanwhile; {refused:,} reads in its manner were refused, which "
        "ends a job of spark-redis.",
        soft_wrap=True,
    )
    if spark_got != truth or not cluster.moved:
        console.print("The demo failed: " + ("no slot moved" if spark_got == truth else "rows differ"))
        return 1
    console.print("[bold green]Every flight exactly once.[/]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
