"""Aggregates where columns change, where sums do not fit, and where fragments tell the number of rows.

That they are right otherwise, and first rows as well, is a matter of tests/store/test_index_oracle.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import FilterError, NotFound
from elasticscan.filters import Aggregate, Fold
from elasticscan.store import Store, can_be_sorted, known_count


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "store", ["s1"], tablets=1, slots=16, upkeep="off") as made:
        yield made


def test_a_column_that_was_widened_meanwhile_is_aggregated_as_it_is_now(store: Store) -> None:
    table = store.create_table("t", pa.table({"id": [1, 2], "g": pa.array([6, 5], pa.int32())}), "id")
    table.widen_column("g", pa.int64())
    table.add_columns({"late": "int32"})
    result = table.aggregate(["max(g)", "sum(late) AS late", "count(late) AS some"])
    assert result.schema.field("max(g)").type == pa.int64()
    assert result.to_pydict() == {"max(g)": [6], "late": [None], "some": [0]}


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


def test_a_table_that_was_merged_is_counted_without_a_look_at_a_file(store: Store) -> None:
    table = store.create_table("t", pa.schema({"id": pa.int64()}), ["id"])
    for start in (0, 100):
        newest = table.upsert(pa.table({"id": range(start, start + 100)}))
    table.compact()
    for given in ({"filter": "id = 5"}, {"limit": 4}, {"snapshot": newest - 1}):
        assert known_count(store.context, table.scan(**given).standing) is None
    begun = table.scan(page_rows=10)
    next(begun)
    assert known_count(store.context, begun.standing) is None
    for file in Path(store.uri).glob("shards/**/*.arrow"):
        file.unlink()
    assert table.aggregate(["count(*)", "count(*) AS n"]).to_pylist() == [{"count(*)": 200, "n": 200}]


@pytest.mark.usefixtures("rows_in_files")
def test_tombstones_and_rows_that_moved_away_are_not_counted(tmp_path: Path) -> None:
    with Store.create(tmp_path / "moving", ["s1", "s2"], tablets=4, slots=16, upkeep="off") as store:
        table = store.create_table("t", pa.schema({"id": pa.int64()}), ["id"])
        table.delete([1])
        assert known_count(store.context, table.scan().standing) in (None, 0)
        table.overwrite(pa.table({"id": range(100)}))
        store.move(1, "s2")
        assert known_count(store.context, table.scan().standing) in (None, 100)
        assert table.aggregate("count(*)")["count(*)"].to_pylist() == [100]


def test_columns_that_arrow_does_not_compare_as_spark_are_left_alone() -> None:
    schema = pa.schema(
        {"n": pa.timestamp("ns"), "l": pa.list_(pa.int32()), "h": pa.float16(), "i": pa.int8()}
    )
    assert [can_be_sorted([name], schema) for name in schema.names] == [False, False, False, True]
    assert not can_be_sorted(["i", "n DESC"], schema)
    with pytest.raises(NotFound, match="order_by names"):
        can_be_sorted(["x DESC"], schema)
