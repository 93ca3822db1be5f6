"""Whatever a caller hands in: an error with a code, or Python's own for a wrong number of arguments."""

from __future__ import annotations

import errno
import io
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    ElasticScanError,
    FilterError,
    FragmentDamaged,
    FragmentMissing,
    InvalidOption,
    OutOfResources,
    ScanFinished,
)
from elasticscan.filters import Predicate
from elasticscan.store import Context, Store
from elasticscan.store.reading import paging as paging_module
from elasticscan.store.writing import writer

HUGE = 10**5_000
INSIDE_ITSELF: list[Any] = []
INSIDE_ITSELF.append(INSIDE_ITSELF)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "s.store", ["s1", "s2"], tablets=4, slots=16) as made:
        made.create_table("t", pa.schema([("id", pa.int64()), ("s", pa.string())]), ["id"])
        made.table("t").upsert(pa.table({"id": range(100), "s": ["x"] * 100}))
        yield made


VALUES: list[Any] = [
    *(None, True, 0, -1, 1, 7, HUGE, -HUGE, 2**63, 1.5, float("nan"), float("inf"), 1e308, b"t", b"\xff"),
    *("", "t", "id", "no", "s1", "\0", "\ud800", "x" * 100_000, "../..", "~", "file://", "sqlite://"),
    *("'", "`;--", [], ["id"], ["id", "id"], [None], [HUGE], [["id"]], ()),
    *(("app", 1), ("app", HUGE), ("", -1), ("a", 1, 2)),
    *({}, {"id": 1}, {"s1": None}, {1: 2}, set(), INSIDE_ITSELF, object(), type, len, io.BytesIO(b"x"), ...),
    *(pa.schema([]), pa.schema([("id", pa.int64())]), pa.table({}), pa.table({"id": [1]}), pa.array([1])),
    *(pa.table({"id": ["a"], "s": ["b"]}), pa.table({"id": [None], "s": [None]}), pa.nulls(3)),
    *(pa.field("x", pa.int8()), [pa.field("x", pa.int8())], [pa.field("x", pa.int8(), nullable=False)]),
    *(pa.scalar(1), iter([1]), range(3)),
]  # fmt: skip


def calls(store: Store) -> dict[str, tuple[Callable[..., Any], int]]:
    """Methods with how many arguments they may be given."""

    def scan(*given: Any) -> None:
        store.table("t").scan(**dict(zip(SCAN, given, strict=False))).to_table()

    def changes(*given: Any) -> None:
        store.table("t").changes(**dict(zip(CHANGES, given, strict=False))).to_table()

    table = store.table("t")
    return {
        "create_table": (store.create_table, 5),
        "table": (store.table, 1),
        "add_columns": (table.add_columns, 1),
        "drop_columns": (table.drop_columns, 1),
        "rename_column": (table.rename_column, 2),
        "widen_column": (table.widen_column, 2),
        "upsert": (table.upsert, 2),
        "overwrite": (table.overwrite, 2),
        "delete": (table.delete, 1),
        "scan": (scan, len(SCAN)),
        "changes": (changes, len(CHANGES)),
        "set_retention": (table.set_retention, 1),
        "resume": (store.resume, 1),
        "create_index": (table.create_index, 4),
        "drop_index": (table.drop_index, 1),
        "elasticity": (store.elasticity, 3),
        "expand": (store.expand, 1),
        "contract": (store.contract, 1),
        "move": (store.move, 2),
        "split": (store.split, 2),
        "join": (store.join, 2),
        "collect_garbage": (store.collect_garbage, 1),
    }


SCAN = ["columns", "filter", "index", "snapshot", "page_rows", "page_bytes", "order_by", "limit"]
CHANGES = ["after", "upto", "columns", "filter", "feed", "page_rows", "page_bytes"]
GOOD: dict[str, list[Any]] = {
    "create_table": ["fresh", pa.schema([("id", pa.int64())]), ["id"], ["id"], "lz4"],
    "table": ["t"],
    "scan": [["id"], "id > 1", "auto", None, 10, 1_000, None, 7],
    "changes": [1, None, ["id"], "id > 1", True, 10, 1_000],
    "upsert": [pa.table({"id": [1], "s": ["a"]}), ("app", 1)],
    "overwrite": [pa.table({"id": [1], "s": ["a"]}), ("app", 2)],
    "create_index": ["by_s", ["s"], "sorted", []],
}


