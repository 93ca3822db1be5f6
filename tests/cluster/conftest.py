"""A cluster and a driver for the tests of a file, and stores whose catalog is in either database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from elasticscan.base.errors import TryAgain, UsageError
from elasticscan.store import Store
from tests.base.postgres import Server
from tests.base.s3 import S3Server
from tests.base.topology_changes import change_topology
from tests.cluster.standalone import Cluster, Driver

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
ROWS = 20_000


def made(start: int, end: int, v: int) -> pa.Table:
    return pa.table({"id": range(start, end), "v": [v] * (end - start)}, schema=SCHEMA)


def contents(store: Store, table: str = "t") -> list[list[int]]:
    """All rows in their order, each once."""
    rows = store.table(table).scan().to_table()
    listed = sorted(map(list, zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)))
    assert len({key for key, _ in listed}) == len(listed)
    return listed


def tidy(store: Store) -> None:
    """Collect garbage; nothing of a dead task is left."""
    store.collect_garbage(grace_seconds=0.0, orphan_seconds=0.0, share=1.0)
    left = store.collect_garbage(grace_seconds=0.0, dry_run=True, orphan_seconds=0.0, share=1.0)
    assert left.removed == 0


@contextmanager
def moving(store: Store, seed: int = 1, roots: str | None = None, pause: float = 0.3) -> Iterator[None]:
    """Tablets move, split and join, and shards come and go.

    Args:
        roots: where new shards lie, if not in the store's directory.
        pause: seconds between two changes.
    """
    stopping, moves = threading.Event(), list[str]()

    def move() -> None:
        chance = Random(seed)
        while not stopping.wait(pause):
            try:
                name = f"n{len(moves)}"
                fresh = name if roots is None else {name: f"{roots}/{name}"}
                moves.append(change_topology(store, chance, fresh) or "")
            except (TryAgain, UsageError):
                continue

    mover = threading.Thread(target=move)
    mover.start()
    try:
        yield
    finally:
        stopping.set()
        mover.join()
    assert any(moves)


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture(scope="module")
def driver(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with Driver(cluster.master, tmp_path_factory.mktemp("drivers")) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store whose catalog is SQLite's: `t` with 20,000 rows in 16 tablets on two shards."""
    with Store.create(tmp_path / "shop.store", ["s1", "s2"], tablets=16) as made_here:
        yield filled(made_here)


@pytest.fixture
def server_store(tmp_path: Path, postgres_url: str) -> Iterator[Store]:
    """The same with its catalog at a server."""
    shards = {name: str(tmp_path / name) for name in ("s1", "s2")}
    with Store.create(postgres_url, shards, tablets=16) as made_here:
        yield filled(made_here)


@dataclass(frozen=True)
class FarPlace:
    """A database that asks for a password, a bucket, and a cluster: all find both by their environment."""

    cluster: Cluster
    postgres: Server
    s3: S3Server
    user: str
    bucket: str
    password: str
    _numbers: Iterator[int]

    @contextmanager
    def store(self) -> Iterator[tuple[Store, str]]:
        """A store there, `t` with 20,000 rows in 16 tablets on two shards; and where others may lie."""
        roots = f"s3://{self.bucket}/{next(self._numbers)}"
        with self.postgres.database() as database:
            self.postgres.execute(f"GRANT ALL ON SCHEMA public TO {self.user}", database)
            shards = {name: f"{roots}/{name}" for name in ("s1", "s2")}
            with Store.create(self.postgres.url(database, self.user), shards, tablets=16) as made_here:
                yield filled(made_here), roots


@pytest.fixture(scope="module")
def far(postgres: Server, s3_server: S3Server) -> Iterator[FarPlace]:
    password = "Zq7:of@the/tests"  # without a word by which Spark itself would find it
    user = postgres.checked_user(password)
    with s3_server.bucket() as bucket, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSWORD", password)
        with Cluster() as cluster:
            yield FarPlace(cluster, postgres, s3_server, user, bucket, password, count(1))


def filled(store: Store) -> Store:
    store.create_table("t", SCHEMA, ["id"])
    store.table("t").upsert(made(0, ROWS, 1))
    return store
