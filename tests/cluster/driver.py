"""A Spark driver that does jobs until its standard input ends.

    python -m tests.cluster.driver MASTER DIRECTORY SETTINGS

Each line that it is sent is a job of `jobs.py` as JSON, with a number, which its answer bears as well.
"""

from __future__ import annotations

import json
import sys
import warnings

from pyspark.sql import SparkSession

from tests.base.processes import tell
from tests.base.quick_java import QUICK_JAVA
from tests.cluster.jobs import JOBS


def session(master: str, place: str, settings: dict[str, str]) -> SparkSession:
    warnings.simplefilter("ignore")  # of PySpark about pandas
    building = SparkSession.builder.master(master).appName("elasticscan-cluster")
    fixed = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "512m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -Djava.io.tmpdir={place}",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.local.dir": place,
        "spark.sql.warehouse.dir": f"{place}/warehouse",
        "spark.sql.session.timeZone": "UTC",
    }
    for name, value in (fixed | settings).items():
        building = building.config(name, value)
    return building.getOrCreate()


def main() -> None:
    master, place, settings = sys.argv[1:]
    spark = session(master, place, json.loads(settings))
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            # In the main thread: in another one Spark finds no Python source to write with.
            tell(number=asked["number"], result=JOBS[asked["job"]](spark, **asked["given"]))
        except Exception as error:  # whatever it is, the test wants to know of it
            tell(number=asked["number"], error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
