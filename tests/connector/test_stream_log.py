"""What the log says of a micro-batch: for progress as Spark reports it, and from a stream that runs."""

from __future__ import annotations

import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from elasticscan.connector import register
from elasticscan.connector.streams.log import StreamLog, lines
from elasticscan.store import Store

BEHIND = {"commit": 9, "behindCommits": 2, "behindRows": 1_500, "behindSeconds": 61.2}
NOT_BEHIND = {"commit": 9, "behindCommits": 0, "behindRows": 0, "behindSeconds": 0.0}


def offset(slot: int = 0, table: int = 1, **where: Any) -> dict[str, Any]:
    return {"v": 1, "store": "ab12", "table": table, "slot": slot, **where, "mac": "00ff"}


def source(start: Any, end: Any, latest: Any = None, rows: int = 7) -> dict[str, Any]:
    """A source as a Python listener gets it: offsets are text."""
    texts = {"startOffset": start, "endOffset": end, "latestOffset": latest}
    as_text = {name: "None" if value is None else json.dumps(value) for name, value in texts.items()}
    return {"description": "a source", "numInputRows": rows, **as_text}


def progress(*sources: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "fc31e6d3-8257-458b-a71f-4c8a9216a2e4",
        "name": "copy",
        "batchId": 3,
        "batchDuration": 912,
        "durationMs": {"addBatch": 500},
        "sources": sources,
    } | more


def test_a_batch_of_a_snapshot_tells_its_slots() -> None:
    found = progress(source(offset(0, at=2), offset(41, at=2), BEHIND, rows=8_995))
    (line,) = lines(found)
    assert line == (
        "stream copy, batch 3: 8,995 rows in 0.9 s, from snapshot 2 at slot 0 to slot 41; "
        "left to read: 2 commits, about 1,500 rows, the oldest 61 s old"
    )


def test_a_batch_of_changes_tells_its_commits() -> None:
    found = progress(source(offset(commit=4), offset(commit=6), NOT_BEHIND, rows=1))
    (line,) = lines(found)
    assert line == (
        "stream copy, batch 3: 1 row in 0.9 s, from the end of commit 4 to the end of commit 6; "
        "left to read: nothing"
    )


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        (offset(41, at=2), offset(commit=2), "from snapshot 2 at slot 41 to the end of commit 2"),
        (offset(41, at=2), offset(50, at=5), "from snapshot 2 at slot 41 to snapshot 5 at slot 50"),
        (offset(8, commit=2), offset(9, commit=2), "from commit 3 at slot 8 to commit 3 at slot 9"),
        (None, offset(9, at=2, since={"at": 2}), "from snapshot 2 at slot 0 to slot 9"),
        (None, offset(commit=5, since={"commit": 4}), "from the end of commit 4 to the end of commit 5"),
        (None, offset(commit=5), ", to the end of commit 5"),
    ],
)
def test_every_pair_of_offsets_has_its_words(start: Any, end: Any, told: str) -> None:
    (line,) = lines(progress(source(start, end)))
    assert line.endswith(told)


def test_a_stream_without_a_name_is_called_by_its_id() -> None:
    (line,) = lines(progress(source(offset(commit=4), offset(commit=6)), name=None))
    assert line.startswith("stream fc31e6d3, batch 3: ")


def test_of_two_tables_each_has_a_line_with_its_id() -> None:
    one, other = (source(offset(commit=4, table=n), offset(commit=6, table=n)) for n in (1, 2))
    first, second = lines(progress(one, other))
    assert "7 rows of table 1 in" in first
    assert "7 rows of table 2 in" in second


@pytest.mark.parametrize("end", [{"logOffset": 3}, {"topic": {"0": 17}}, 12, None, "gone"])
def test_other_sources_are_passed_over(end: Any) -> None:
    own = source(offset(commit=4), offset(commit=6))
    assert len(list(lines(progress(source(None, end), own)))) == 1
    assert list(lines(progress(source(None, end)))) == []


def test_a_look_that_found_nothing_new_is_no_batch() -> None:
    same = offset(commit=6)
    assert list(lines(progress(source(same, same), durationMs={"latestOffset": 3}))) == []


def test_planned_scans_are_told_as_of_the_batch_before() -> None:
    report = NOT_BEHIND | {"planned": {"base": 3, "virtual": 1}}
    (line,) = lines(progress(source(offset(0, at=2), offset(41, at=2), report)))
    assert line.endswith("; the batch before was planned as 3 base-shard scans, 1 virtual scans")


@pytest.mark.spark
def test_a_stream_in_spark_logs_each_of_its_batches(
    spark: SparkSession, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    register(spark)
    listener = StreamLog(logging.getLogger("elasticscan.test"))
    spark.streams.addListener(listener)
    try:
        with caplog.at_level(logging.INFO, "elasticscan.test"):
            query = (
                spark.readStream.format("elasticscan")
                .option("maxRowsPerTrigger", "600")
                .load(f"{store.uri}/t")
                .writeStream.format("noop")
                .queryName("watched")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(60)
            for _ in range(100):  # the listener hears of it a moment later
                if len(caplog.messages) == 2:
                    break
                time.sleep(0.1)
    finally:
        spark.streams.removeListener(listener)
    first, second = caplog.messages
    assert first.startswith("stream watched, batch 0: ")
    assert "from snapshot 2 at slot 0 to slot " in first
    assert " to the end of commit 2; left to read: nothing" in second
    told = [int(line.split("batch ")[1].split(": ")[1].split(" row")[0]) for line in (first, second)]
    assert sum(told) == 1_000
    assert re.search(r"; left to read: about \d{3} rows$", first)
