"""The Spark session of the comparisons: two cores, quiet, and elasticscan registered."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from elasticscan.connector import register


def start_spark(**more: str) -> SparkSession:
    """Start a session with more settings; a dot in a name is written as two underscores."""
    # Spark finds data sources with this Python; a setting of the session would be too late.
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
