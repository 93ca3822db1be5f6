"""Options for the JVMs of tests, of which most live for seconds: they begin sooner and compile less.

Half of what it takes a JVM to begin a session of Spark is loading classes. An archive of them, which Java
keeps for the next ones, is made by the first run that needs it, once for a checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import pyspark

# What runs for some minutes does not earn back what thorough compilation costs.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ARCHIVE = Path(__file__).resolve().parents[2] / ".pytest_cache" / f"java-{pyspark.__version__}.jsa"
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
    """The options, with an archive of Spark's classes where there is one, which a Java of its own kind reads.

    Args:
        make: make one; it costs as much as ten sessions gain.
    """
    if make and not ARCHIVE.exists():
        ARCHIVE.parent.mkdir(exist_ok=True)
        written = ARCHIVE.with_suffix(f".{os.getpid()}")
        command = [sys.executable, "-c", SESSION, f"{QUICK} -XX:ArchiveClassesAtExit={written}"]
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(command, env=environment, capture_output=True, timeout=300, check=True)
            written.rename(ARCHIVE)
    # Java would say to standard output, where others expect an answer, that a program has other classes.
    shared = f" -Xlog:disable -Xshare:auto -XX:SharedArchiveFile={ARCHIVE}"
    return f"{QUICK}{shared if ARCHIVE.exists() else ''}"