@pytest.mark.parametrize("seed", range(4))
def test_hostile_arguments_are_refused_with_a_code(store: Store, seed: int) -> None:
    dice, outcomes = random.Random(seed), Counter[str]()
    for _ in range(250):
        name, (call, most) = dice.choice(sorted(calls(store).items(), key=lambda item: item[0]))
        given = [dice.choice(VALUES) for _ in range(most)]
        for place, good in enumerate(GOOD.get(name, [])):
            if dice.random() < 0.8 and place < len(given):
                given[place] = good
        try:
            call(*given[: dice.randint(1, most)])
            outcomes["fine"] += 1
        except ElasticScanError as error:
            str(error).encode()
            outcomes[error.code] += 1
        except TypeError as error:
            if "positional argument" not in str(error):
                raise
    assert len(outcomes) > 4
    with Store.open(store.uri) as again:
        for table in again.tables():
            again.table(table.name).scan().to_table()


DIGITS = "9" * 5_000
FILTERS = [
    f"id = {DIGITS}",
    f"id = -{DIGITS}",
    f"id IN (1, {DIGITS})",
    f"id > {DIGITS}.5",
    f"id > 1e{DIGITS}",
    f"CAST(s AS DECIMAL({DIGITS}, 2)) = 1",
    "CAST(s AS DECIMAL(²,2)) = 1",
    f"substring(s, {DIGITS}, 1) = 'a'",
    "s = '\ud800'",
    "map( 1",
    "x -> 1BD `",
    "(" * 5_000 + "id" + ")" * 5_000,
    "id = " + "-" * 3_000 + "1",
]


