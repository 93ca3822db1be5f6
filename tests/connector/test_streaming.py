"""The streaming source as Spark calls it: every change once, through moves, restarts and replays."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType

from elasticscan.base.errors import (
    ContinuationKeyError,
    ElasticScanError,
    InvalidOption,
    InvalidTopologyChange,
    NotFound,
    SnapshotExpired,
    TableChanged,
)
from elasticscan.base.hashing import slots_of
from elasticscan.connector import ElasticScanSource
from elasticscan.connector.options import parse_options
from elasticscan.connector.store_cache import open_store
from elasticscan.connector.streams import lease as stream_lease
from elasticscan.connector.streams.changes import ROWS_PER_TASK, ChangeFeedReader, task_limits
from elasticscan.storage.disk import LocalDisk
from elasticscan.store import Store
from elasticscan.topology import SlotSet
from tests.connector.conftest import SCHEMA
from tests.connector.stream_query import History, Query, Row, carried, read_all, rows, without_times
from tests.seeds import seeds

pytestmark = pytest.mark.usefixtures("unflushed")


def query(history: History, **options: str) -> Query:
    return Query(history.store.uri, options)


def newest(history: History) -> int:
    return history.store.context.catalog.versions()[1]


def forget(history: History) -> None:
    """Nothing but the newest snapshot is kept from now on, unless a lease says so."""
    history.store.table("t").set_retention("0s")
    history.store.table("t").compact()


# ------------------------------------------------------------------------ snapshot, then changes


def test_the_commit_that_made_the_table_makes_no_batch(history: History) -> None:
    made = history.store.table("t").definition.created_commit
    found = query(history, startingVersion=str(made), maxRowsPerTrigger="1000")
    found.run_to_the_end()
    assert [end["commit"] for end in found.ends] == [newest(history)]


def test_a_schema_of_some_columns_is_honoured(history: History) -> None:
    found = query(history, readChangeFeed="true")
    found.schema = StructType([StructField("_change_type", StringType()), StructField("ID", LongType())])
    found.step()
    history.delete([7])
    found.step()
    assert found.batches[0][0][0] == "insert"
    assert found.batches[1] == [("delete", 7)]
    found = query(history, readChangeFeed="true")
    found.schema = StructType([StructField("_commit_version", LongType())])
    found.step()
    history.delete([8])
    found.step()
    assert found.batches[1] == [(newest(history),)]


# ------------------------------------------------------------------------ where it begins


def test_a_version_names_the_first_commit_that_is_wanted(history: History) -> None:
    number = history.write(rows(5, 8, v=2.0))
    found = query(history, startingVersion=str(number), readChangeFeed="true")
    found.run_to_the_end()
    assert without_times(found, found.rows) == history.expected(found, None, number - 1)
    found = query(history, startingVersion=str(newest(history) + 1))
    assert found.step()  # the first batch is made even if it is empty
    history.write(rows(1, 2, v=9.0))
    assert found.step()
    assert found.rows == [(1, "n1", 9.0)]


def test_a_time_names_the_first_commit_that_is_wanted(history: History) -> None:
    number = history.write(rows(5, 8, v=2.0))
    made = next(c.created_at for c in history.store.table("t").history() if c.number == number)
    found = query(history, startingTimestamp=repr(made))
    found.run_to_the_end()
    assert Counter(found.rows) == Counter(history.after(number - 1))
    found = query(history, startingTimestamp=repr(made + 1e-3))
    found.step()
    assert found.rows == []


def test_a_beginning_that_is_still_to_come_is_refused(history: History) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(InvalidOption, match="is in the future"):
        query(history, startingTimestamp=soon.isoformat()).step()
    with pytest.raises(NotFound, match="newest"):
        query(history, startingVersion="99").step()
    with pytest.raises(NotFound, match="still to come"):
        batch(history, startingTimestamp=soon.isoformat())
    with pytest.raises(NotFound, match="still to come"):
        batch(history, startingVersion="1", endingTimestamp=soon.isoformat())
    now = datetime.now(UTC).isoformat()
    assert batch(history, startingTimestamp=now) == []  # nothing was done since


def test_the_time_that_a_change_tells_finds_its_commit_again(history: History) -> None:
    for number in range(40):
        history.write(rows(number, number + 1, v=2.0))
    message = {row[4]: row[5].isoformat() for row in batch(history, startingVersion="2")}
    for number, stamp in message.items():
        found = batch(history, startingTimestamp=stamp, endingTimestamp=stamp)
        assert {row[4] for row in found} == {number}


# ------------------------------------------------------------------------ limits


@pytest.mark.parametrize("feed", ["false", "true"])
def test_rows_are_bounded_in_the_snapshot_and_in_changes(history: History, feed: str) -> None:
    found, begun = query(history, maxRowsPerTrigger="100", readChangeFeed=feed), newest(history)
    found.run_to_the_end()
    history.write(rows(0, 30, v=1.0))
    history.write(rows(60, 100, v=3.0))
    history.write(rows(0, 400, v=4.0))  # larger than a batch: cut by slots
    history.write(rows(300, 310, v=2.0), overwrite=True)
    history.delete(list(range(300, 305)))
    found.run_to_the_end()
    assert without_times(found, found.rows) == history.expected(found, begun, begun)
    assert max(len(batch) for batch in found.batches) <= 100
    assert len(found.batches) < (22 if feed == "false" else 40)
    assert any("commit" in end and end["slot"] for end in found.ends)


def test_options_give_the_default_limit_and_everything_means_everything(history: History) -> None:
    assert query(history).made().getDefaultReadLimit() == ReadAllAvailable()
    assert query(history, maxRowsPerTrigger="5").made().getDefaultReadLimit() == ReadMaxRows(5)
    assert query(history, maxBytesPerTrigger="10g").made().getDefaultReadLimit() == ReadMaxBytes(10 << 30)
    both = query(history, maxRowsPerTrigger="900", maxBytesPerTrigger="3k")
    assert both.made().getDefaultReadLimit() == ReadMaxRows(900)
    both.step()
    assert 0 < len(both.rows) < 500
    found = query(history, maxRowsPerTrigger="5")
    found.step(ReadAllAvailable())
    assert len(found.rows) == 1_000


def test_few_tasks_are_planned_unless_more_are_asked_for(history: History) -> None:
    found = query(history, minPartitions="5")
    found.step()
    history.write(rows(0, 600, v=1.0))
    found.step()
    assert Counter(found.batches[1]) == Counter(rows(0, 600, v=1.0).values())
    assert [len(sizes) for sizes in found.sizes] == [5, 5]
    assert 0 < min(found.sizes[1]) <= max(found.sizes[1]) < 300


@pytest.mark.parametrize(
    ("rows", "tasks"),
    [(0, 1), (1.0, 1), (5.0, 5), (5.05, 5), (5.2, 6), (20.0, 8), (40.0, 10)],
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


# ------------------------------------------------------------------------ the end of now


def test_a_stream_that_ends_reads_what_was_there_when_it_began(history: History) -> None:
    assert isinstance(query(history).made(), SupportsTriggerAvailableNow)
    begun = newest(history)
    found = Query(history.store.uri, {"maxRowsPerTrigger": "300"}, available_now=True)
    reader = found.started()
    history.write(rows(0, 10, v=1.0))  # comes too late
    found.run_to_the_end()
    assert Counter(found.rows) == Counter(history.at(begun))
    assert [len(batch) <= 300 for batch in found.batches] == [True] * len(found.batches)
    assert reader is found.reader
    found.restart()
    history.write(rows(10, 20, v=2.0))
    found.started()
    history.write(rows(20, 30, v=3.0))
    found.run_to_the_end()
    assert Counter(found.rows) == Counter(
        [*history.at(begun), *rows(0, 10, v=1.0).values(), *rows(10, 20, v=2.0).values()]
    )


def test_a_stream_that_ends_begins_no_later_than_it_ends(history: History) -> None:
    for start in ("latest", None):
        found = Query(
            history.store.uri, {} if start is None else {"startingVersion": start}, available_now=True
        )
        reader = found.made()
        reader.prepareForTriggerAvailableNow()
        known = newest(history)
        history.write(rows(0, 10, v=1.0))
        begun = reader.initialOffset()
        assert begun.get("at", begun.get("commit")) == known


# ------------------------------------------------------------------------ idle


@contextlib.contextmanager
def opened_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    paths: list[str] = []
    real = LocalDisk.open

    def noted(self: LocalDisk, path: str) -> Any:
        paths.append(path)
        return real(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalDisk, "open", noted)
        yield paths


def test_an_idle_poll_looks_at_versions_alone(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    found = query(history, maxRowsPerTrigger="100", streamName="idle")
    found.run_to_the_end()
    assert found.reader is not None
    context = open_store(history.store.uri).context
    transactions: list[str] = []
    real = context.catalog.reading

    def noted() -> Any:
        transactions.append("read")
        return real()

    monkeypatch.setattr(context.catalog, "reading", noted)
    with opened_files(monkeypatch) as paths:
        for _ in range(50):
            assert found.reader.latestOffset(found.ends[-1], ReadMaxRows(100)) == found.ends[-1]
            assert found.reader.reportLatestOffset() is not None
    assert paths == []
    assert transactions == []


def test_the_lag_is_reported(history: History) -> None:
    found = query(history, maxRowsPerTrigger="600")
    assert found.made().reportLatestOffset() is None
    found.step()
    report = found.reports[-1]
    assert report is not None
    assert report["commit"] == newest(history)
    assert 300 < report["behindRows"] < 500
    found.run_to_the_end()
    ended = {"behindCommits": 0, "behindRows": 0, "behindSeconds": 0.0}
    assert found.reports[-1] == {"commit": newest(history), **ended}
    history.write(rows(0, 1_000, v=3.0))
    history.write(rows(0, 7, v=1.0))
    found.step()  # a part of the first
    report = found.reports[-1]
    assert report is not None
    assert report["behindCommits"] == 2
    assert 250 < report["behindRows"] < 550
    assert report["behindSeconds"] >= 0


# ------------------------------------------------------------------------ replays


def disturb(history: History, rng: random.Random) -> None:
    """Something that changes where rows are, but not which there are."""
    store = history.store
    what = rng.choice(["move", "move", "split", "join", "expand", "contract", "compact", "collect"])
    placement = store.topology.placement
    names = dict(store.topology.shard_names)
    tablet = rng.choice(placement.tablets)
    with contextlib.suppress(InvalidTopologyChange):
        match what:
            case "move":
                store.move(tablet.id, rng.choice(list(names.values())))
            case "split":
                store.split(tablet.id)
            case "join":
                at = placement.tablets.index(tablet)
                if at + 1 < len(placement.tablets):
                    store.join(tablet.id, placement.tablets[at + 1].id)
            case "expand" if len(names) < 5:
                free = next(f"s{n}" for n in range(1, 99) if f"s{n}" not in names.values())
                store.expand([free])
            case "contract" if len(names) > 1:
                store.contract(rng.choice(list(names.values())))
            case "compact":
                store.table("t").compact()
            case "collect":
                store.collect_garbage()


def write_something(history: History, rng: random.Random) -> None:
    what = rng.choices(["write", "delete", "merge", "overwrite", "other"], [6, 3, 2, 1, 1])[0]
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


LIMITS: list[ReadLimit | None] = [
    None,
    None,
    ReadAllAvailable(),
    ReadMaxRows(1),
    ReadMaxRows(17),
    ReadMaxRows(90),
    ReadMaxBytes(1_000),
]


FILTERS: dict[str | None, Callable[[int], bool]] = {
    None: lambda key: True,
    "id = 40": lambda key: key == 40,
    "id IN (3, 17, 250, 9000)": lambda key: key in (3, 17, 250),
    "id BETWEEN 90 AND 99 AND id != 95": lambda key: 90 <= key < 100 and key != 95,
}


@pytest.mark.parametrize("seed", seeds(12, short=4))
def test_every_change_is_read_once_through_moves_restarts_and_replays(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with Store.create(tmp_path / "random.store", ["s1", "s2"], tablets=4, slots=32) as store:
        store.create_table("t", SCHEMA, ["id"])
        store.create_table("other", SCHEMA, ["id"])
        history = History(store)
        for _ in range(rng.randint(0, 4)):
            write_something(history, rng)
        options = {
            "readChangeFeed": rng.choice(["true", "false"]),
            "maxRowsPerTrigger": rng.choice(["25", "200"]),
        }
        options |= rng.choice([{}, {"skipChangeCommits": "true"}, {"minPartitions": "3"}])
        condition = rng.choice([None, *FILTERS])
        if condition is not None:
            options["filter"] = condition
        start = rng.choice([None, None, "latest", "earliest", "1"])
        keeps = rng.random() < 0.5
        if start is not None:
            options["startingVersion"] = start
        if not keeps:  # only the stream's own lease keeps what it needs
            options["streamName"] = "random"
        found, begun = Query(store.uri, options), newest(history)
        snapshot = None if start in ("latest", "1") else begun
        if start == "earliest":
            snapshot = begun = store.table("t").definition.oldest_snapshot
        found.step(rng.choice(LIMITS), rng.choice([None, "logged", "read"]))
        if not keeps:
            store.table("t").set_retention("0s")
        found.meanwhile = lambda: rng.random() < 0.3 and disturb(history, rng)
        for _ in range(rng.randint(10, 30)):
            match rng.choice(["write", "write", "disturb", "step", "step", "step", "restart", "again"]):
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
                    assert Counter(read_all(reader, parts)[0]) == Counter(found.batches[number])
        found.run_to_the_end()
        expected = history.expected(found, snapshot, 0 if start == "1" else begun)
        holds = FILTERS[condition]
        assert without_times(found, found.rows) == Counter(
            {row: times for row, times in expected.items() if holds(row[0])}
        )


def slots_of_keys(history: History, *keys: int) -> SlotSet:
    hashed = slots_of([pa.array(keys, pa.int64())], 64)
    return SlotSet.of((int(slot), int(slot) + 1) for slot in hashed)


def slots_planned(history: History, parts: Sequence[InputPartition]) -> SlotSet:
    planned = [history.store.context.sealer.open(part.key).slots for part in parts]  # type: ignore[attr-defined]
    return reduce(SlotSet.__or__, planned, SlotSet())


def test_conditions_on_the_key_leave_slots_out_of_the_snapshot_and_of_changes(history: History) -> None:
    found = query(history, filter="id IN (40, 7) AND v > 0", maxRowsPerTrigger="100", readChangeFeed="true")
    reader = found.started()
    first = carried(reader.initialOffset())
    end = carried(reader.latestOffset(first, ReadMaxRows(100)))
    assert "commit" in end, "rows that the filter leaves out by their slots don't count"
    parts = reader.partitions(first, end)
    assert slots_planned(history, parts) == slots_of_keys(history, 7, 40)
    assert sorted(row[0] for row in read_all(reader, parts)[0]) == [7, 40]
    history.write(rows(0, 300, v=2.0))
    history.delete([7])
    changes = carried(reader.latestOffset(end, ReadAllAvailable()))
    parts = reader.partitions(end, changes)
    assert slots_planned(history, parts) == slots_of_keys(history, 7, 40)
    kinds = sorted((row[0], row[3]) for row in read_all(reader, parts)[0])
    updated = ["update_postimage", "update_preimage"]
    assert kinds == [(7, "delete"), *((7, kind) for kind in updated), *((40, kind) for kind in updated)]


def test_a_filter_that_no_row_can_meet_makes_batches_without_tasks(history: History) -> None:
    found = query(history, filter="id = 1 AND id = 2", maxRowsPerTrigger="100")
    found.step()
    history.write(rows(0, 300, v=2.0))
    found.run_to_the_end()
    assert found.sizes == [[]] * len(found.ends)
    assert found.ends[-1]["commit"] == newest(history)


def test_changes_of_one_key_come_in_the_order_of_their_commits(history: History) -> None:
    found = query(history, readChangeFeed="true", startingVersion="latest", minPartitions="4")
    found.step()
    for value in (1.0, 2.0, 3.0):
        history.write(rows(0, 300, v=value))
        history.delete(list(range(100)))
        history.write(rows(50, 60, v=value), overwrite=True)
    found.run_to_the_end()
    reader = found.started()
    for part in reader.partitions(found.ends[0], found.ends[-1]):
        seen: dict[int, int] = {}
        for row in read_all(found.made(), [part])[0]:
            assert seen.get(row[0], 0) <= row[4]
            seen[row[0]] = row[4]


# ------------------------------------------------------------------------ what is kept


def test_a_batch_that_is_repeated_is_held_from_its_start_on(history: History) -> None:
    found, begun = query(history), newest(history)
    found.step()
    history.write(rows(0, 10, v=1.0))
    found.step(die="logged")
    found.options["streamName"] = "late"
    found.started()
    assert [lease["snapshot"] for lease in history.store.status()["leases"]] == [begun]


def test_a_lease_moves_forward_with_the_stream_but_is_written_rarely(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held() -> int:
        (lease,) = history.store.status()["leases"]
        assert lease["purpose"] == "stream:nightly"
        assert lease["expires_at"] > time.time() + 6 * 86_400
        return int(lease["snapshot"])

    found, begun = query(history, streamName="nightly"), newest(history)
    found.run_to_the_end()
    for value in (1.0, 2.0, 3.0):
        history.write(rows(0, 10, v=value))
        found.step()
    assert held() == begun
    monkeypatch.setattr(stream_lease, "MOVED_SECONDS", 0)
    history.write(rows(0, 10, v=4.0))
    found.step()
    assert begun < held() < newest(history)
    history.write(rows(0, 10, v=5.0))
    found.step()
    assert not found.step()
    assert held() == newest(history)  # a request for the next batch completes the last one


def test_a_stream_that_ends_says_how_far_it_came(history: History) -> None:
    found = query(history, streamName="nightly")
    found.available_now = True
    found.run_to_the_end()
    history.write(rows(0, 10, v=1.0))
    found.restart()
    found.run_to_the_end()
    (lease,) = history.store.status()["leases"]
    assert lease["snapshot"] == newest(history)


def test_a_stream_without_a_name_pins_nothing_but_its_snapshot(history: History) -> None:
    found = query(history, maxRowsPerTrigger="100")
    found.step()
    assert history.store.status()["leases"] == []
    found = query(history, maxRowsPerTrigger="100")
    history.store.table("t").set_retention("0s")
    begun = newest(history)
    found.step()
    (lease,) = history.store.status()["leases"]
    assert lease["snapshot"] == begun
    history.write(rows(0, 500, v=2.0))
    forget(history)
    while "at" in found.ends[-1]:
        found.step()
    assert Counter(found.rows) == Counter(history.at(begun))
    query(history, maxRowsPerTrigger="100").step()
    assert len({lease["id"] for lease in history.store.status()["leases"]}) <= 2


def test_a_gap_is_an_error_that_names_it(history: History) -> None:
    found = query(history)
    found.run_to_the_end()
    lost = history.write(rows(0, 10, v=1.0))
    last = history.write(rows(0, 10, v=2.0))
    forget(history)
    with pytest.raises(SnapshotExpired, match=f"{lost} to {last}") as caught:
        found.step()
    assert caught.value.fields["oldest"] == last


@pytest.mark.parametrize("feed", ["true", "false"])
def test_a_gap_is_passed_over_where_that_is_allowed(
    history: History, caplog: pytest.LogCaptureFixture, feed: str
) -> None:
    found = query(history, failOnDataLoss="false", maxRowsPerTrigger="2000", readChangeFeed=feed)
    found.run_to_the_end()
    history.write(rows(0, 10, v=1.0), overwrite=True)
    history.write(rows(0, 10, v=1.5))
    forget(history)
    last = history.write(rows(15, 18, v=2.0))
    with caplog.at_level(logging.WARNING):
        found.run_to_the_end()
    assert len(found.batches[-1]) == 3
    assert without_times(found, found.rows[1_000:]) == history.expected(found, None, last - 1)
    assert "no longer kept" in caplog.text


@pytest.mark.usefixtures("rows_in_files")
def test_a_gap_without_commits_of_the_table_is_none(history: History) -> None:
    found = query(history)
    found.run_to_the_end()
    history.store.create_table("other", SCHEMA, ["id"])
    history.store.table("t").set_retention("0s")
    history.store.move(1, "s2")
    history.store.table("t").compact()
    assert history.store.table("t").definition.oldest_snapshot == found.ends[-1]["commit"]
    found.options["streamName"] = "late"
    found.restart()
    assert not found.step()
    (lease,) = history.store.status()["leases"]
    assert lease["snapshot"] == history.store.table("t").definition.oldest_snapshot
    history.write(rows(0, 3, v=2.0))
    forget(history)
    found.run_to_the_end()
    assert len(found.rows) == 1_003


def test_a_snapshot_that_is_gone_is_an_error_or_left_for_the_oldest_one(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = query(history, maxRowsPerTrigger="300")
    found.step()
    history.write(rows(0, 1_000, v=2.0))
    forget(history)
    found.restart()
    for limit in (ReadMaxRows(300), ReadAllAvailable()):
        with pytest.raises(SnapshotExpired, match=r"which the stream reads, expired.*new checkpoint"):
            found.step(limit)
    assert len(found.ends) == 1  # a batch that cannot be read is not even begun
    assert found.started().partitions(found.ends[0], found.ends[0]) == []
    begun = found.start_of(0)
    with pytest.raises(SnapshotExpired, match="failOnDataLoss"):
        found.started().partitions(begun, found.ends[0])
    found.options["failOnDataLoss"] = "false"
    found.restart()
    assert found.started().partitions(found.start_of(0), found.ends[0]) == []
    found.run_to_the_end()
    assert {row[0] for row in found.rows} == set(range(1_000))
    assert {row[2] for row in found.rows} == {0.5, 2.0}


# ------------------------------------------------------------------------ refused


def calls(reader: DataSourceStreamReader, offset: dict[str, Any]) -> list[Callable[[], Any]]:
    good = reader.initialOffset()
    return [
        lambda: reader.latestOffset(offset, ReadAllAvailable()),
        lambda: reader.partitions(good, offset),
        lambda: reader.partitions(offset, good),
        lambda: reader.commit(offset),
    ]


def test_an_offset_of_another_store_or_one_that_was_edited_is_refused(
    history: History, tmp_path: Path
) -> None:
    other = Store.create(tmp_path / "other.store", ["s1"], tablets=1, slots=64)
    other.create_table("t", SCHEMA, ["id"])
    foreign = query(History(other)).made().initialOffset()
    stepped = query(history, maxRowsPerTrigger="100")
    stepped.step()
    for offset, message in ((foreign, "store"), (stepped.ends[0] | {"slot": 0}, "altered")):
        for call in calls(query(history).made(), offset):
            with pytest.raises(ContinuationKeyError, match=message):
                call()


def test_a_table_that_was_made_again_ends_its_streams(history: History) -> None:
    found, other = query(history), query(history)
    found.run_to_the_end()
    other.run_to_the_end()
    history.store.table("t").drop()
    with pytest.raises(TableChanged):
        found.step()
    history.store.create_table("t", SCHEMA, ["id"])
    with pytest.raises(TableChanged):
        found.step()
    other.restart()
    with pytest.raises(TableChanged):
        other.step()


def test_a_store_that_went_back_in_time_is_noticed(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    found = query(history)
    found.run_to_the_end()
    history.write(rows(0, 10, v=1.0))
    found.step()
    found.restart()
    reader = found.started()
    monkeypatch.setattr(reader, "_newest", lambda state: state.newest - 1)
    with pytest.raises(ContinuationKeyError, match="use a new checkpoint"):
        reader.latestOffset(found.ends[-1], ReadAllAvailable())


# ------------------------------------------------------------------------ batch reads of changes


def batch(history: History, **options: str) -> list[Row]:
    source = ElasticScanSource(
        {"store": history.store.uri, "table": "t", "readChangeFeed": "true", **options}
    )
    reader = source.reader(source.schema())
    assert isinstance(reader, ChangeFeedReader)
    parts = reader.partitions() or [InputPartition(None)]  # as Spark does
    return read_all(reader, parts)[0]  # type: ignore[arg-type]


def test_a_batch_reads_the_changes_of_commits_both_named_ones_included(history: History) -> None:
    first = history.write(rows(995, 1_005, v=1.0))
    last = history.delete([1, 2])
    history.write(rows(0, 1, v=9.0))
    found = batch(
        history, startingVersion=str(first), endingVersion=str(last), filter="id != 2", batchSize="3"
    )
    expected = [row for row in history.feed_after(first - 1) if row[4] <= last and row[0] != 2]
    assert Counter(row[:-1] for row in found) == Counter(expected)
    assert Counter(row[:-1] for row in batch(history, startingVersion="earliest")) == Counter(
        history.feed_after(0)
    )
    only = batch(history, startingVersion=str(last), endingVersion=str(last), columns="id", minPartitions="4")
    assert Counter(row[:2] for row in only) == {(1, "delete"): 1, (2, "delete"): 1}


def test_a_batch_of_changes_is_a_plan_that_stays(history: History) -> None:
    source = ElasticScanSource(
        {"store": history.store.uri, "table": "t", "readChangeFeed": "true", "startingVersion": "1"}
    )
    reader = source.reader(source.schema())
    history.store.table("t").set_retention("0s")
    parts, expected = reader.partitions(), Counter(history.feed_after(0))
    history.write(rows(0, 1_000, v=3.0))
    history.delete(list(range(500)))
    history.store.table("t").compact()
    history.store.expand(["s3"])
    found = read_all(reader, parts)[0]  # type: ignore[arg-type]
    assert Counter(row[:-1] for row in found) == expected


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, InvalidOption),
        ({"startingVersion": "latest"}, InvalidOption),
        ({"startingVersion": "2", "endingVersion": "1"}, InvalidOption),
        ({"startingVersion": "1", "endingTimestamp": "5"}, InvalidOption),
        ({"startingVersion": "1", "endingVersion": "1", "endingTimestamp": "5"}, InvalidOption),
        ({"startingVersion": "99"}, NotFound),
        ({"startingVersion": "1", "endingVersion": "99"}, NotFound),
        ({"startingVersion": "1", "versionAsOf": "1"}, InvalidOption),
        ({"startingVersion": "1", "index": "by_name"}, InvalidOption),
    ],
)
def test_a_batch_of_changes_says_what_it_cannot_do(
    history: History, options: dict[str, str], error: type[ElasticScanError]
) -> None:
    with pytest.raises(error):
        batch(history, **options)


def test_a_batch_of_changes_that_are_gone_is_an_error(history: History) -> None:
    history.write(rows(0, 10, v=1.0))
    forget(history)
    with pytest.raises(SnapshotExpired, match="use 'startingVersion' = '4'"):
        batch(history, startingVersion="1")
    assert batch(history, startingVersion="1", failOnDataLoss="false") == []
    history.write(rows(0, 3, v=2.0))
    assert len(batch(history, startingVersion="4")) == 6
    assert len(batch(history, startingVersion="1", failOnDataLoss="false")) == 6
