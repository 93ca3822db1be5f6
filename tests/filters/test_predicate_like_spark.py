"""Random filters give, row by row, what Spark gives."""

from __future__ import annotations

import datetime
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import FilterError
from elasticscan.filters.predicate import Predicate

NAN, INF = math.nan, math.inf
UTC = datetime.UTC

WORDS = [
    "",
    "a",
    "A",
    "abc",
    "ABC",
    "b%c",
    "a_b",
    "x y",
    " pad ",
    "é",
    "Straße",
    "日本",
    "10",
    "-3",
    "a\nb",
    "\n",
]
NUMBERS = [*"ijlfdm", *"0 1 -1 2 7 1.5 -0.25 1e3 1.5D 2147483648 9007199254740993 99999999.99 NULL".split()]  # noqa: SIM905
NUMBERS += ["9223372036854775807", "9223372036854775807.0", "CAST('NaN' AS DOUBLE)"]
INTEGERS = [0, 1, -1, 2, 5, 7, -7, 10, 100, 2**31 - 1, -(2**31)]
LONGS = [0, 1, -1, 3, 10, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]
DOUBLES = [0.0, -0.0, 1.0, 1.5, -2.5, 0.1, 1e300, 9007199254740992.0, INF, -INF, NAN]
DECIMALS = [Decimal(text) for text in ("0.00", "1.50", "-1.50", "10.00", "0.01", "99999999.99", "-7.25")]
DATES = ["1969-12-31", "1970-01-01", "2020-02-29", "2024-01-01", "0001-01-01", "9999-12-31"]
TIMES = ["1969-12-31 23:59:59.999999", "1970-01-01 00:00:00", "2020-02-29 12:30:00.5", "2024-01-01 00:00:00"]


def _random_rows(dice: random.Random, count: int) -> pa.Table:
    def column(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if dice.random() < 0.15 else dice.choice(values) for _ in range(count)], kind)

    dates = [datetime.date.fromisoformat(text) for text in DATES]
    times = [datetime.datetime.fromisoformat(text).replace(tzinfo=UTC) for text in TIMES]
    return pa.table(
        {
            "id": pa.array(range(count), pa.int32()),
            "i": column(INTEGERS, pa.int32()),
            "j": column([0, 1, 2, 3, -4], pa.int32()),
            "l": column(LONGS, pa.int64()),
            "f": column([0.0, -0.0, 0.1, 1.5, NAN, INF], pa.float32()),
            "d": column(DOUBLES, pa.float64()),
            "m": column(DECIMALS, pa.decimal128(10, 2)),
            "s": column(WORDS, pa.string()),
            "t": column(WORDS, pa.string()),
            "y": column([b"", b"\x00", b"a", b"\xff\x00"], pa.binary()),
            "dt": column(dates, pa.date32()),
            "ts": column(times, pa.timestamp("us", "UTC")),
            "b": column([True, False], pa.bool_()),
            "c": column([True, False], pa.bool_()),
        }
    )