@pytest.mark.parametrize("text", FILTERS, ids=lambda text: text[:20].encode("ascii", "replace").decode())
def test_filters_that_a_parser_stumbles_over_are_refused(text: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
    with pytest.raises(FilterError):
        Predicate.parse(text, schema)


def test_a_parameter_whose_name_cannot_be_encoded_is_reported_in_a_text_that_can(store: Store) -> None:
    with pytest.raises(FilterError) as refused:
        store.table("t").scan(filter="id = :p", parameters={"a\ud800": 1})
    str(refused.value).encode()


_WORDS = r"""
id s = < > <= <> AND OR NOT IN LIKE RLIKE IS NULL BETWEEN ( ) , 1 -1 1.5 'a' '%' TRUE CAST( AS INT) STRING)
DECIMAL(3,²) DATE '2020-01-01' 1e309 0x1F X'00' CASE WHEN THEN ELSE END upper( + - * / % || <=> [ ] . :: ?? '
` \ é @ # $x { } ; -- /* */ EXISTS( SELECT 1L 1Y 1BD NaN array( map( -> ESCAPE ANY( year( ROUND(
"""
PIECES = [*_WORDS.split(), DIGITS, "\0"]


@pytest.mark.parametrize("seed", range(3))
def test_any_words_are_a_filter_or_refused(seed: int) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
    rows = pa.RecordBatch.from_pylist([{"id": None, "s": None}, {"id": 1, "s": "a"}], schema=schema)
    dice = random.Random(seed)
    for _ in range(600):
        text = " ".join(dice.choice(PIECES) for _ in range(dice.randint(1, 12)))
        try:
            Predicate.parse(text, schema).mask(rows)
        except ElasticScanError:
            continue


# ---------------------------------------------------------------------- one scan, several readers


def test_threads_that_share_a_scan_get_each_page_once(store: Store) -> None:
    scan, start = store.table("t").scan(page_rows=3), Barrier(16)

    def read() -> list[int]:
        start.wait()
        try:
            return [key for page in scan for key in page.rows.column("id").to_pylist()]
        except ScanFinished:  # the others were quicker
            return []

    with ThreadPoolExecutor(16) as pool:
        found = [future.result() for future in [pool.submit(read) for _ in range(16)]]
    assert sorted(key for keys in found for key in keys) == list(range(100))


# -------------------------------------------------------------------- what a process runs out of


def test_a_process_without_threads_builds_an_index_and_moves_tablets(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refusing)
    store.table("t").create_index("by_s", ["s"])
    store.expand(["new"])
    assert {shard["name"]: shard["tablets"] for shard in store.status()["shards"]}["new"] == 1
    assert store.table("t").scan(index="by_s").count() == 100


@pytest.mark.parametrize(
    "work", ["store.expand(['c'])", "store.contract('b')", "store.table('t').create_index('by_v', ['v'])"]
)
def test_a_thread_that_outlives_the_main_thread_works_on(tmp_path: Path, work: str) -> None:
    code = f"""
import threading, time
import elasticscan

store = elasticscan.create("store", shards=["a", "b"], tablets=8)
store.create_table("t", {{"id": range(1000), "v": range(1000)}}, primary_key="id")

def late():
    threading.main_thread().join()
    time.sleep(0.2)
    {work}
    print(store.table("t").scan().count(), flush=True)

threading.Thread(target=late).start()
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.stdout == "1000\n", run.stderr


LACKS = {
    "memory": (MemoryError(), "more memory"),
    "arrow's memory": (pa.lib.ArrowMemoryError("malloc of size 9 failed"), "more memory"),
    "files": (OSError(errno.EMFILE, "Too many open files", "a_module.py"), "ulimit -n"),
    "arrow's threads": (pa.lib.ArrowException("Unknown error: Failed to launch worker thread"), "ulimit -u"),
    "threads": (RuntimeError("can't start new thread"), "ulimit -u"),
}


@pytest.mark.parametrize("lack", LACKS)
def test_whatever_a_process_lacks_every_call_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch, lack: str
) -> None:
    error, message = LACKS[lack]

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    table, scan, stream = store.table("t"), store.table("t").scan(), store.table("t").scan().to_reader()
    monkeypatch.setattr(paging_module.Pages, "read", fail)
    monkeypatch.setattr(writer, "write", fail)
    monkeypatch.setattr(Context, "placement", fail)
    calls: dict[str, Callable[[], Any]] = {
        "page": lambda: next(scan),
        "table": scan.to_table,
        "count": scan.count,
        "explain": scan.explain,
        "upsert": lambda: table.upsert([{"id": 1, "s": "x"}]),
    }
    for name, call in calls.items():
        with pytest.raises(OutOfResources, match=message) as caught:
            call()
        assert caught.value.__cause__ is error, name
    with pytest.raises(OutOfResources, match=message):
        stream.read_next_batch()


def test_a_process_without_free_files_is_reported_so_by_the_catalog(store: Store) -> None:
    child = """if True:
        import os, resource, sys, elasticscan
        from elasticscan.errors import OutOfResources
        store = elasticscan.open(sys.argv[1])
        tables = [table.name for table in store.tables()]
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        for free in (0, 1):
            held = []
            try:
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                pass
            for number in held[:free]:
                os.close(number)
            try:
                elasticscan.open(sys.argv[1])
            except OutOfResources as error:
                print(error.fields["what"])
            for number in held[free:]:
                os.close(number)
        print(elasticscan.open(sys.argv[1]).table("t").scan().count())
    """
    ended = subprocess.run(
        [sys.executable, "-c", child, store.uri], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stdout.split() == ["files", "files", "100"], ended.stderr


def test_a_staged_file_that_was_damaged_is_reported_as_damage_and_not_as_garbage(store: Store) -> None:
    rows = pa.table({"id": range(1_000), "s": ["y"] * 1_000}).to_batches(max_chunksize=100)
    before = set(Path(store.uri).rglob("*.arrow"))

    def slow() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(rows):
            if number == 8:
                for staged in set(Path(store.uri).rglob("*.arrow")) - before:
                    content = bytearray(staged.read_bytes())
                    content[100] ^= 1
                    staged.write_bytes(content)
            yield batch

    table = store.table("t").definition
    reader = pa.RecordBatchReader.from_batches(table.schema, slow())
    with pytest.raises(FragmentDamaged, match="elasticscan repair OLD NEW") as caught:
        writer.write(store.context, table, reader, buffer_bytes=2_000)
    assert not isinstance(caught.value, FragmentMissing)
    assert store.table("t").scan().to_table().num_rows == 100


def test_texts_of_a_commit_hold_no_zero_which_postgresql_would_refuse_amid_it(tmp_path: Path) -> None:
    with Store.create(tmp_path / "s", shards=["a"]) as store:
        table = store.create_table("t", pa.table({"id": [1]}), "id")
        for name in ("a\0b", "", "é" * 513):
            with pytest.raises(InvalidOption, match=r"txn.* must be a name of 1 to 1,024 bytes"):
                table.upsert(pa.table({"id": [2]}), txn=(name, 1))
            with pytest.raises(InvalidOption, match=r"job.* must be a name of 1 to 1,024 bytes"):
                store.load("t", tmp_path, job=name)
        assert table.scan().count() == 1
        table.upsert(pa.table({"id": [2]}), txn=("é" * 512, 1))
