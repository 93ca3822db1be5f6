"""A standalone Spark cluster of the tests' own, from PySpark's jars: a master and workers of one core each.

Each worker has a work directory and a local directory of its own, all listen on loopback at free ports, and
all are gone when the tests are (`spark_keeper.py`). Drivers are processes of their own, which may be killed.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark

from tests.cluster.processes import Program, command, kill, members

SPARK = Path(pyspark.__file__).parent
PATIENCE_SECONDS = 240.0
BACKEND = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


def until(look: Callable[[], Any], what: str) -> Any:
    """Wait until there is something to see; it."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if seen := look():
            return seen
        time.sleep(0.02)
    raise TimeoutError(what)


class Cluster:
    """A running master and its workers."""

    def __init__(self, workers: int = 2) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="spark-cluster-"))
        self._keeper = Program(
            "tests.cluster.spark_keeper", str(SPARK), str(self.directory), log=self.directory / "log"
        )
        try:
            self.master: str = self._answer("master", 0)
            self.workers = [self.add_worker() for _ in range(workers)]
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End all of it."""
        with suppress(TimeoutError):
            self._keeper.finish(PATIENCE_SECONDS)
        self._keeper.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def add_worker(self) -> int:
        """Start one more worker; its process."""
        number = len(self._keeper.answers("worker"))
        self._keeper.send(start="worker")
        return int(self._answer("worker", number))

    def kill_worker(self) -> None:
        """SIGKILL to the oldest worker, which takes its executors along."""
        kill(self.workers.pop(0))

    def executors(self) -> list[int]:
        """The processes of all executors, the oldest first."""
        return sorted(process for process in members(self._keeper.id) if BACKEND in command(process))

    def kill_executor(self) -> None:
        """SIGKILL to the oldest one."""
        kill(until(self.executors, "there is no executor")[0])

    def _answer(self, word: str, number: int) -> Any:
        def look() -> list[Any]:
            if self._keeper.code() is not None:
                raise RuntimeError(self._keeper.why())
            return self._keeper.answers(word)[number:]

        return until(look, f"no {word}")[0]


class JobFailed(Exception):
    """A job of a driver ended with an error, whose text this is."""


class Driver(Program):
    """A process with a Spark session at a cluster, which does jobs (`jobs.py`)."""

    def __init__(self, master: str, place: Path, settings: dict[str, str] | None = None) -> None:
        number = len(list(place.glob("driver-*")))
        (own := place / f"driver-{number}").mkdir()
        more = {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        given = (master, str(own), json.dumps(settings or {}))
        super().__init__("tests.cluster.driver", *given, log=own / "log", more=more)
        self._begun = 0

    def begin(self, job: str, **given: Any) -> int:
        """Begin a job; the number of its answer."""
        self._begun += 1
        self.send(number=self._begun, job=job, given=given)
        return self._begun

    def answer(self, number: int) -> Any:
        """Wait for the result of a job.

        Raises:
            JobFailed: it ended with an error.
        """

        def look() -> list[dict[str, Any]]:
            if self.code() is not None:
                raise RuntimeError(self.why())
            return [said for said in list(self.said) if said.get("number") == number]

        said = until(look, f"no answer; {self.log}")[0]
        if "error" in said:
            raise JobFailed(said["error"])
        return said["result"]

    def ask(self, job: str, **given: Any) -> Any:
        return self.answer(self.begin(job, **given))


class Gate:
    """Holds tasks after their first batch until it is opened: so they can be killed in the midst of it."""

    def __init__(self, place: Path, number: int = 0) -> None:
        self.place = place / f"gate-{number}"
        self.place.mkdir()

    def wait_for_tasks(self, driver: Driver, job: int, count: int) -> None:
        """Wait until tasks of a driver's job stand before it."""

        def look() -> bool:
            if any(said["number"] == job for said in list(driver.said)):
                raise JobFailed(f"ended too early: {str(driver.answer(job))[:1000]}")
            return len(list(self.place.glob("at-*"))) >= count

        until(look, "no task came to the gate")

    def open(self) -> None:
        (self.place / "open").touch()
