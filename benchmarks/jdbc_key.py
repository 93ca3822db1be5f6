"""One row by its key: `catalog.sql` alongside PostgreSQL over JDBC, both through Spark, by turns.

python benchmarks/jdbc_key.py [--rows 1000000] [--rounds 21] [--jar /usr/share/java/postgresql.jar]

Needs PostgreSQL's server programs and its driver for Java (Debian: postgresql, libpostgresql-jdbc-java).
Spark's view of the server's table is made once, as its users do, and hands the condition down.
"""

from __future__ import annotations

import argparse
import os
import pwd
import random
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from data import SCHEMA, batches, make_store
from measure import seconds
from pyspark.sql import DataFrame
from spark_session import start_spark

from elasticscan.connector import attach


@contextmanager
def server() -> Iterator[str]:
    """Start a PostgreSQL with its defaults, and yield its address for JDBC."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
    place = Path(tempfile.mkdtemp(prefix="jdbc-pg-"))
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    os.chown(place, user.pw_uid, user.pw_gid)
    own = {"user": user.pw_uid, "group": user.pw_gid, "cwd": place} if os.geteuid() == 0 else {"cwd": place}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [programs / "initdb", "-D", place / "files", "-U", "peer", "--auth", "trust", "-E", "UTF8"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **own)
    running = subprocess.Popen(
        [programs / "postgres", "-D", place / "files", "-k", place, "-h", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **own,
    )  # fmt: skip
    try:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"jdbc:postgresql://127.0.0.1:{port}/postgres?user=peer"
    finally:
        running.terminate()
        running.wait()
        shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--jar", default="/usr/share/java/postgresql.jar")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as work, server() as url:
        rows = pa.RecordBatchReader.from_batches(SCHEMA, batches(asked.rows))
        make_store(Path(work) / "store", rows).close()
        spark = start_spark(spark__jars=asked.jar)
        options = {"url": url, "driver": "org.postgresql.Driver"}
        plain = spark.read.format("elasticscan").options(store=f"{work}/store", table="t").load()
        keyed = {"dbtable": "t", "createTableColumnTypes": "id BIGINT"}
        plain.write.format("jdbc").options(**options, **keyed).mode("overwrite").save()
        jvm = spark.sparkContext._jvm
        assert jvm is not None, "a classic session has one"
        connection = jvm.java.sql.DriverManager.getConnection(url)
        for statement in ("ALTER TABLE t ADD PRIMARY KEY (id)", "ANALYZE t"):
            connection.createStatement().execute(statement)
        connection.close()
        other = spark.newSession()
        other.read.format("jdbc").options(**options, dbtable="t").load().createOrReplaceTempView("t")
        ways: dict[str, Callable[[str], DataFrame]] = {
            "elasticscan": attach(spark, f"{work}/store").sql,
            "PostgreSQL": other.sql,
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        draw = random.Random(1)
        for turn in range(asked.rounds + 5):
            key = draw.randrange(asked.rows)
            for name, query in ways.items():
                found: list[int] = []

                def read(query: Callable[[str], DataFrame] = query, found: list[int] = found) -> None:
                    found += [row.id for row in query(f"SELECT * FROM t WHERE id = {key}").collect()]  # noqa: B023

                taken = seconds(read)
                assert found == [key], f"{name} has given {found}"
                if turn >= 5:
                    times[name].append(taken)
        ours, theirs = (1e3 * statistics.median(times[name]) for name in ways)
        print(f"a row by its key: catalog.sql {ours:.0f} ms, JDBC {theirs:.0f} ms, ratio {theirs / ours:.2f}")
        spark.stop()


if __name__ == "__main__":
    main()
