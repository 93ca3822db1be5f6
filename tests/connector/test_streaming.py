"""The streaming source as Spark calls it: every change once, through moves, restarts and replays."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from elasticscan.base.errors import (
    ContinuationKeyError,
    InvalidCall,
)
from elasticscan.base.hashing import slots_of
from elasticscan.connector import ElasticScanSource
from elasticscan.connector.options import parse_options
from elasticscan.connector.streams.changes import ROWS_PER_TASK, task_limits
from elasticscan.connector.streams.offsets import InChanges, Offset, OffsetFormat
from elasticscan.store import Store
from elasticscan.topology import SlotSet
from tests.base.topology_changes import change_topology
from tests.connector.conftest import SCHEMA
from tests.connector.stream_query import History, Query, Row, carried, read_all, rows, without_times
from tests.seeds import seeds

pytestmark = pytest.mark.usefixtures("unflushed")


def query(history: History, **options: str) -> Query:
    return Query(history.store.uri, options)


def newest(history: History) -> int:
    return history.store.context.catalog.newest().state.versions[1]


def forget(history: History) -> None:
    """Nothing but the newest snapshot is kept from now on, unless a lease says so."""
    history.store.table("t").set_retention("0s")
    history.store.table("t").compact()


# Random programs


def disturb(history: History, rng: random.Random) -> None:
    """Something that changes where rows are, but not which there are."""
    match rng.choice(["move", "move", "move", "compact", "collect"]):
        case "move":
            with contextlib.suppress(InvalidCall):
                change_topology(history.store, rng, f"n{rng.getrandbits(32)}")
        case "compact":
            history.store.table("t").compact()
        case "collect":
            history.store.collect_garbage()


def write_something(history: History, rng: random.Random, others: bool = True) -> None:
    what = rng.choices(["write", "delete", "merge", "overwrite", "other"], [6, 3, 2, 1, int(others)])[0]
    keys = rng.sample(range(400), rng.choice([1, 5, 30, 120]))
    value = rng.randrange(1_000) / 4
    if what == "write":
        history.write({key: (key, f"n{key % 7}", value) for key in keys})
    elif what == "delete":
        history.delete(keys)
    elif what == "merge":
        cut = rng.randint(0, len(keys))
        history.merge({key: (key, "merged", value) for key in keys[:cut]}, keys[cut:])
    elif what == "overwrite":
        history.write({key: (key, "over", value) for key in keys[:60]}, overwrite=True)
    else:
        data = pa.table({"id": keys, "name": ["x"] * len(keys), "v": [value] * len(keys)}, schema=SCHEMA)
        history.store.table("other").upsert(data)


LIMITS: list[ReadLimit | None] = [None, None, None, ReadAllAvailable()]
MOST = [
    *({"maxRowsPerTrigger": most} for most in ("5", "17", "90", "200")),
    {"maxBytesPerTrigger": "1k"},
]
FILTERS: dict[str | None, Callable[[int], bool]] = {
    None: lambda key: True,
    "id = 40": lambda key: key == 40,
    "id IN (3, 17, 250, 9000)": lambda key: key in (3, 17, 250),
    "id BETWEEN 90 AND 99 AND id != 95": lambda key: 90 <= key < 100 and key != 95,
    "id = 1 AND id = 2": lambda key: False,
}


@pytest.mark.parametrize("seed", seeds(16, short=5))
def test_every_change_is_read_once_through_moves_restarts_and_replays(tmp_path: Path, seed: int) -> None:
    play(tmp_path, seed)


def play(directory: Path, seed: int) -> None:
    rng = random.Random(seed)
    with Store.create(directory / "random.store", ["s1", "s2"], tablets=4, slots=32) as store:
        history = History(store)
        store.create_table("other", SCHEMA, ["id"])
        for _ in range(rng.randint(0, 4)):
            write_something(history, rng)
        options = {"readChangeFeed": rng.choice(["true", "false"]), **rng.choice(MOST)}
        options |= rng.choice([{}, {"skipChangeCommits": "true"}, {"minPartitions": "3"}])
        condition = rng.choice([None, *FILTERS])
        if condition is not None:
            options["filter"] = condition
        keeps = rng.random() < 0.5
        begin, snapshot, begun = beginning(history, rng)
        options |= begin
        if not keeps:  # only the stream's own lease keeps what it needs
            options["streamName"] = "random"
        found = Query(store.uri, options)
        found.step(rng.choice(LIMITS), rng.choice([None, "logged", "read"]))
        if not keeps:
            store.table("t").set_retention("0s")
        found.meanwhile = lambda: rng.random() < 0.3 and disturb(history, rng)
        steps = ["write", "write", "disturb", "step", "step", "step", "restart", "again", "ends"]
        for _ in range(rng.randint(10, 30)):
            match rng.choice(steps):
                case "write":
                    write_something(history, rng)
                case "disturb":
                    disturb(history, rng)
                case "step":
                    found.step(rng.choice(LIMITS), rng.choice([None, None, None, "logged", "read"]))
                case "restart":
                    found.restart()
                case "again" if keeps and found.done > 1:
                    reader, number = found.started(), rng.randrange(1, found.done)
                    parts = reader.partitions(found.ends[number - 1], found.ends[number])
                    assert Counter(read_all(reader, parts)) == Counter(found.batches[number])
                case "ends":  # with the commits of now: later ones are left for the next run
                    found.restart()
                    found.available_now, known = True, newest(history)
                    found.started()
                    write_something(history, rng)
                    found.run_to_the_end()
                    assert found.ends[-1].get("commit", 0) <= known
                    found.restart()
                    found.available_now = False
        found.run_to_the_end()
        assert found.reports[-1] == UP_TO_DATE
        expected = history.expected(found, snapshot, begun)
        holds = FILTERS[condition]
        assert without_times(found, found.rows) == Counter(
            {row: times for row, times in expected.items() if holds(row[0])}
        )


UP_TO_DATE = {"behindCommits": 0, "behindRows": 0, "behindSeconds": 0.0}


def beginning(history: History, rng: random.Random) -> tuple[dict[str, str], int | None, int]:
    """Options that say where a stream begins; the snapshot that it reads then, and the last commit before."""
    table, last = history.store.table("t"), newest(history)
    first = rng.randint(1, last + 1)
    match rng.choice(["now", "now", "latest", "earliest", "version", "time"]):
        case "latest":
            return {"startingVersion": "latest"}, None, last
        case "earliest":
            oldest = table.definition.oldest_snapshot
            return {"startingVersion": "earliest"}, oldest, oldest
        case "version":
            return {"startingVersion": str(first)}, None, first - 1
        case "time" if any(commit.number == first for commit in table.history()):
            made = next(commit.created_at for commit in table.history() if commit.number == first)
            return {"startingTimestamp": repr(made)}, None, first - 1
    return {}, last, last


# Where it begins, and what it reads


def test_a_schema_of_some_columns_is_honoured(history: History) -> None:
    kind, number = StructField("_change_type", StringType()), StructField("_commit_version", LongType())
    for wanted, first in (([kind, StructField("ID", LongType())], ("delete", 7)), ([number], None)):
        found = query(history, readChangeFeed="true")
        found.schema = StructType(wanted)
        found.step()
        history.delete([7])
        found.step()
        assert found.batches[1] == [first or (newest(history),)]
        history.write(rows(7, 8))


def test_a_stream_that_ends_begins_no_later_than_it_ends(history: History) -> None:
    for start in ({"startingVersion": "latest"}, {}):
        reader = query(history, **start).made()
        reader.prepareForTriggerAvailableNow()
        known = newest(history)
        history.write(rows(0, 10, v=1.0))
        begun = reader.initialOffset()
        assert begun.get("at", begun.get("commit")) == known


def test_an_idle_poll_opens_no_file(history: History) -> None:
    found = query(history)
    assert found.made().reportLatestOffset() is None
    found.run_to_the_end()
    shards = Path(history.store.uri) / "shards"
    shards.rename(shards.with_name("away"))
    assert found.started().latestOffset(found.ends[-1], ReadAllAvailable()) == found.ends[-1]


def test_options_give_the_default_limit_and_everything_means_everything(history: History) -> None:
    both = {"maxRowsPerTrigger": "900", "maxBytesPerTrigger": "3k"}
    for options, limit in (
        ({}, ReadAllAvailable()),
        ({"maxRowsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "10g"}, ReadMaxBytes(10 << 30)),
        (both, ReadMaxRows(900)),
    ):
        assert query(history, **options).made().getDefaultReadLimit() == limit
    found = query(history, **both)
    found.step()
    assert 0 < len(found.rows) < 500
    found = query(history, maxRowsPerTrigger="5")
    found.step(ReadAllAvailable())
    assert len(found.rows) == 1_000


@pytest.mark.parametrize(
    ("rows", "tasks"), [(0, 1), (1.0, 1), (5.0, 5), (5.05, 5), (5.2, 6), (20.0, 8), (40.0, 10)]
)
def test_tasks_are_few_within_the_users_bound(rows: float, tasks: int) -> None:
    """Beyond eight they are four times as large; a few rows more than five tasks hold begin no sixth one."""
    asked = {"store": "/s", "table": "t"}
    for more, count in (
        ({}, tasks),
        ({"numPartitions": "3"}, min(tasks, 3)),
        ({"minPartitions": "9"}, max(tasks, 9)),
    ):
        size, most = task_limits(1_000, rows * ROWS_PER_TASK, parse_options(asked | more))
        assert most == count
        assert size * count >= 1_000


def test_conditions_on_the_key_leave_slots_out_of_the_snapshot_and_of_changes(history: History) -> None:
    found = query(history, filter="id IN (40, 7) AND v > 0", maxRowsPerTrigger="100", readChangeFeed="true")
    wanted = SlotSet.of((slot, slot + 1) for slot in slots_of([pa.array([7, 40], pa.int64())], 64).tolist())
    reader = found.started()
    start = carried(reader.initialOffset())
    for _ in range(2):
        end = carried(reader.latestOffset(start, ReadMaxRows(100)))
        assert "commit" in end, "rows that the filter leaves out by their slots don't count"
        parts = reader.partitions(start, end)
        planned = [history.store.context.sealer.open(part.key).slots for part in parts]  # type: ignore[attr-defined]
        assert reduce(SlotSet.__or__, planned) == wanted
        assert {row[0] for row in read_all(reader, parts)} == {7, 40}
        start = end
        history.write(rows(0, 300, v=2.0))


# Refused


def test_an_offset_of_another_store_or_state_or_one_that_was_edited_is_refused(
    history: History, tmp_path: Path
) -> None:
    other = Store.create(tmp_path / "other.store", ["s1"], tablets=1, slots=64)
    foreign = query(History(other)).made().initialOffset()
    stepped = query(history, maxRowsPerTrigger="100")
    stepped.step()
    context, table = history.store.context, history.store.table("t").definition.id
    form = OffsetFormat(history.store.backend.identity, context.sealer.offsets)
    ahead = form.write(Offset(table, InChanges(newest(history) + 5)))  # the store went back in time
    for offset, message in (
        (foreign, "store"),
        (stepped.ends[0] | {"slot": 0}, "altered"),
        (ahead, "newest is .*; use a new checkpoint"),
    ):
        reader = query(history, startingVersion="latest").made()
        for call in calls(reader, offset)[: 2 if offset is ahead else 4]:
            with pytest.raises(ContinuationKeyError, match=message):
                call()


def calls(reader: DataSourceStreamReader, offset: dict[str, Any]) -> list[Callable[[], Any]]:
    good = reader.initialOffset()
    return [
        lambda: reader.latestOffset(offset, ReadAllAvailable()),
        lambda: reader.partitions(good, offset),
        lambda: reader.partitions(offset, good),
        lambda: reader.commit(offset),
    ]


# Batch reads of changes


def batch(history: History, **options: str) -> list[Row]:
    source = ElasticScanSource(
        {"store": history.store.uri, "table": "t", "readChangeFeed": "true", **options}
    )
    reader = source.reader(source.schema())
    return read_all(reader, reader.partitions())  # type: ignore[arg-type]


def test_a_batch_reads_the_changes_of_commits_both_named_ones_included(history: History) -> None:
    rng = random.Random(3)
    for _ in range(12):
        write_something(history, rng, others=False)
    made = {commit.number: commit.created_at for commit in history.store.table("t").history()}
    everything = history.after(0)
    for _ in range(8):
        first, last = sorted(rng.choices(range(2, newest(history) + 1), k=2))
        expected = Counter(row for row in everything if first <= row[4] <= last and row[0] != 2)
        for names in (
            {"startingVersion": str(first), "endingVersion": str(last)},
            {"startingTimestamp": repr(made[first]), "endingTimestamp": repr(made[last])},
        ):
            found = batch(history, **names, filter="id != 2", batchSize="3")
            assert Counter(row[:-1] for row in found) == expected
            assert {row[4]: row[5].timestamp() for row in found}.items() <= {
                row[4]: pytest.approx(made[row[4]], abs=1e-5) for row in found
            }.items()
    whole = batch(history, startingVersion="earliest", columns="id", minPartitions="4")
    assert Counter((row[0], row[1]) for row in whole) == Counter((row[0], row[3]) for row in everything)
    assert batch(history, startingTimestamp=datetime.now(UTC).isoformat()) == []  # nothing was done since
