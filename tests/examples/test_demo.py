"""The demo's account of rows, its plain reader, and all of it as `make demo` runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan import Store
from examples import demo

ROWS = 20_000


@pytest.fixture(scope="module")
def source() -> pa.Table:
    return demo.flights(ROWS)


@pytest.fixture
def store(tmp_path: Path, source: pa.Table) -> Iterator[Store]:
    with Store.create(tmp_path / "demo.store", demo.SHARDS, tablets=8) as store:
        store.create_table(demo.TABLE, source.schema, demo.KEY).upsert(source)
        yield store


def read_to_the_end(reader: demo.PlainReader) -> pa.Table:
    while reader.read_pages():
        pass
    return reader.to_table()


def test_all_flights_have_a_key_of_their_own() -> None:
    flights = demo.flights()
    assert flights.num_rows == 336_776
    assert flights.group_by(demo.KEY).aggregate([]).num_rows == 336_776


def test_an_account_counts_what_is_missing_and_repeated_and_sees_other_values(source: pa.Table) -> None:
    truth = demo.account(source, source)
    assert (truth.read, truth.missing, truth.repeated) == (ROWS, 0, 0)
    assert demo.account(source, source.sort_by("flight")) == truth
    wrong = demo.account(source, pa.concat_tables([source.slice(5), source.slice(10, 2)]))
    assert (wrong.read, wrong.missing, wrong.repeated) == (ROWS - 3, 5, 2)
    delay = source.schema.get_field_index("dep_delay")
    other = source.set_column(delay, "dep_delay", pa.nulls(ROWS, source.schema.field(delay).type))
    assert demo.account(source, other).checksum != truth.checksum


def test_the_plain_reader_is_right_while_nothing_moves(store: Store, source: pa.Table) -> None:
    assert demo.account(source, read_to_the_end(demo.PlainReader(store))) == demo.account(source, source)


def test_the_plain_reader_loses_a_tablet_that_leaves_and_repeats_one_that_arrives(
    store: Store, source: pa.Table
) -> None:
    reader = demo.PlainReader(store)
    reader.read_pages()
    reader.read_pages()
    # The last tablets of s1 leave before they were read; s1 gets one of s2 that was read there.
    at_s1, at_s2 = (
        [tablet["id"] for tablet in store.status()["tablets"] if tablet["shard"] == shard]
        for shard in demo.SHARDS
    )
    store.move(at_s1[-1], "s2")
    store.move(at_s2[0], "s1")
    result = demo.account(source, read_to_the_end(reader))
    assert result.missing > 0
    assert result.repeated > 0


def test_rows_read_elsewhere_than_planned_are_counted(store: Store) -> None:
    tablets = store.status()["tablets"]
    rows = pa.table({"_slot": [0, 100, 2_048, 4_095], "_shard": ["s1", "s2", "s2", "s3"]})
    assert demo.tablets_followed(rows, tablets) == (2, 2)


@pytest.mark.long
@pytest.mark.spark
def test_the_demo_reads_every_flight_exactly_once(tmp_path: Path) -> None:
    """In a process of its own, as people run it: it starts and stops a Spark session."""
    words = ["--rows", "60000", "--seconds", "6", "--page", "0"]
    ended = subprocess.run(
        [sys.executable, demo.__file__, *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert "Every flight exactly once" in ended.stdout
    assert re.search(r"The page: http://127\.0\.0\.1:\d+/", ended.stdout)
