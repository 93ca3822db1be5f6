"""Runs a standalone Spark master and its workers for as long as its standard input is open.

    python -m tests.cluster.spark_keeper SPARK DIRECTORY

SPARK is PySpark's own folder, with its jars. Whoever started it may die in any way: the pipe is closed then,
and every process of this one's session is killed, by its id; executors and their Python processes belong to
it. Each line that it is sent starts one more worker, of one core, with directories of its own. Its answers
are JSON lines.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.base.quick_java import QUICK_JAVA
from tests.cluster.processes import end_session, tell

PATIENCE_SECONDS = 120.0
# By turns, since Spark never runs a task a second time at the host where it runs already.
WORKER_HOSTS = ["127.0.0.1", "localhost"]
WORKER_MEGABYTES = 1_536
MASTER = [
    "-Dspark.master.rest.enabled=false",  # it has a fixed port
    "org.apache.spark.deploy.master.Master",
    "--webui-port",
    "0",
]


class Keeper:
    def __init__(self, spark: Path, place: Path) -> None:
        self._spark, self._place, self._workers = spark, place, 0
        # As Spark's scripts name it: only so an archive of classes fits.
        (first,) = (spark / "jars").glob("slf4j-api-*.jar")
        self._class_path = ["-cp", f"{first}:{spark / 'jars'}/*"]
        # No user of another machine is listened to, whatever this one is called.
        self._environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(spark)}
        self._environment.pop("SPARK_CONF_DIR", None)
        # Otherwise Spark's scripts tell a worker, which cannot start executors without it.
        (core,) = (spark / "jars").glob("spark-core_*.jar")
        self._environment["SPARK_SCALA_VERSION"] = core.name.removeprefix("spark-core_").partition("-")[0]
        self.master = ""

    def start(self) -> None:
        log = self._place / "master.log"
        process = self._java(log, [*MASTER, "--host", "127.0.0.1", "--port", "0"])
        self.master = self._said(process, log, r"Starting Spark master at (spark://\S+)")
        self._said(process, log, "I have been elected leader")

    def worker(self) -> int:
        """Start a worker; its process."""
        number, self._workers = self._workers, self._workers + 1
        local, work = self._place / f"local-{number}", self._place / f"worker-{number}"
        local.mkdir()
        log = self._place / f"worker-{number}.log"
        host = WORKER_HOSTS[number % len(WORKER_HOSTS)]
        command = ["org.apache.spark.deploy.worker.Worker", "--host", host, "--port", "0"]
        command += ["--webui-port", "0", "--cores", "1", "--memory", f"{WORKER_MEGABYTES}M"]
        process = self._java(
            log, [*command, "--work-dir", str(work), self.master], {"SPARK_LOCAL_DIRS": str(local)}
        )
        self._said(process, log, "Successfully registered with master")
        return process.pid

    def _java(
        self, log: Path, command: list[str], more: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(
                ["java", *QUICK_JAVA.split(), "-Xmx160m", *self._class_path, *command],
                cwd=self._place,
                env=self._environment | (more or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @staticmethod
    def _said(process: subprocess.Popen[bytes], log: Path, words: str) -> str:
        """Wait for a line of a log; what its group matched."""
        end = time.monotonic() + PATIENCE_SECONDS
        while process.poll() is None and time.monotonic() < end:
            if match := re.search(words, log.read_text(errors="replace")):
                return match[match.re.groups]
            time.sleep(0.05)
        raise RuntimeError(log.read_text(errors="replace")[-4_000:])


def main(spark: str, place: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the tests end first
    keeper = Keeper(Path(spark), Path(place))
    try:
        keeper.start()
        tell(master=keeper.master)
        for _ in sys.stdin:
            tell(worker=keeper.worker())
    finally:
        end_session(os.getpid(), but=os.getpid())
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
