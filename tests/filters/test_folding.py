"""Aggregates folded page by page: types, limits and texts. `test_like_spark.py` compares them with Spark."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import ElasticScanError, FilterError, InvalidOption, NotFound
from elasticscan.filters import Aggregate, Fold, folding


def fold(rows: pa.Table, values: list[str], group_by: tuple[str, ...] = (), page: int = 3) -> pa.Table:
    aggregates = [Aggregate.parse(text, rows.schema) for text in values]
    folded = Fold(aggregates, group_by, rows.schema)
    for batch in rows.to_batches(max_chunksize=page):
        folded.add(batch)
    return folded.result()


def one(kind: pa.DataType, values: list[Any], aggregate: str) -> Any:
    result = fold(pa.table({"x": pa.array(values, kind)}), [f"{aggregate} AS r"])
    assert result.num_rows == 1
    return result["r"][0].as_py()


@pytest.mark.parametrize(
    ("aggregate", "kind", "result"),
    [
        ("sum(x)", pa.uint32(), pa.int64()),
        ("sum(x)", pa.uint64(), pa.decimal128(30, 0)),
        ("sum(x)", pa.float16(), pa.float64()),
        ("sum(x)", pa.decimal32(7, 2), pa.decimal128(17, 2)),
        ("sum(x)", pa.decimal128(38, 2), pa.decimal128(38, 2)),
        ("avg(x)", pa.decimal128(38, 36), pa.decimal128(38, 38)),
        ("avg(x)", pa.uint64(), pa.decimal128(24, 4)),
        ("count(x)", pa.string(), pa.int64()),
        ("count(*)", pa.string(), pa.int64()),
        ("count(distinct x)", pa.string(), pa.int64()),
        ("min(x)", pa.float16(), pa.float16()),
        ("max(x)", pa.decimal64(12, 2), pa.decimal64(12, 2)),
        ("max(x)", pa.duration("ms"), pa.duration("ms")),
        ("min(x)", pa.timestamp("ns", "UTC"), pa.timestamp("ns", "UTC")),
        ("min(x)", pa.large_binary(), pa.large_binary()),
    ],
)
def test_results_have_the_types_of_spark(aggregate: str, kind: pa.DataType, result: pa.DataType) -> None:
    nothing = fold(pa.table({"x": pa.array([], kind)}), [f"{aggregate} AS r"])
    assert nothing.schema == pa.schema([pa.field("r", result)])
    assert nothing["r"].to_pylist() == [0 if aggregate.startswith("count") else None]
    nulls = fold(pa.table({"x": pa.nulls(7, kind)}), [f"{aggregate} AS r"])
    expected = {"count(*)": 7, "count(x)": 0, "count(distinct x)": 0}.get(aggregate)
    assert nulls["r"].to_pylist() == [expected]


OF_NUMBERS = [pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.date32(), pa.timestamp("ns", "UTC")]
OF_NUMBERS += [pa.time32("s"), pa.time64("ns"), pa.duration("s")]


@pytest.mark.parametrize(
    ("kind", "few"),
    [
        *((kind, [0, 1]) for kind in OF_NUMBERS),
        *((kind, [Decimal(0), Decimal(1)]) for kind in (pa.decimal32(5, 2), pa.decimal128(20, 2))),
        *((kind, ["a", "b"]) for kind in (pa.string(), pa.large_string())),
        *((kind, [b"abc", b"abd"]) for kind in (pa.binary(), pa.binary(3))),
        (pa.bool_(), [False, True]),
        (pa.date64(), [0, 86_400_000]),
    ],
)
def test_every_plain_type_is_a_group_an_extreme_and_counted(kind: pa.DataType, few: list[Any]) -> None:
    x = pa.array([*few, None] * 4, kind)
    rows = pa.table({"x": x, "n": pa.array(range(12), pa.int64())})
    result = fold(rows, ["min(x)", "max(x)", "count(DISTINCT x)", "count(x)"])
    assert [*result.to_pylist()[0].values()] == [x[0].as_py(), x[1].as_py(), 2, 8]
    groups = fold(rows, ["count(*)", "sum(n) AS n", "count(DISTINCT x) AS d"], ("x",))
    assert groups.schema.field("x").type == kind
    by_value = {row["x"]: (row["count(*)"], row["n"], row["d"]) for row in groups.to_pylist()}
    assert by_value == {x[0].as_py(): (4, 18, 1), x[1].as_py(): (4, 22, 1), None: (4, 26, 0)}


def test_groups_stay_as_few_as_they_are_and_are_handed_over_at_once_where_they_hardly_are_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(folding, "FOLDED_ROWS", 1)
    monkeypatch.setattr(folding, "LEAST_MERGED_ROWS", 50)
    schema = pa.schema([("g", pa.int64())])
    for groups, is_full in ((1000, True), (60, False)):
        folded = Fold([Aggregate.parse("count(*)", schema)], ["g"], schema)
        folded.add(pa.record_batch({"g": [one % groups for one in range(100)]}, schema=schema))
        assert folded.is_full == is_full
        assert sum(folded.partial_rows()["count(*)"].to_pylist()) == 100
        assert folded.size == 0 and not folded.is_full
        assert folded.partial_rows().num_rows == 0
    for _ in range(100):
        folded.add(pa.record_batch({"g": list(range(20))}))
        assert folded.size <= 120
    assert folded.result()["count(*)"].to_pylist() == [100] * 20


def test_sums_of_integers_are_exact_in_any_order_and_fail_when_they_do_not_fit() -> None:
    most = (1 << 63) - 1
    assert one(pa.int64(), [most, most, -most, -most, 5], "sum(x)") == 5
    for values in ([most, 1], [-most, -2], [most] * 100):
        with pytest.raises(FilterError, match=r"ARITHMETIC_OVERFLOW\] long overflow"):
            one(pa.int64(), values, "sum(x)")
    assert one(pa.int64(), [most, most], "avg(x)") == float(most)
    assert one(pa.uint64(), [(1 << 64) - 1] * 5, "sum(x)") == 5 * ((1 << 64) - 1)
    digits = Decimal("9" * 38)
    assert one(pa.decimal128(38, 0), [digits] * 5 + [digits.copy_negate()] * 4, "sum(x)") == digits


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "sum(x", "sum(*)", "median(x)", "sum(DISTINCT x)", "count(x, y)", "count()",
        "count(DISTINCT x, y)", "sum(x) FILTER (WHERE x > 1)", "sum(x) OVER ()", "count(*) + 1", "sum(s)",
        "avg(b)", "min(l)", "count(DISTINCT l)", "SELECT 1", "sum(x); drop table t", "try_sum(x)",
        "max(x, 2)", "sum(x + 1)", "sum(2 + 1)", "sum(t.x)", "(" * 5000, "count(*) c d",
    ],
)  # fmt: skip
def test_what_cannot_be_had_exactly_is_refused(text: str) -> None:
    schema = pa.schema(
        {"x": pa.int64(), "y": pa.int64(), "s": pa.string(), "b": pa.bool_(), "l": pa.list_(pa.int8())}
    )
    with pytest.raises(ElasticScanError) as caught:
        Aggregate.parse(text, schema)
    assert isinstance(caught.value, (InvalidOption, NotFound, FilterError))


def test_columns_are_named_as_in_filters() -> None:
    schema = pa.schema({"Km run": pa.int64()})
    assert Aggregate.parse("sum(`km run`) AS total", schema).columns == ("Km run",)
    names = [Aggregate.parse(text, schema).name for text in ("SUM(`Km run`) total", " count(1) ")]
    assert names == ["total", "count(1)"]
    with pytest.raises(NotFound):
        Aggregate.parse("sum(kn)", schema)
