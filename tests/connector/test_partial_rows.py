"""Partial rows as tasks make them, added up by Python, while tablets move under the pages."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import FilterError, InvalidOption, NotFound
from elasticscan.connector import ElasticScanSource
from elasticscan.connector.options import PartialAggregates, parse_options
from elasticscan.connector.sql import driver_reads
from elasticscan.connector.store_cache import open_store
from elasticscan.filters import folding
from elasticscan.store import EmbeddedTable, Store

SCHEMA = pa.schema([
    pa.field("id", pa.int64(), nullable=False), ("g", pa.int32()), ("city", pa.string()), ("n", pa.int64()),
    ("d", pa.decimal128(30, 2)), ("x", pa.float64()),
])  # fmt: skip
VALUES = ("count(*)", "count(n)", "sum(n)", "min(n)", "max(city)", "avg(n)", "sum(d)", "max(x)")
MOST = (1 << 63) - 1


def some_rows(ids: range, draw: random.Random) -> pa.Table:
    def or_none(value: Any) -> Any:
        return None if draw.random() < 0.2 else value

    rows = [
        {"id": one, "g": or_none(draw.randrange(3)), "city": or_none(draw.choice(["Oslo", "Lima", ""])),
         "n": or_none(draw.randint(-9, 9)), "d": or_none(draw.randint(-99, 99)),
         "x": or_none(draw.choice([1.5, -2.0]))}
        for one in ids
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, SCHEMA)


def made(place: Path) -> Store:
    store = Store.create(place / "store", ["s1", "s2"], tablets=4, slots=16, upkeep="off")
    table, draw = store.create_table("t", SCHEMA, ["id"]), random.Random(2)
    table.upsert(some_rows(range(1500), draw))
    table.upsert(some_rows(range(0, 1500, 5), draw))
    table.delete(list(range(3, 1500, 7)))
    return store


def partial_rows(store: Store, asked: PartialAggregates, **options: str) -> list[dict[str, Any]]:
    """All partial rows, each under the names that it would have in the result."""
    reading = reader(store, asked, **options)
    rows = [row for part in reading.partitions() for batch in reading.read(part) for row in batch.to_pylist()]
    return [{name.removeprefix("partial "): value for name, value in row.items()} for row in rows]


def reader(store: Store, asked: PartialAggregates, **options: str) -> Any:
    given = {"store": store.uri, "table": "t", "partialAggregates": asked.text(), **options}
    source = ElasticScanSource(given)
    return source.reader(source.schema())


def added_up(rows: list[dict[str, Any]], by: tuple[str, ...]) -> dict[Any, dict[str, Any]]:
    groups: dict[Any, dict[str, Any]] = {}
    for row in rows:
        total = groups.setdefault(tuple(row.pop(name) for name in by), {})
        for name, value in row.items():
            both = [part for part in (total.get(name), value) if part is not None]
            function = name.split("(")[0]
            merge = {"min": min, "max": max}.get(function, sum)
            total[name] = merge(both) if both else None
    return groups


def of_rows(store: Store, by: tuple[str, ...]) -> dict[Any, dict[str, Any]]:
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in store.table("t").scan().to_table().to_pylist():
        groups.setdefault(tuple(row[name] for name in by), []).append(row)

    def of(rows: list[dict[str, Any]]) -> dict[str, Any]:
        columns = {name: [row[name] for row in rows if row[name] is not None] for name in SCHEMA.names}
        n, d, x, city = columns["n"], columns["d"], columns["x"], columns["city"]
        return {
            "count(*)": len(rows), "count(n)": len(n), "sum(n)": sum(n) if n else None,
            "min(n)": min(n, default=None), "max(city)": max(city, default=None),
            "avg(n)": float(sum(n)) if n else None, "sum(d)": sum(d) if d else None,
            "max(x)": max(x, default=None),
        }  # fmt: skip

    return {group: of(rows) for group, rows in groups.items()}


def test_partial_rows_hold_every_row_once_while_tablets_move_under_the_pages(tmp_path: Path) -> None:
    store, moves = made(tmp_path), iter([(1, "s2"), (1, "s1"), (3, "s1"), (2, "s2"), (1, "s2"), (3, "s2")])
    reading, pages = open_store(store.uri).context, 0
    usual = reading.sync_point

    def moving(point: str) -> None:
        nonlocal pages
        if point == "page read":
            pages += 1
            if pages % 4 == 2 and (move := next(moves, None)) is not None:
                tablet = store.context.placement().tablet(move[0])
                if tablet is not None and store.context.shard_names()[tablet.shard] != move[1]:
                    store.move(*move)
        usual(point)

    reading.sync_point = moving
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folding, "FOLDED_ROWS", 64)
        patch.setattr(folding, "LEAST_MERGED_ROWS", 4)
        patch.setattr(folding, "MOST_PARTIAL_BYTES", 500)
        for by in [(), ("g",), ("g", "city"), ("id",)]:
            rows = partial_rows(store, PartialAggregates(VALUES, by), batchSize="40", numPartitions="3")
            assert added_up(rows, by) == of_rows(store, by)
    assert next(moves, None) is None
    reading.sync_point = usual


@pytest.fixture
def empty(tmp_path: Path) -> Store:
    store = Store.create(tmp_path / "store", ["s1"], tablets=1, slots=8, upkeep="off")
    store.create_table("t", SCHEMA, ["id"])
    return store


def test_a_sum_that_does_not_fit_is_an_error(empty: Store) -> None:
    rows = [{"id": one, "g": one % 2, "n": (MOST, -MOST)[one % 2], "d": 10**26 - 1} for one in range(8)]
    empty.table("t").upsert(pa.Table.from_pylist(rows, SCHEMA))
    with pytest.raises(FilterError, match="ARITHMETIC_OVERFLOW"):
        partial_rows(empty, PartialAggregates(("sum(n)",), ("g",)))
    asked = PartialAggregates(("avg(n)", "count(n)", "sum(d)"), ("g",))
    sums = added_up(partial_rows(empty, asked), ("g",))
    for group in sums.values():
        assert abs(group["avg(n)"]) == 4.0 * MOST
        assert (group["count(n)"], group["sum(d)"]) == (4, 4 * (10**26 - 1))


def test_a_table_without_rows_gives_one_partial_row_and_no_groups(empty: Store) -> None:
    for values, by, rows in (
        (("count(*)", "sum(n)"), (), [{"count(*)": 0, "sum(n)": None}]),
        (("count(*)",), (), [{"count(*)": 0}]),
        (("count(*)",), ("g",), []),
        ((), ("g",), []),
    ):
        assert partial_rows(empty, PartialAggregates(values, by)) == rows


def test_what_cannot_be_added_up_is_refused(tmp_path: Path) -> None:
    store = made(tmp_path)
    for value in ("avg(d)", "count(DISTINCT n)", "sum(city)", "median(n)"):
        with pytest.raises(InvalidOption):
            partial_rows(store, PartialAggregates((value,), ()))
    with pytest.raises(NotFound):
        partial_rows(store, PartialAggregates(("count(*)",), ("h",)))


def test_rows_folded_beside_the_driver_are_those_of_the_columns_that_were_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two columns of one type change their names between the plan and the scan."""
    store = made(tmp_path)
    table = store.table("t")
    table.add_columns([pa.field("m", pa.int64())])
    asked = {"store": store.uri, "table": "t", "partialAggregates": PartialAggregates(("sum(n)",), ()).text()}
    scan = EmbeddedTable.scan

    def after_renaming(*given: Any, **named: Any) -> Any:
        for old, new in (("n", "o"), ("m", "n"), ("o", "m")):
            table.rename_column(old, new)
        return scan(*given, **named)

    assert driver_reads.read_few(parse_options(asked)) is not None
    monkeypatch.setattr(EmbeddedTable, "scan", after_renaming)
    assert driver_reads.read_few(parse_options(asked)) is None
