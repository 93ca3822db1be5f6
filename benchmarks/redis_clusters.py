"""Scans of a Redis or Valkey cluster compared with other readers, in turns in one run.

    PYTHONPATH=. python benchmarks/redis_clusters.py [--rows 200000] [--rounds 5] [--server redis,valkey]
                                                     [--only rates,spark,slot,losses]

This program starts the cluster: three masters, and one without slots. The other readers use the same client
library as elasticscan, and fill the same Arrow table. One works like spark-redis, with three partitions, one
after the other. The other runs SCAN once at each master and reads the values there, without checking slots:
an upper bound of the speed. While slots move, values are read by a client that follows redirects.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread

import pyarrow as pa
from measure import Results, by_turns
from redis import RedisCluster
from redis.connection import Connection
from redis.crc import key_slot

import elasticscan
from examples.redis_demo import Fields, ask, connected, in_the_manner_of_spark_redis, walk
from tests.backends.redis.servers import ServerCluster

SCHEMA = pa.schema([("key", pa.string()), ("name", pa.string()), ("age", pa.int64())])
LARGE_SLOT = 50_000  # keys
SLOTS, PAGE_SLOTS = 16_384, 256
SCANS = 6  # while slots move, by each reader


def names(count: int) -> list[str]:
    return [f"person:{number}" for number in range(count)]


def load(cluster: ServerCluster, keys: Iterable[str]) -> None:
    """Write hashes of two fields, each to the master of its slot."""
    owners = {
        slot: server
        for server in cluster.masters
        for first, last, (_, port, *_), *_ in server.client.execute_command("CLUSTER SLOTS")
        if port == server.port
        for slot in range(first, last + 1)
    }
    pipes = {server: server.client.pipeline(transaction=False) for server in cluster.masters}
    for number, key in enumerate(keys):
        pipe = pipes[owners[key_slot(key.encode())]]
        pipe.execute_command("HSET", key, "name", f"n{number}", "age", number)
        if len(pipe) == 10_000:
            pipe.execute()
    for pipe in pipes.values():
        pipe.execute()


@contextmanager
def resharding(cluster: ServerCluster, keys: list[str], seed: int = 0) -> Iterator[list[int]]:
    """Move the slots of some keys, key by key and without pause, during a block; yield the moved slots.

    As in `redis-cli --cluster reshard`, a batch has one target, and the next one begins when all masters
    agree: they decide by epochs which node serves a slot, and learn the epochs of others within a second.
    """
    chance, stop, moved = random.Random(seed), Event(), list[int]()
    slots = sorted({key_slot(key.encode()) for key in keys})

    def run() -> None:
        while not stop.is_set():
            target = chance.choice(cluster.masters)
            for slot in chance.sample(slots, min(40, len(slots))):
                if not stop.is_set():
                    cluster.move(slot, target)
                    moved.append(slot)
            cluster.settle()

    thread = Thread(target=run)
    thread.start()
    try:
        yield moved
    finally:
        stop.set()
        thread.join()


# ------------------------------------------------------------------------------- the other readers


def table_of(rows: Iterable[tuple[bytes, Fields | None]]) -> pa.Table:
    """Return a table of the values that could be read, without refused reads."""
    found = [(key[7:], fields[b"name"], fields[b"age"]) for key, fields in rows if fields]
    columns = [pa.array(column).cast(pa.string()) for column in zip(*found, strict=True)]
    return pa.table(columns, SCHEMA.names).cast(SCHEMA)


def as_spark_redis(cluster: ServerCluster) -> pa.Table:
    return table_of(in_the_manner_of_spark_redis(cluster.masters[0].port, "person:*"))


def by_scan(cluster: ServerCluster) -> pa.Table:
    """Run SCAN at each master, and read the values there."""
    keys, values = list[bytes](), list[list[bytes]]()
    for server in cluster.masters:
        with connected(server.port) as connection:
            for some in walk(connection, "person:*"):
                keys += some
                values += ask(connection, [("HMGET", key, "name", "age") for key in some])
    found = ([key[7:] for key in keys], *zip(*values, strict=True))
    return pa.table([pa.array(column).cast(pa.string()) for column in found], SCHEMA.names).cast(SCHEMA)


def by_scan_with_redirects(cluster: ServerCluster) -> pa.Table:
    """Run SCAN at each master, and follow redirects to the values, like `scan_iter` of cluster clients."""
    rows, client = list[tuple[bytes, Fields]](), RedisCluster(host="127.0.0.1", port=cluster.masters[0].port)
    for server in cluster.masters:
        with connected(server.port) as connection:
            for keys in walk(connection, "person:*"):
                pipe = client.pipeline()
                for key in keys:
                    pipe.hgetall(key)
                rows += zip(keys, pipe.execute(), strict=True)
    client.close()
    return table_of(rows)


# ------------------------------------------------------------------------------------ the figures


def scan(store: elasticscan.Store, table: str = "person") -> pa.Table:
    return store.table(table, SCHEMA).scan().to_table()


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the round trips of this process, one for each pipeline."""
    sends, send = [0], Connection.send_packed_command

    def count(self: Connection, *given: object, **named: object) -> None:
        sends[0] += 1
        send(self, *given, **named)

    Connection.send_packed_command = count
    try:
        yield sends
    finally:
        Connection.send_packed_command = send


