"""`Table.aggregate`: alongside a mover, against DuckDB on the same rows; and what it refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    ElasticScanError,
    FilterError,
    InvalidOption,
    InvalidTopologyChange,
)
from elasticscan.filters import Aggregate, Fold, folding
from elasticscan.store import Store, Table
from elasticscan.store.reading import aggregating

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "g": pa.int32(),
        "city": pa.string(),
        "n": pa.int64(),
        "d": pa.decimal128(12, 3),
        "t": pa.date32(),
    }
)
VALUES = [
    "count(*)", "count(n)", "count(DISTINCT city)", "count(DISTINCT d)", "sum(n)", "min(n)", "max(city)",
    "avg(n)", "sum(d)", "min(t)", "max(d)",
]  # fmt: skip


def rows_of(draw: random.Random, ids: Any) -> pa.Table:
    def or_none(value: Any) -> Any:
        return None if draw.random() < 0.1 else value

    rows = [
        {"id": one, "g": or_none(draw.randrange(7)),
         "city": or_none(draw.choice(["Oslo", "Lima", "Ürümqi", ""])),
         "n": or_none(draw.randint(-1000, 1000)), "d": None, "t": None}
        for one in ids
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, SCHEMA)
    thousandths = pa.array([or_none(draw.randint(-(10**6), 10**6)) for _ in rows], pa.int64())
    decimals = thousandths.cast(pa.decimal128(19, 0)).cast(pa.decimal128(12, 0)).cast(pa.decimal128(15, 3))
    table = table.set_column(4, "d", decimals.cast(pa.decimal128(12, 3)))
    days = pa.array([or_none(draw.randint(-40000, 40000)) for _ in rows], pa.int32())
    return table.set_column(5, "t", days.cast(pa.date32())).cast(SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "store", ["s1", "s2", "s3"], tablets=12, slots=48, upkeep="off") as made:
        yield made


@pytest.fixture
def table(store: Store) -> Table:
    """Rows of several commits, some of them replaced or deleted by later ones."""
    draw = random.Random(3)
    store.create_table("t", SCHEMA, ["id"])
    made = store.table("t")
    made.upsert(rows_of(draw, range(3000)))
    made.upsert(rows_of(draw, range(0, 3000, 7)))
    made.delete(list(range(5, 3000, 11)))
    return made


def sorted_rows(rows: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in rows.to_pylist()), key=repr)


@pytest.fixture
def mover(store: Store) -> Iterator[None]:
    """Tablets that move all the time."""
    stop, failures, draw = Event(), [], random.Random(5)

    def move() -> None:
        try:
            while not stop.is_set():
                with suppress(InvalidTopologyChange):  # it is there already
                    store.move(draw.randint(1, 12), draw.choice(["s1", "s2", "s3"]))
        except ElasticScanError as error:
            failures.append(error)

    thread = Thread(target=move)
    thread.start()
    yield
    stop.set()
    thread.join()
    assert not failures


@pytest.mark.long
@pytest.mark.usefixtures("mover")
def test_random_aggregates_beside_a_mover_are_those_of_duckdb(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregating, "DEFAULT_PAGE_ROWS", 97)
    monkeypatch.setattr(folding, "FOLDED_ROWS", 1)
    rows, draw = table.scan().to_table(), random.Random(8)
    for _ in range(20):
        by: list[str] = draw.choice([[], ["g"], ["city"], ["city", "g"], ["t"], ["d"]])
        condition = draw.choice([None, "n > 0", "city = 'Oslo' OR g IS NULL", "id < 0", "d > 5"])
        values = draw.sample(VALUES, draw.randint(1, 5))
        text = f"SELECT {', '.join([*by, *values])} FROM rows WHERE {condition or 'TRUE'}"
        if by:
            text += f" GROUP BY {', '.join(by)}"
        expected = duckdb.sql(text).to_arrow_table()
        result = table.aggregate(values, by, condition)
        assert result.schema.names == [*by, *values]
        assert sorted_rows(result) == sorted_rows(
            expected.rename_columns(result.schema.names).cast(result.schema)
        ), text
    assert rows.num_rows == table.aggregate("count(*)")["count(*)"][0].as_py()


def test_a_group_that_is_named_twice_is_reported_as_an_error_of_group_by(table: Table) -> None:
    with pytest.raises(InvalidOption, match=r"group_by=\['g', 'g'\] must be .* each once"):
        table.aggregate("count(*)", ["g", "g"])


def test_an_older_snapshot_is_aggregated_as_it_was(table: Table) -> None:
    first = table.history()[1].number
    result = table.aggregate("count(*) AS c", snapshot=first)
    assert result.to_pydict() == {"c": [3000]}


def test_a_column_that_was_widened_meanwhile_is_aggregated_as_it_is_now(store: Store, table: Table) -> None:
    table.widen_column("g", pa.int64())
    table.add_columns(pa.schema({"late": pa.int32()}))
    result = table.aggregate(["max(g)", "sum(late) AS late", "count(late) AS some"])
    assert result.schema.field("max(g)").type == pa.int64()
    assert result.to_pydict() == {"max(g)": [6], "late": [None], "some": [0]}


def test_a_sum_that_overflows_is_an_error(table: Table) -> None:
    rows = table.scan(limit=2).to_table()
    rows = rows.set_column(3, "n", pa.array([(1 << 63) - 1] * 2, pa.int64()))
    table.upsert(rows)
    with pytest.raises(FilterError, match="ARITHMETIC_OVERFLOW"):
        table.aggregate("sum(n)", filter="n > 1000")


def test_rows_are_folded_once_into_their_groups_while_a_tablet_moves(tmp_path: Path) -> None:
    most, nan = (1 << 63) - 1, float("nan")
    schema = pa.schema({"id": pa.int64(), "g": pa.int32(), "n": pa.int64(), "x": pa.float64()})
    rows = [
        {"id": one, "g": (None, 0, 1)[one % 3], "n": (most, -most, 1)[one // 3 % 3], "x": (nan, 2.0)[one % 2]}
        for one in range(1800)
    ]
    with Store.create(tmp_path / "store", ["s1", "s2"], tablets=2, slots=8, upkeep="off") as store:
        table = store.create_table("t", schema, ["id"])
        table.upsert(pa.Table.from_pylist(rows, schema))
        with table.scan(["g", "n", "x", "id"], page_rows=100) as scan:
            texts = ["count(*) AS c", "sum(n) AS n", "max(x) AS hi", "min(x) AS lo", "count(DISTINCT n) AS d"]
            fold = Fold([Aggregate.parse(text, schema) for text in texts], ["g"], schema)
            for number, page in enumerate(scan):
                fold.add(page.rows)
                if number in (2, 5):  # away and back, during the scan
                    store.move(1, "s2" if number == 2 else "s1")
        with pytest.raises(FilterError, match="ARITHMETIC_OVERFLOW"):
            table.aggregate("sum(n)", filter="n > 1")
        result = {row.pop("g"): row for row in fold.result().to_pylist()}
    assert [str(row.pop("hi")) for row in result.values()] == ["nan"] * 3
    assert result == {group: {"c": 600, "n": 200, "lo": 2.0, "d": 3} for group in (None, 0, 1)}
