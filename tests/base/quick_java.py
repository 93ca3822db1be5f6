"""Options for the JVMs of tests, of which most live for seconds: they begin sooner and compile less.

Half of what it takes a JVM to begin a session of Spark is loading classes. An archive of them, which Java
keeps for the next ones, is made by the first run that needs it, once for a checkout.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import pyspark

# What runs for some minutes does not earn back what thorough compilation costs.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SECONDS = 300
KEPT = Path(__file__).resolve().parents[2] / ".pytest_cache"
# Java ends, and writes, when the pipe to it is closed: wait for it, not only for this process.
SESSION = """
import sys
from pyspark.sql import SparkSession
building = SparkSession.builder.master("local[1]").config("spark.driver.extraJavaOptions", sys.argv[1])
building = building.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
session = building.getOrCreate()
session.range(10).createOrReplaceTempView("t")
session.sql("SELECT id % 3 AS a, sum(id) FROM t JOIN t AS u USING (id) GROUP BY id % 3 ORDER BY a").collect()
gateway = session.sparkContext._gateway
session.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


@cache
def quick_java(make: bool = True) -> str:
    """The options, with an archive of Spark's classes where there is one, or one can be made.

    Args:
        make: what makes it costs as much as ten sessions gain.
    """
    archive = _archive(make)
    # Java would say to standard output, where others expect an answer, that a program has other classes.
    return f"{QUICK} -Xlog:disable -Xshare:auto -XX:SharedArchiveFile={archive}" if archive else QUICK


def _archive(make: bool) -> Path | None:
    with suppress(OSError, subprocess.SubprocessError):
        java = subprocess.run(["java", "-version"], capture_output=True, check=True).stderr
        of = hashlib.sha256(java + pyspark.__file__.encode() + pyspark.__version__.encode()).hexdigest()[:16]
        KEPT.mkdir(exist_ok=True)
        place = KEPT / f"java-{of}.jsa"
        with place.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
            if make and not place.exists():
                _make(place)
        return place if place.exists() else None
    return None


def _make(place: Path) -> None:
    """Run a session for a moment, at whose end Java writes down what it has loaded."""
    written = place.with_suffix(".unfinished")
    subprocess.run(
        [sys.executable, "-c", SESSION, f"{QUICK} -XX:ArchiveClassesAtExit={written}"],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        timeout=SECONDS,
        check=True,
    )
    written.rename(place)
