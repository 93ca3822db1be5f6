"""Parameters of queries as literals: exact, or left to Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from elasticscan.connector import attach
from elasticscan.connector.sql.parameters import with_literals
from elasticscan.connector.sql.tokens import NotUnderstoodError
from elasticscan.store import Store


@pytest.mark.parametrize(
    ("text", "arguments", "complete"),
    [
        ("SELECT ? FROM t WHERE a=?", [1, -2], "SELECT 1 FROM t WHERE a=(-2)"),
        ("a = :x AND b > :long_name", {"x": "o", "long_name": 1.5}, "a = 'o' AND b > 1.5D"),
        ("a = :x OR b = :x", {"x": None}, "a = NULL OR b = NULL"),
        ("a IN (:x,:y)", {"x": True, "y": date(2024, 2, 29)}, "a IN (TRUE,DATE '2024-02-29')"),
        ("a = '?' AND `:x` = :x -- :x\n", {"x": 2**62}, f"a = '?' AND `:x` = {2**62} -- :x\n"),
        ("a = ?", ["it's"], r"a = 'it\'s'"),
        ("a = ?", [Decimal("-1.50")], "a = (-1.50)"),
        ("a = ?", [datetime(2024, 1, 2, 3, tzinfo=UTC)], "a = TIMESTAMP'2024-01-02 03:00:00+00:00'"),
        ("a > :k ORDER BY :k, b LIMIT :k", {"k": 3}, "a > 3 ORDER BY 3, b LIMIT 3"),
        (
            "a::INT = :INT AND CAST(b AS STRUCT<INT:INT>) = :x",
            {"INT": 1, "x": 2.0},
            "a::INT = 1 AND CAST(b AS STRUCT<INT:INT>) = 2.0D",
        ),
        ('a = ":x" AND b < ?', [-1.5e300], 'a = ":x" AND b < (-1.5e+300)'),
    ],
)
def test_values_are_written_as_literals(text: str, arguments: Any, complete: str) -> None:
    assert with_literals(text, arguments) == complete


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("a = ?", [1, 2]),
        ("a = ?", {"x": 1}),
        ("a = :x", [1]),
        ("a = :x", {"y": 1}),
        ("a = ?", [2**63]),
        ("a = ?", [np.float64(1.5)]),  # a float that writes itself as np.float64(1.5)
        ("a = ?", [datetime(2024, 1, 1)]),  # noqa: DTZ001 - the session's time zone says which moment
        ("a = ?", ["\ud800"]),
        ("a = ?", [[1, 2]]),
        ("a = ? AND b = 'x\\'?'", [1]),
    ],
)
def test_what_may_mean_something_else_is_left_to_spark(text: str, arguments: Any) -> None:
    with pytest.raises(NotUnderstoodError):
        with_literals(text, arguments)


@pytest.mark.spark
def test_values_of_parameters_limit_what_is_read_and_rows_are_sparks(
    spark: SparkSession, store: Store
) -> None:
    shop = attach(spark, store.uri, "param_")
    cases: list[tuple[str, Any]] = [
        ("SELECT ? AS one, count(*) AS c FROM param_t WHERE id <= ?", ["a", 4]),
        ("SELECT id FROM param_t WHERE id < :most ORDER BY :one, id DESC LIMIT :rows OFFSET :one",
         {"most": 5.5, "one": 1, "rows": 2}),
    ]  # fmt: skip
    for text, arguments in cases:
        assert "\n  filter   id" in shop.explain(text, arguments)
        assert shop.sql(text, arguments).collect() == spark.sql(text, arguments).collect()
