"""The demo's Spark job: a user's program, run here. It knows the store only as a data source.

PySpark is an optional extra of which the command line must not depend, so it is imported by name
once the demo has begun. The functions that run in Spark's Python workers need nothing but
pyarrow.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from elasticscan.cli.demo_accounts import Arrival
from elasticscan.cli.demo_flights import KEY

TASKS = 2
# What the job keeps of each row: its key, and where it was read.
KEPT = (*KEY, "_shard", "_slot")
_SCHEMA = "time_hour timestamp, carrier string, flight bigint, _shard string, _slot int"
_LONGEST_WAIT_SECONDS = 120.0


def start_session(directory: Path, page_rows: int) -> Any:
    """A small, quiet Spark whose files all lie in `directory`."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(TASKS),
        # One page in, one page out, and pipes that hold few of them: the job's pace is the scan's.
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(page_rows),
        "spark.python.unix.domain.socket.enabled": "true",
    }
    # PySpark warns of a pandas that is newer than itself; nothing here uses pandas.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    with _noise_to(directory / "spark.log"):
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

        builder = SparkSession.builder.master(f"local[{TASKS}]").appName("elasticscan demo")
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def _noise_to(path: Path) -> Iterator[None]:
    """What a process that is started here writes to stderr goes to a file, for as long as it lives."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def stop_session(session: Any) -> None:
    """Stop Spark and wait until its process is gone, so that its files can go too."""
    gateway = session.sparkContext._gateway
    with warnings.catch_warnings():
        # After Ctrl-C, Spark may be gone already, which is what we want.
        warnings.simplefilter("ignore")
        session.stop()
    process = getattr(gateway, "proc", None)
    with suppress(Exception):
        gateway.shutdown()
    if process is not None:
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(timeout=10)
        except Exception:
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class Desk:
    """Files by which the job and the demo tell each other how far they are."""

    directory: Path

    def open(self) -> None:
        self.directory.mkdir()
        self.set_pause(0.0)

    def set_pause(self, seconds: float) -> None:
        """How long the job shall take for a page; `inf` makes it wait."""
        written = self.directory / "pause.new"
        written.write_text(repr(seconds))
        written.replace(self.directory / "pause")

    def arrivals(self) -> list[list[Arrival]]:
        """The pages that have arrived, task by task."""
        found = []
        for path in sorted(self.directory.glob("*.pages")):
            lines = path.read_text().splitlines()
            pages = [line.split() for line in lines if line.endswith(".")]
            found.append([Arrival(float(at), int(rows), int(size)) for at, rows, size, _ in pages])
        return found


def scan_frame(session: Any, uri: str, table: str, page_rows: int, desk: Desk) -> Any:
    """The scan through a job that takes its time for every page, as jobs do."""
    flights = (
        session.read.format("elasticscan")
        .option("includeMetadata", "true")
        .option("batchSize", str(page_rows))
        .load(f"{uri}/{table}")
    )
    return flights.mapInArrow(_slow_job(str(desk.directory)), _SCHEMA).persist()


def _slow_job(directory: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Runs in Spark's workers, one call for each task."""

    def job(pages: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrived = Path(directory) / f"{os.getpid()}-{time.time_ns()}.pages"
        with arrived.open("w", buffering=1) as file:
            for page in pages:
                # The dot tells a reader that the line is complete.
                file.write(f"{time.time()} {page.num_rows} {page.nbytes} .\n")
                yield page.select(list(KEPT))
                begun = time.monotonic()
                while _waits(Path(directory) / "pause", time.monotonic() - begun):
                    time.sleep(0.02)

    return job


def _waits(pause: Path, waited: float) -> bool:
    if waited > _LONGEST_WAIT_SECONDS:
        raise TimeoutError("the demo's tablets did not move for minutes, so its job gave up waiting")
    return waited < float(pause.read_text())


def flights_by_airline(frame: Any) -> dict[str, int]:
    """Counted by Spark over the rows that the scan gave."""
    found = frame.groupBy("carrier").count().orderBy("count", ascending=False).toArrow().to_pydict()
    return dict(zip(found["carrier"], found["count"], strict=True))