class _Dice:
    """Random SQL over the columns of `_random_rows`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def quoted(self, text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"

    def number(self, depth: int) -> str:
        if depth <= 0 or self.random.random() < 0.4:
            return self.pick(*NUMBERS)
        one, two, less = self.number(depth - 1), self.number(depth - 1), depth - 1
        return self.pick(
            f"({one} + {two})",
            f"({one} - {two})",
            f"(j * {one})",
            f"(d / nullif({one}, 0))",
            "(j / nullif(j, 0))",
            f"(i % nullif({self.pick('i', 'j', 'l', '3')}, 0))",
            "(l DIV nullif(j, 0))",
            f"abs({one})",
            f"(-{one})",
            f"coalesce({one}, {two})",
            f"nullif({one}, {two})",
            f"if({self.condition(less)}, {one}, {two})",
            f"CASE WHEN {self.condition(less)} THEN {one} WHEN b THEN {two} END",
            f"length({self.text(less)})",
            f"{self.pick('year', 'month', 'day')}({self.pick('dt', 'ts')})",
            f"CAST({one} AS DOUBLE)",
            "CAST(j AS TINYINT)",
            "CAST(m AS INT)",
            "CAST(m AS DECIMAL(10, 1))",
            "CAST(j AS DECIMAL(12, 3))",
            "CAST(b AS INT)",
            "CAST(l AS FLOAT)",
            f"CAST({one} AS INT)",
        )

    def text(self, depth: int) -> str:
        if depth <= 0 or self.random.random() < 0.5:
            return self.pick("s", "t", self.quoted(self.random.choice(WORDS)))
        one, two, less = self.text(depth - 1), self.text(depth - 1), depth - 1
        return self.pick(
            f"upper({one})",
            f"lower({one})",
            f"trim({one})",
            f"ltrim({one})",
            f"rtrim({one})",
            f"({one} || {two})",
            f"concat({one}, '-', {two})",
            f"coalesce({one}, {two})",
            f"nullif({one}, {two})",
            f"if({self.condition(less)}, {one}, {two})",
            f"CAST({self.pick('i', 'l', 'm', 'b', 'dt', 'ts')} AS STRING)",
        )

    def time(self) -> str:
        date, time = self.random.choice(DATES), self.random.choice(TIMES)
        return self.pick(
            *("dt", "ts", "dt", "ts"),
            f"DATE '{date}'",
            f"(DATE '{date}' {self.pick('+', '-')} INTERVAL '{self.pick('1', '-13', '400')}' "
            f"{self.pick('DAY', 'MONTH', 'YEAR')})",
            f"TIMESTAMP '{time}'",
            f"TIMESTAMP_NTZ '{time}'",
            f"TIMESTAMP '{time}+02:00'" if ":" in time else f"'{date}'",
            "CAST(ts AS DATE)",
            "CAST(dt AS TIMESTAMP)",
            "coalesce(dt, ts)",
            "CAST(ts AS TIMESTAMP_NTZ)",
        )

    def comparison(self, depth: int) -> str:
        op, less = self.pick("=", "<>", "<", "<=", ">", ">=", "<=>", "==", "!="), depth - 1
        time = self.random.choice(
            [f"'{each}'" for each in (*DATES, *TIMES, "2024-01-01T00:00:00Z", "2024-01-01 00:00")]
        )
        return self.pick(
            f"{self.number(less)} {op} {self.number(less)}",
            f"{self.number(less)} {op} {self.number(less)}",
            f"{self.text(less)} {op} {self.text(less)}",
            f"{self.time()} {op} {self.time()}",
            f"{self.pick('dt', 'ts')} {op} {time}",
            f"{self.pick('i', 'l', 'd', 'm', 'f')} {op} '{self.pick('1', '7', '-1')}'",
            f"y {op} {self.pick('y', 'X' + chr(39) + 'FF' + chr(39), 's')}",
            f"b {op} {self.pick('c', 'TRUE', 'NULL')}",
        )

    def test(self, depth: int) -> str:
        less, negation = depth - 1, self.pick("", "NOT ")
        number, text = self.number(less), self.text(less)
        numbers = ", ".join(self.number(0) for _ in range(self.random.randint(1, 5)))
        words = ", ".join(self.text(0) for _ in range(self.random.randint(1, 4)))
        word = self.quoted(self.random.choice(WORDS))
        like = self.pick(
            "%", "a%", "%c", "%b%", "a_b", "_", "", "a%c", "%%", "_%", "a\\\\_b", "b\\\\%c", "%é%", "日_"
        )
        return self.pick(
            f"{number} IS {negation}NULL",
            f"({self.condition(less)}) IS {negation}{self.pick('NULL', 'TRUE', 'FALSE')}",
            f"{number} {negation}IN ({numbers})",
            f"{self.pick('i', 'l', 'd', 'm')} {negation}IN ({numbers})",
            f"{text} {negation}IN ({words})",
            f"{number} {negation}BETWEEN {self.number(0)} AND {self.number(0)}",
            f"{text} {negation}BETWEEN {self.text(0)} AND {self.text(0)}",
            f"{text} {negation}LIKE '{like}'",
            f"{text} {negation}ILIKE '{like}'",
            f"{self.pick('startswith', 'endswith', 'contains')}({text}, {word})",
            f"isnan({number})",
        )

    def condition(self, depth: int) -> str:
        if depth <= 0:
            return self.pick("b", "c", "b", "TRUE", "NULL", "i > 0", "d = d", "s < t")
        one, two = self.condition(depth - 1), self.condition(depth - 1)
        return self.pick(
            self.comparison(depth),
            self.comparison(depth),
            self.test(depth),
            self.test(depth),
            f"({one} AND {two})",
            f"({one} OR {two})",
            f"NOT ({one})",
            f"CASE WHEN {one} THEN {two} ELSE {self.comparison(1)} END",
        )


def _failing(frame: DataFrame, texts: list[str]) -> list[str]:
    """Those texts that Spark refuses or that make it fail, found by halving."""
    if _spark_answers(frame, texts) is not None:
        return []
    if len(texts) == 1:
        return texts
    middle = len(texts) // 2
    return _failing(frame, texts[:middle]) + _failing(frame, texts[middle:])


def _spark_answers(frame: DataFrame, texts: list[str]) -> pa.Table | None:
    named = [f"CAST(({text}) AS BOOLEAN) AS e{number}" for number, text in enumerate(texts)]
    try:
        return frame.selectExpr("id", *named).toArrow().sort_by("id")
    except PySparkException:
        return None


@pytest.mark.long
@pytest.mark.spark
def test_random_filters_give_what_spark_gives(spark: SparkSession) -> None:
    dice = _Dice(20_240_229)
    table = _random_rows(dice.random, 80)
    [rows] = table.combine_chunks().to_batches()
    ours: dict[str, list[bool | None]] = {}
    refused: list[str] = []
    failed: list[str] = []
    for _ in range(330):
        text = dice.condition(dice.random.randint(1, 5))
        try:
            predicate = Predicate.parse(text, rows.schema)
        except FilterError:
            refused.append(text)
            continue
        try:
            ours[text] = predicate.mask(rows).to_pylist()
        except FilterError:
            failed.append(text)
    assert len(ours) > 220, f"too few filters left: {len(refused)} refused, {len(failed)} failed"

    frame = spark.createDataFrame(table)
    texts = list(ours)
    answers = _spark_answers(frame, texts)
    assert answers is not None, f"Spark fails where we do not: {_failing(frame, texts)}"
    wrong = [text for n, text in enumerate(texts) if answers.column(f"e{n}").to_pylist() != ours[text]]
    assert not wrong
    # Where we fail on values, Spark must fail too: an error must not hide rows.
    spurious = [text for text in failed if _spark_answers(frame, [text]) is not None]
    assert not spurious
