"""The connection to a database server breaks at every message of an operation, and nobody notices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import CatalogUnavailable, CommitUnknown, InvalidKey
from elasticscan.base.limits import MAX_KEY_BYTES
from elasticscan.catalog import postgres as postgres_home
from elasticscan.store import Store
from elasticscan.store.writing.entering import commit_of
from tests.base.postgres import Server
from tests.base.severed_line import SeveredLine

pytestmark = pytest.mark.long

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
MOST_TRIPS = 400


@pytest.fixture(scope="module")
def line(postgres: Server) -> Iterator[SeveredLine]:
    with SeveredLine(postgres.socket) as line:
        yield line


@pytest.fixture
def store(postgres: Server, line: SeveredLine, tmp_path: Path) -> Iterator[Store]:
    line.cut_at()
    roots = {name: str(tmp_path / name) for name in "ab"}
    with postgres.database() as database:
        with Store.create(line.url(database), roots, tablets=2, slots=8, upkeep="off") as store:
            store.create_table("t", SCHEMA, ["k"])
            store.table("t").upsert(rows(0, 20))
            store.table("t").create_index("by_v", ["v"])
            store.table("t").upsert(rows(10, 30))
            yield store
        line.cut_at()


def rows(first: int, last: int) -> pa.Table:
    return pa.table({"k": list(range(first, last)), "v": list(range(last - first))}, schema=SCHEMA)


def keys(store: Store) -> list[int]:
    table = store.table("t")
    keys: list[int] = sorted(table.scan(index="none").to_table()["k"].to_pylist())
    assert sorted(table.scan(index="by_v", filter="v >= 0").to_table()["k"].to_pylist()) == keys
    return keys


def write(store: Store) -> None:
    before = len(store.table("t").history())
    store.table("t").upsert(rows(20, 40))
    assert len(store.table("t").history()) == before + 1, "a commit is done once"


def scan(store: Store) -> None:
    some = store.table("t").scan(page_rows=7)
    assert sorted(k for page in some for k in page.rows["k"].to_pylist()) == keys(store)
    end = store.resume(store.table("t").scan(page_rows=7).key)
    assert sum(page.rows.num_rows for page in end) == len(keys(store))


def move(store: Store) -> None:
    placed = {tablet["id"]: tablet["shard"] for tablet in store.status()["tablets"]}
    store.move(1, "b" if placed[1] == "a" else "a")


def compact(store: Store) -> None:
    store.compact()


def define(store: Store) -> None:
    table = store.table("t")
    table.set_retention("90s")
    table.tag("kept")
    to = table.upsert(rows(10, 30))
    table.delete([1, 2, 3])
    assert sorted(table.scan(snapshot=table.restore(to)).to_table()["k"].to_pylist()) == list(range(30))
    table.drop_tag("kept")
    store.create_table("u", SCHEMA, ["k"])
    store.table("u").drop()


@pytest.mark.parametrize("answered", [False, True], ids=["request lost", "answer lost"])
@pytest.mark.parametrize("operation", [write, scan, move, compact, define])
def test_a_connection_that_breaks_anywhere_is_made_anew_and_nobody_notices(
    store: Store, line: SeveredLine, operation: Callable[[Store], None], answered: bool
) -> None:
    step = {write: 1, scan: 4, move: 13, compact: 7, define: 7}[operation]
    for first in range(1, MOST_TRIPS, step):
        line.cut_at(first, first + 2, answered=answered)
        operation(store)
        done = line.cuts == 0
        line.cut_at()
        if done:
            break
    assert done, "every request was cut once"
    store.context.catalog.check_whole()
    assert keys(store) == list(range(40 if operation is write else 30))
    assert store.status()["moves"] == []


@pytest.mark.parametrize("is_checked", [True, False], ids=["", "planted: whatever the layout is"])
def test_a_small_commit_is_checked_against_an_index_that_was_made_meanwhile(
    store: Store, is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_checked:
        any_layout = postgres_home._APPEND.replace("layout = :layout", ":layout > 0")
        monkeypatch.setattr(postgres_home, "_APPEND", any_layout)
    table = store.create_table("texts", SCHEMA.append(pa.field("s", pa.string())), ["k"])
    too_long = [{"k": 1, "v": 1, "s": "x" * (MAX_KEY_BYTES + 1)}]

    def make_index(point: str) -> None:
        monkeypatch.setattr(store.context, "checkpoint", lambda point: None)
        with Store.open(store.uri) as other:
            other.table("texts").create_index("by_s", ["s"])

    monkeypatch.setattr(store.context, "checkpoint", make_index)
    with pytest.raises(InvalidKey) if is_checked else nullcontext():
        table.upsert(too_long)


@pytest.mark.parametrize("answered", [False, True], ids=["request lost", "answer lost"])
def test_a_server_that_stays_away_is_reported_and_only_a_commit_s_fate_is_unknown(
    store: Store, line: SeveredLine, answered: bool
) -> None:
    catalog, raised = store.context.catalog, set()
    catalog._home.retry_seconds = 0.2
    for first in range(1, MOST_TRIPS):
        before = len(store.table("t").history())
        line.cut_at(*range(first, first + 1_000), answered=answered)
        error: Exception | None = None
        try:
            with catalog.writing() as tx:
                tx.append(commit_of(tx.state, tx.state.table_named("t").id, "write", []))
        except (CatalogUnavailable, CommitUnknown) as text:
            error = text
        line.cut_at()
        more = len(store.table("t").history()) - before
        raised.add((CatalogUnavailable if isinstance(error, CatalogUnavailable) else type(error), more))
        if error is None:
            break
    assert raised == {(CatalogUnavailable, 0), (CommitUnknown, int(answered)), (type(None), 1)}


def test_writers_and_a_mover_go_on_when_the_server_crashes(store: Store, postgres: Server) -> None:
    done, ended = [set[int]() for _ in range(3)], threading.Event()

    def write_on(worker: int) -> None:
        table = store.table("t")
        for number in range(1_000):
            if ended.is_set():
                return
            key = 1_000 * (worker + 1) + number
            table.upsert(rows(key, key + 1))
            done[worker].add(key)

    def move_on() -> None:
        while not ended.is_set():
            move(store)
            scan_all(store)

    with ThreadPoolExecutor(4) as pool:
        works = [*(pool.submit(write_on, worker) for worker in range(3)), pool.submit(move_on)]
        try:
            for _ in range(4):
                waited = threading.Event()
                waited.wait(0.7)
                postgres.restart()
            threading.Event().wait(0.7)
        finally:
            ended.set()
        for work in works:
            work.result()
    assert all(done)
    assert keys(store) == sorted({*range(30)}.union(*done))
    commits = store.table("t").history()
    assert sum(commit.kind == "write" for commit in commits) == 2 + sum(map(len, done))
    store.context.catalog.check_whole()


def scan_all(store: Store) -> None:
    table = store.table("t").scan(page_rows=50).to_table()
    assert len(set(table["k"].to_pylist())) == table.num_rows