def bench_rates(
    results: Results, store: elasticscan.Store, cluster: ServerCluster, given: argparse.Namespace
) -> None:
    ways: dict[str, Callable[[], pa.Table]] = {
        "elasticscan": partial(scan, store),
        "spark_redis": partial(as_spark_redis, cluster),
        "bare": partial(by_scan, cluster),
    }
    for name, read in ways.items():
        assert read().num_rows == given.rows, name
    took = by_turns(given.rounds, **ways)
    rates = {name: f"{given.rows / taken / 1e3:.0f} k keys/s" for name, taken in took.items()}
    ours, detail = took["elasticscan"], f"{rates['elasticscan']} and {rates['spark_redis']}"
    results.at_least("elasticscan / in the manner of spark-redis", took["spark_redis"] / ours, 1.2, detail)
    results.at_least("elasticscan / bare SCAN and HMGET", took["bare"] / ours, 0.6, rates["bare"])
    with counted() as sends:
        scan(store)
    results.at_most("round trips of 256 slots", sends[0] * PAGE_SLOTS / SLOTS, 3)


def bench_spark(
    results: Results, store: elasticscan.Store, cluster: ServerCluster, given: argparse.Namespace
) -> None:
    from spark_session import start_spark  # noqa: PLC0415 - the other parts run without Java

    spark = start_spark()
    frame = spark.read.format("elasticscan").schema("key string, name string, age long")
    frame = frame.load(f"{cluster.url}/person")

    def write() -> None:
        frame.write.format("noop").mode("overwrite").save()

    took = by_turns(given.rounds, warmups=3, spark=write, python=partial(scan, store))
    detail = f"{given.rows / took['spark'] / 1e3:.0f} k keys/s"
    results.at_least("Spark local[2] / one Python process", took["python"] / took["spark"], 1, detail)
    spark.stop()


def bench_large_slot(results: Results, store: elasticscan.Store, cluster: ServerCluster) -> None:
    """Measure the longest command of a scan over a slot with many keys, by the server's own clock.

    That clock also runs while other processes have the processor, so the minimum of several scans is used.
    """
    load(cluster, (f"big:{{t}}{number}" for number in range(LARGE_SLOT)))
    longest = []
    for _ in range(SCANS):
        for server in cluster.masters:
            server.client.config_set("slowlog-log-slower-than", 100)
            server.client.slowlog_reset()
        assert scan(store, "big").num_rows == LARGE_SLOT
        slow = [entry["duration"] for server in cluster.masters for entry in server.client.slowlog_get(128)]
        longest.append(max(slow, default=0) / 1e3)
    results.at_most(f"longest command, {LARGE_SLOT:,} keys in a slot, ms", min(longest), 20)


def bench_losses(store: elasticscan.Store, cluster: ServerCluster, rows: int) -> None:
    """Print how many keys each reader loses and repeats while slots move."""
    readers: dict[str, Callable[[], pa.Table]] = {
        "elasticscan": partial(scan, store),
        "in the manner of spark-redis": partial(as_spark_redis, cluster),
        "SCAN, redirects followed": partial(by_scan_with_redirects, cluster),
    }
    print("| reader | scans | keys lost | keys repeated | slots moved meanwhile |\n|---|---|---|---|---|")
    for name, read in readers.items():
        lost = repeated = 0
        with resharding(cluster, names(rows)) as moved:
            for _ in range(SCANS):
                found = Counter(read().column("key").to_pylist())
                lost += rows - len(found)
                repeated += sum(found.values()) - len(found)
        print(f"| {name} | {SCANS} | {lost:,} | {repeated:,} | {len(moved):,} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--server", default="redis,valkey")
    parser.add_argument("--only", default="rates,spark,slot,losses")
    given = parser.parse_args()
    only, results = given.only.split(","), Results()
    for kind in given.server.split(","):
        print(f"{kind}, {given.rows:,} keys")
        with ServerCluster(kind) as cluster, elasticscan.open(cluster.url) as store:
            load(cluster, names(given.rows))
            if "rates" in only:
                bench_rates(results, store, cluster, given)
            if "spark" in only:
                bench_spark(results, store, cluster, given)
            if "slot" in only:
                bench_large_slot(results, store, cluster)
            if "losses" in only:
                bench_losses(store, cluster, given.rows)
    return 0 if all(good for *_, good in results.rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
