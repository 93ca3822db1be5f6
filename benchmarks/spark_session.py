"""The Spark session of the comparisons: two cores, quiet, and elasticscan registered."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from elasticscan.connector import register


def start_spark(**more: str) -> SparkSession:
    """Start it with more settings, dots written as two underscores."""
    # Spark looks for sources with the Python that this names; a setting of the session is too late.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    settings |= {name.replace("__", "."): value for name, value in more.items()}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark
