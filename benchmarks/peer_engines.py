"""The stores that `peers.py` compares, each used as its own users would use it.

Every engine stores the same rows (`data.py`, and `g`, their number modulo 100), has the indexes that its
users would create for the tasks, and returns rows as an Arrow table if its driver can. An engine has no
method for a task that it does not support.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import data
import duckdb
import msgpack
import pyarrow as pa
import pyarrow.compute as pc

import elasticscan

SCHEMA = data.SCHEMA.append(pa.field("g", pa.int64()))
NAMES = ", ".join(SCHEMA.names)
FEW = data.RANDOM_KEYS // 1000  # `k` below it: one row in a thousand
Keys = Sequence[int]


def rows(first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Return rows `[first, last)`; both are multiples of a million, or in the same million."""
    for batch in data.random_batches(last):
        start = batch.column("id")[0].as_py()
        if start + batch.num_rows > first:
            part = batch.slice(max(first - start, 0))
            groups = pc.cast(pa.array(part.column("id").to_numpy() % 100), pa.int64())
            yield part.append_column(SCHEMA.field("g"), groups).cast(SCHEMA)


def bytes_of(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


class ElasticScan:
    name = "elasticscan"

    def __init__(self, place: Path) -> None:
        self.place = place
        self.store = elasticscan.create(str(place), shards=["s1", "s2", "s3", "s4"])
        self.table = self.store.create_table("t", SCHEMA, ["id"])
        self.begun = 0

    def load(self, batches: Iterator[pa.RecordBatch]) -> None:
        self.table.create_index("by_k", ["k"])
        self.begun = self.table.upsert(pa.RecordBatchReader.from_batches(SCHEMA, batches))

    def scan(self) -> pa.Table:
        return self.table.scan().to_table()

    def column(self) -> pa.Table:
        return self.table.scan(["v"]).to_table()

    def few(self) -> pa.Table:
        return self.table.scan(filter=f"k < {FEW}").to_table()

    def tenth(self) -> pa.Table:
        return self.table.scan(filter="v < 0.1").to_table()

    def groups(self) -> pa.Table:
        return self.table.aggregate(["count(*) AS n", "sum(v) AS v"], group_by="g")

    def top(self) -> pa.Table:
        return self.table.scan(order_by="k", limit=10).to_table()

    def get(self, key: int) -> pa.Table:
        return self.table.get([key])

    def pages(self, size: int) -> Iterator[pa.RecordBatch]:
        """Read each page by a new scan that is resumed from the key of the page before."""
        key = None
        while True:
            scan = self.table.scan(page_rows=size) if key is None else self.store.resume(key)
            page = next(iter(scan), None)
            if page is None:
                return
            yield page.rows
            key = page.key
            if key is None:
                return

    def upsert(self, table: pa.Table) -> None:
        self.table.upsert(table)

    def changes(self) -> pa.Table:
        return self.table.changes(self.begun).to_table()

    def size(self) -> int:
        return bytes_of(self.place)

    def close(self) -> None:
        self.store.close()


class AskedInSql:
    """The tasks of an engine with SQL."""

    def asked(self, query: str) -> pa.Table:
        raise NotImplementedError

    def few(self) -> pa.Table:
        return self.asked(f"SELECT * FROM t WHERE k < {FEW}")

    def tenth(self) -> pa.Table:
        return self.asked("SELECT * FROM t WHERE v < 0.1")

    def groups(self) -> pa.Table:
        return self.asked("SELECT g, count(*) AS n, sum(v) AS v FROM t GROUP BY g")

    def top(self) -> pa.Table:
        return self.asked("SELECT * FROM t ORDER BY k LIMIT 10")

    def get(self, key: int) -> pa.Table:
        return self.asked(f"SELECT * FROM t WHERE id = {key}")


class ScannedInSql(AskedInSql):
    """An engine with SQL whose full scan returns all rows to the calling process."""

    def scan(self) -> pa.Table:
        return self.asked("SELECT * FROM t")

    def column(self) -> pa.Table:
        return self.asked("SELECT v FROM t")


class PagedInSql(ScannedInSql):
    """An engine that reads pages by an index of the primary key."""

    def pages(self, size: int) -> Iterator[pa.RecordBatch]:
        """Read each page after the last primary key of the page before."""
        last = -1
        while True:
            page = self.asked(f"SELECT * FROM t WHERE id > {last} ORDER BY id LIMIT {size}")
            if not page.num_rows:
                return
            yield from page.to_batches()
            last = page["id"][-1].as_py()


class DuckDb(PagedInSql):
    name = "DuckDB"

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self.place, self.file = place, str(place / "t.duckdb")
        self.connection = duckdb.connect(self.file)
        columns = "id BIGINT PRIMARY KEY, k BIGINT, v DOUBLE, s VARCHAR, ts TIMESTAMPTZ, g BIGINT"
        self.connection.execute(f"CREATE TABLE t ({columns})")

    def load(self, batches: Iterator[pa.RecordBatch]) -> None:
        reader = pa.RecordBatchReader.from_batches(SCHEMA, batches)  # noqa: F841 - DuckDB finds it by its name
        self.connection.execute("INSERT INTO t SELECT * FROM reader")
        self.connection.execute("CREATE INDEX by_k ON t (k)")

    def asked(self, query: str) -> pa.Table:
        return self.connection.execute(query).to_arrow_table()

    def upsert(self, table: pa.Table) -> None:
        changed = table  # noqa: F841 - DuckDB finds it by its name
        self.connection.execute("INSERT OR REPLACE INTO t SELECT * FROM changed")

    def size(self) -> int:
        self.connection.execute("CHECKPOINT")
        return bytes_of(self.place)

    def close(self) -> None:
        self.connection.close()


class Delta(ScannedInSql):
    """Delta through delta-rs, the library for Delta without Spark."""

    name = "Delta (delta-rs)"

    def __init__(self, place: Path) -> None:
        import deltalake  # noqa: PLC0415 - each engine brings its own

        self.place, self.uri, self.delta = place, str(place), deltalake
        self.delta.DeltaTable.create(
            self.uri,
            deltalake.Schema.from_arrow(SCHEMA),
            configuration={"delta.enableChangeDataFeed": "true"},
        )
        self.begun = 0

    def load(self, batches: Iterator[pa.RecordBatch]) -> None:
        self.delta.write_deltalake(
            self.uri, pa.RecordBatchReader.from_batches(SCHEMA, batches), mode="append"
        )
        self.begun = self.delta.DeltaTable(self.uri).version()

    def asked(self, query: str) -> pa.Table:
        """Run a query in delta-rs's own SQL."""
        builder = self.delta.QueryBuilder().register("t", self.delta.DeltaTable(self.uri))
        return pa.table(builder.execute(query).read_all())

    def upsert(self, table: pa.Table) -> None:
        merging = self.delta.DeltaTable(self.uri).merge(
            table, "target.id = source.id", source_alias="source", target_alias="target"
        )
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    def changes(self) -> pa.Table:
        feed = self.delta.DeltaTable(self.uri).load_cdf(starting_version=self.begun + 1)
        return pa.table(feed.read_all())

    def size(self) -> int:
        return bytes_of(self.place)

    def close(self) -> None:
        pass


class Iceberg:
    """Iceberg through PyIceberg, with its SQL catalog in SQLite."""

    name = "Iceberg (PyIceberg)"

    def __init__(self, place: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - each engine brings its own

        place.mkdir()
        self.place = place
        catalog = SqlCatalog("local", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/files")
        catalog.create_namespace("n")
        self.table = catalog.create_table("n.t", SCHEMA)

    def load(self, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            self.table.append(pa.Table.from_batches([batch]))

    def scan(self) -> pa.Table:
        return self.table.scan().to_arrow()

    def column(self) -> pa.Table:
        return self.table.scan(selected_fields=("v",)).to_arrow()

    def few(self) -> pa.Table:
        return self.table.scan(f"k < {FEW}").to_arrow()

    def tenth(self) -> pa.Table:
        return self.table.scan("v < 0.1").to_arrow()

    def groups(self) -> pa.Table:
        read = self.table.scan(selected_fields=("g", "v")).to_arrow()
        return read.group_by("g").aggregate([([], "count_all"), ("v", "sum")]).rename_columns(["g", "n", "v"])

    def top(self) -> pa.Table:
        return self.scan().sort_by("k").slice(0, 10)

    def get(self, key: int) -> pa.Table:
        return self.table.scan(f"id = {key}").to_arrow()

    def upsert(self, table: pa.Table) -> None:
        self.table.upsert(table, join_cols=["id"])

    def size(self) -> int:
        return bytes_of(self.place)

    def close(self) -> None:
        pass


class Lance:
    name = "Lance"

    def __init__(self, place: Path) -> None:
        import lance  # noqa: PLC0415 - each engine brings its own

        self.place, self.lance = place, lance

    @property
    def dataset(self) -> Any:
        return self.lance.dataset(self.place)

    def load(self, batches: Iterator[pa.RecordBatch]) -> None:
        made = self.lance.write_dataset(batches, self.place, schema=SCHEMA)
        made.create_scalar_index("id", "BTREE")
        made.create_scalar_index("k", "BTREE")

    def scan(self) -> pa.Table:
        return self.dataset.to_table()

    def column(self) -> pa.Table:
        return self.dataset.to_table(columns=["v"])

    def few(self) -> pa.Table:
        return self.dataset.to_table(filter=f"k < {FEW}")

    def tenth(self) -> pa.Table:
        return self.dataset.to_table(filter="v < 0.1")

    def groups(self) -> pa.Table:
        dataset = self.dataset.to_table(columns=["g", "v"])
        return (
            dataset.group_by("g").aggregate([([], "count_all"), ("v", "sum")]).rename_columns(["g", "n", "v"])
        )

    def top(self) -> pa.Table:
        return self.dataset.scanner(order_by=["k"], limit=10).to_table()

    def get(self, key: int) -> pa.Table:
        return self.dataset.to_table(filter=f"id = {key}")

    def pages(self, size: int) -> Iterator[pa.RecordBatch]:
        """Read each page by the numbers of its rows in one version."""
        version, first = self.dataset.version, 0
        while True:
            page = self.lance.dataset(self.place, version=version).to_table(limit=size, offset=first)
            if not page.num_rows:
                return
            yield from page.to_batches()
            first += page.num_rows

    def upsert(self, table: pa.Table) -> None:
        self.dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(table)

    def size(self) -> int:
        return bytes_of(self.place)

    def close(self) -> None:
        pass


class Postgres(PagedInSql):
    """A new PostgreSQL server with default settings, which flushes commits; read through its Arrow driver."""

    name = "PostgreSQL (ADBC)"

    def __init__(self, place: Path) -> None:
        import adbc_driver_postgresql.dbapi as adbc  # noqa: PLC0415 - each engine brings its own

        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
        self.place = Path(tempfile.mkdtemp(prefix="peer-pg-", dir=place.parent))
        user = pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        os.chown(self.place, user.pw_uid, user.pw_gid)
        for parent in self.place.parents[:2]:  # of a temporary directory of root's
            with suppress(PermissionError):
                parent.chmod(parent.stat().st_mode | 0o011)
        self._own: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid} if os.geteuid() == 0 else {}
        self._files = self.place / "files"
        self._run(programs / "initdb", "-D", self._files, "-U", "peer", "--auth", "trust", "-E", "UTF8")
        self._server = subprocess.Popen(
            [programs / "postgres", "-D", self._files, "-k", self.place, "-h", ""],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.place, **self._own,
        )  # fmt: skip
        uri = f"postgresql:///postgres?host={self.place}&user=peer"
        self.another = lambda: adbc.connect(uri)
        self.connection = _soon(self.another)
        columns = "id bigint PRIMARY KEY, k bigint, v double precision, s text, ts timestamptz, g bigint"
        self._do(f"CREATE TABLE t ({columns})")

    def _run(self, *command: Any) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.place, **self._own)

    def _do(self, *statements: str) -> None:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        self.connection.commit()

    def load(self, batches: Iterator[pa.RecordBatch]) -> None:
        with self.connection.cursor() as cursor:
            cursor.adbc_ingest("t", pa.RecordBatchReader.from_batches(SCHEMA, batches), mode="append")
        self._do("CREATE INDEX by_k ON t (k)", "ANALYZE t")

    def asked(self, query: str) -> pa.Table:
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetch_arrow_table()

    def upsert(self, table: pa.Table) -> None:
        sets = ", ".join(f"{name} = excluded.{name}" for name in SCHEMA.names[1:])
        with self.connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE IF NOT EXISTS u (LIKE t)")
            cursor.execute("TRUNCATE u")
            cursor.adbc_ingest("u", table, mode="append", temporary=True)
            cursor.execute(f"INSERT INTO t SELECT {NAMES} FROM u ON CONFLICT (id) DO UPDATE SET {sets}")
        self.connection.commit()

    def size(self) -> int:
        self._do("CHECKPOINT")
        return bytes_of(self._files / "base")

    def close(self) -> None:
        self.connection.close()
        self._server.terminate()
        self._server.wait()
        shutil.rmtree(self.place, ignore_errors=True)


class Redis:
    """A new Redis server; each row is one packed value at its key, the form that takes the least memory."""

    name = "Redis"

    def __init__(self, place: Path) -> None:
        import redis  # noqa: PLC0415 - each engine brings its own

        place.mkdir()
        self.place = place
        socket = place / "socket"
        self._server = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", str(place)],
            stdout=subprocess.DEVNULL,
            cwd=place,
        )
        self.client = redis.Redis(unix_socket_path=str(socket), socket_timeout=None)  # a save takes long
        _soon(self.client.ping)

    def load(self, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            self.upsert(pa.Table.from_batches([batch]))

    def upsert(self, table: pa.Table) -> None:
        for part in table.to_batches(10_000):
            columns = [_plain(column) for column in part.columns]
            packed = {row[0]: msgpack.packb(row[1:]) for row in zip(*columns, strict=True)}
            self.client.mset(packed)

    def _rows(self, keys: Sequence[Any]) -> pa.RecordBatch:
        values = self.client.mget(keys) if keys else []
        unpacked = [(int(key), *msgpack.unpackb(value)) for key, value in zip(keys, values, strict=True)]
        columns = zip(*unpacked, strict=True) if unpacked else ([] for _ in SCHEMA)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    def scan(self) -> pa.Table:
        return pa.Table.from_batches(self.pages(10_000), SCHEMA)

    def get(self, key: int) -> pa.Table:
        return pa.Table.from_batches([self._rows([key])])

    def pages(self, size: int) -> Iterator[pa.RecordBatch]:
        """Read pages by SCAN, which returns each key at least once."""
        cursor = 0
        while True:
            cursor, keys = self.client.scan(cursor, count=size)
            yield self._rows(keys)
            if not cursor:
                return

    def size(self) -> int:
        while self.client.info("persistence")["rdb_bgsave_in_progress"]:
            time.sleep(0.1)  # the server saves by itself, which takes long after a large load
        self.client.save()
        return bytes_of(self.place)

    def close(self) -> None:
        self.client.shutdown(nosave=True)
        self._server.wait()


def _plain(column: pa.Array) -> list[Any]:
    """Return values that can be packed directly: times as microseconds."""
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()


def _soon(work: Callable[[], Any]) -> Any:
    """Return the answer of a server once it has started."""
    for _ in range(200):
        try:
            return work()
        except Exception:
            time.sleep(0.1)
    return work()


ENGINES: tuple[Callable[[Path], Any], ...] = (ElasticScan, DuckDb, Delta, Iceberg, Lance, Postgres, Redis)
