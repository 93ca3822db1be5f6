"""A standalone Spark cluster of the tests' own, from PySpark's jars: a master and workers of one core each.

Each worker has a work directory and a local directory of its own, all listen on loopback at free ports, and
all are gone when the tests are, however these end: an executor ends with its worker. Drivers are processes of
their own, which may be killed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyspark

from tests.base.processes import Program, command, end_session, ending_with_parent, kill, members, until
from tests.base.quick_java import QUICK_JAVA

JARS = Path(pyspark.__file__).parent / "jars"
BACKEND = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
# By turns, since Spark never runs a task a second time at the host where it runs already.
WORKER_HOSTS = ["127.0.0.1", "localhost"]
WORKER_MEGABYTES = 1_536
MASTER = [
    "-Dspark.master.rest.enabled=false",  # it has a fixed port
    *("org.apache.spark.deploy.master.Master", "--webui-port", "0", "--host", "127.0.0.1", "--port", "0"),
]
WORKER = ["org.apache.spark.deploy.worker.Worker", "--webui-port", "0", "--port", "0", "--cores", "1"]


class Cluster:
    """A running master and its workers, each the leader of a session of its own."""

    def __init__(self, workers: int = 2) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="spark-cluster-"))
        self._started = list[subprocess.Popen[bytes]]()
        # As Spark's scripts name it: only so an archive of classes fits.
        (first,) = JARS.glob("slf4j-api-*.jar")
        self._class_path = ["-cp", f"{first}:{JARS}/*"]
        # No user of another machine is listened to, whatever this one is called. The version is what Spark's
        # scripts tell a worker, which cannot start executors without it.
        (core,) = JARS.glob("spark-core_*.jar")
        version = core.name.removeprefix("spark-core_").partition("-")[0]
        own = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(JARS.parent), "SPARK_SCALA_VERSION": version}
        self._environment = {
            name: text for name, text in os.environ.items() if name != "SPARK_CONF_DIR"
        } | own
        try:
            self.master = self._start("master", MASTER, r"Starting Spark master at (spark://\S+)")
            until(lambda: "elected leader" in self._log("master").read_text(), "the master does not lead")
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
        for process in reversed(self._started):
            end_session(process.pid)
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def add_worker(self) -> int:
        """Start one more worker; its process."""
        number = len(self._started) - 1
        local, work = self.directory / f"local-{number}", self.directory / f"worker-{number}"
        local.mkdir()
        more = [
            "--host",
            WORKER_HOSTS[number % 2],
            "--memory",
            f"{WORKER_MEGABYTES}M",
            "--work-dir",
            str(work),
        ]
        environment = {"SPARK_LOCAL_DIRS": str(local)}
        command = [*WORKER, *more, self.master]
        self._start(f"worker-{number}", command, "(Successfully registered with master)", environment)
        return self._started[-1].pid

    def kill_worker(self) -> None:
        """SIGKILL to the oldest worker, which takes its executors along."""
        kill(self.workers.pop(0))

    def executors(self) -> list[int]:
        """The processes of all executors, the oldest first."""
        found = members(*(process.pid for process in self._started))
        return sorted(process for process in found if BACKEND in command(process))

    def kill_executor(self) -> None:
        """SIGKILL to the oldest one."""
        kill(until(self.executors, "there is no executor")[0])

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _start(self, name: str, program: list[str], words: str, more: dict[str, str] | None = None) -> str:
        """Start a process of Java's, and wait for a line of its log; what its group matched."""
        log = self._log(name)
        java = ["java", *QUICK_JAVA.split(), "-Xmx160m", *self._class_path, *program]
        with log.open("wb") as output:
            process = subprocess.Popen(
                ending_with_parent(java),
                cwd=self.directory,
                env=self._environment | (more or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._started.append(process)

        def look() -> re.Match[str] | None:
            text = log.read_text(errors="replace")
            assert process.poll() is None, text[-4_000:]
            return re.search(words, text)

        return str(until(look, f"no {words} in {log}")[1])


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
