"""A Spark driver with one stream, to be killed.

python -m tests.soak.driver STREAM TRIGGER URI PLACE ROWS RUN

STREAM is `copy`, from the source's change feed into another table of the store, or `feed`, into Parquet.
TRIGGER is `follow`, which goes on for ever, or `drain`, which ends with the newest commit. ROWS is the
most of a micro-batch, RUN counts the runs of one checkpoint. Says as JSON lines which micro-batches are
done, and why it ended. Takes everything that it started along when its standard input ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elasticscan.connector import register
from tests.cluster.driver import session as cluster_session
from tests.soak.processes import tell
from tests.soak.programs import COPY, SOURCE

FAILED = 3  # the exit code of a stream that ended with an error


def session(place: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # All offsets are wanted at the end, to know what each micro-batch had to hold.
    more = {"spark.driver.memory": "1g", "spark.sql.streaming.minBatchesToRetain": "1000000"}
    # A task may fail three times: its worker is killed, too.
    return cluster_session("local[2,4]", str(place / "tmp"), more)


def start(
    spark: SparkSession, stream: str, trigger: str, uri: str, place: Path, rows: str, run: int
) -> StreamingQuery:
    reading = spark.readStream.format("elasticscan").option("readChangeFeed", "true")
    reading = reading.option("maxRowsPerTrigger", rows).option("streamName", stream)
    frame = reading.option("minPartitions", "2").load(f"{uri}/{SOURCE}")
    if stream == "copy":
        if run % 2 == 0:  # the sink skips them just as well
            frame = frame.where("_change_type <> 'update_preimage'")
        writing = frame.writeStream.format("elasticscan").option("deleteColumn", "_change_type")
        writing = writing.options(store=uri, table=COPY)
    else:
        writing = frame.writeStream.format("parquet").option("path", str(place / "feed"))
    writing = writing.queryName(stream).option("checkpointLocation", str(place / "checkpoints" / stream))
    how: dict[str, Any] = {"processingTime": "200 milliseconds"}
    return writing.trigger(**(how if trigger == "follow" else {"availableNow": True})).start()


def follow(query: StreamingQuery) -> int:
    """Tell of micro-batches until the query ends; the exit code."""
    message = -1
    try:
        active = True
        while active:
            time.sleep(0.1)
            active = query.isActive
            for progress in query.recentProgress:
                if progress.batchId > message and progress.numInputRows:
                    message = progress.batchId
                    tell(batch=message, rows=progress.numInputRows)
        query.awaitTermination()
    except PySparkException as error:
        tell(error=str(error))
        return FAILED
    tell(ended=True)
    return 0


def _until_the_input_ends() -> None:
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)  # of Spark's processes, those in other groups end with the JVM


def main() -> None:
    stream, trigger, uri, place, rows, run = sys.argv[1:]
    Thread(target=_until_the_input_ends, daemon=True).start()
    spark = session(Path(place))
    spark.sparkContext.setLogLevel("WARN")
    register(spark)
    try:
        code = follow(start(spark, stream, trigger, uri, Path(place), rows, int(run)))
    except Exception as error:  # of the start, or of a JVM that is being killed
        tell(error=f"{type(error).__name__}: {error}")
        code = FAILED
    os._exit(code)


if __name__ == "__main__":
    main()
