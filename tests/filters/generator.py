"""Random filters and values over columns of every type: the one generator of the language.

What it draws is compared with Spark (`test_like_spark.py`), and what follows from a condition, its sets of
values and its ranges of keys, with the rows that it keeps (`test_value_sets.py`, `tests/optimizer`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from elasticscan.base.errors import FilterError
from elasticscan.filters import Predicate

NAN, INF = math.nan, math.inf
DAY = 86_400_000_000
LEAP_DAY = 18_321 * DAY + DAY // 2

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [-128, -1, 0, 1, 2, 127]),
    "i": (pa.int32(), [-(2**31), -7, -1, 0, 1, 2, 3, 2**31 - 1]),
    "j": (pa.int32(), [0, 1, 2, 3, -4]),
    "l": (pa.int64(), [-(2**63), -1, 0, 1, 3, 2**53, 2**53 + 1, 2**63 - 1]),
    "f": (pa.float32(), [-INF, -1.5, -0.0, 0.0, 1e-45, 0.1, 2.5, 3.4028234663852886e38, INF, NAN]),
    "d": (pa.float64(), [-INF, -1.5, -0.0, 0.0, 5e-324, 0.1, 2.5, 2.0**53, INF, NAN]),
    "m": (pa.decimal128(10, 2), [Decimal(each) for each in ("-99999999.99", "-1.50", "0", "1.00", "2.50")]),
    "wide": (pa.decimal128(38, 10), [Decimal(each) for each in ("-1.5", "0", "1e-10", "2.5", "9e27")]),
    "s": (pa.string(), ["", "a", "ab", "a\0", "a\0b", "b", "\x7f", "é", "日本", "\U0010ffff"]),
    "t": (pa.string(), ["", "A", "ABC", "a_b", "b%c", " pad ", "Straße", "10", "-3", "a\nb", "it's"]),
    "large": (pa.large_string(), ["", "a", "ab", "true", "false"]),
    "seen": (pa.string_view(), ["", "a", "ab"]),
    "bin": (pa.binary(), [b"", b"\0", b"a", b"a\0", b"\xff\xff"]),
    "fix": (pa.binary(2), [b"\0\0", b"a\0", b"ab", b"\xff\xff"]),
    "flag": (pa.bool_(), [True, False]),
    "c": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [-719162, -1, 0, 1, 18262, 2932896]),
    "us": (pa.timestamp("us", "UTC"), [-1, 0, 1, DAY - 1, DAY, LEAP_DAY]),
    "ns": (pa.timestamp("ns"), [-(2**63), -1001, -1, 0, 999, 1000, 18262 * DAY * 1000, 2**63 - 1]),
    "ms": (pa.timestamp("ms", "UTC"), [-1, 0, 1, 86_400_000]),
    "sec": (pa.timestamp("s"), [-1, 0, 1, 86_400]),
    "u": (pa.uint16(), [0, 1, 65535]),
    "named": (pa.dictionary(pa.int8(), pa.string()), ["a", "b"]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
NUMBERS = ["i8", "i", "j", "l", "f", "d", "m", "wide"]
TEXTS = ["s", "t", "large", "seen", "named"]
TIMES = ["day", "us", "ns", "ms", "sec"]
NUMERALS = [
    *("0", "1", "-1", "2", "7", "128", "-129", "300", "2147483648", "2.5", "-1.5", "1.00", "0.1", "1E-10"),
    *("-0.0D", "2.5D", "1E300", "1e-46", "9007199254740992D", "-9223372036854775808D", "99999999.99"),
    *("9223372036854775807L", "-9223372036854775808L", "9223372036854775808", "9007199254740993"),
    *("NULL", "100000000", "127Y", "3S", "CAST(0.1 AS FLOAT)", "CAST(' +7 ' AS INT)"),
    *("CAST('NaN' AS DOUBLE)", "CAST('-Infinity' AS DOUBLE)", "CAST('Infinity' AS FLOAT)"),
]
SMALL = [*"ijlfdm", *"0 1 -1 2 7 1.5 -0.25 1e3 1.5D 2147483648 9007199254740993 99999999.99 NULL".split()]  # noqa: SIM905
DATES = ["1969-12-31", "1970-01-01", "2020-02-29", "2024-01-01", "0001-01-01", "9999-12-31"]
MOMENTS = ["1969-12-31 23:59:59.999999", "1970-01-01 00:00:00", "1970-01-01 00:00:00.000001"]
MOMENTS += ["2020-02-29 12:00:00.5", "2024-01-01 00:00:00"]
LITERAL_TIMES = [*(f"DATE '{each}'" for each in DATES), *(f"TIMESTAMP '{each}'" for each in MOMENTS)]
LITERAL_TIMES += [*(f"TIMESTAMP_NTZ '{each}'" for each in MOMENTS), "'1969-12-31'", "'2024-01-01'", "NULL"]
WORDS = [*COLUMNS["s"][1], *COLUMNS["t"][1], "O'Brien", "back\\slash"]
PATTERNS = ["", "a", "a%", "%", "a_", "_", "_%", "%b%", "a%b", "%b", "a\\\\_%", "b\\\\%c", "é%", "A%", "日_"]
NUMBER_TYPES = ["DOUBLE", "FLOAT", "DECIMAL(38, 10)", "DECIMAL(12, 1)", "BIGINT", "INT", "STRING"]
CASTS = {
    **dict.fromkeys(NUMBERS, NUMBER_TYPES),
    **{name: ["BINARY"] for name in TEXTS},
    **{name: ["DATE", "TIMESTAMP", "TIMESTAMP_NTZ"] for name in TIMES},
    "flag": ["INT", "DOUBLE", "STRING", "DECIMAL(3, 1)"],
}


class Filters:
    """Random SQL over the columns.

    Args:
        deep: how often a part computes with columns, in place of comparing one of them with constants.
        left_out: columns that are never named.
    """

    def __init__(self, chance: random.Random, deep: float = 0.2, left_out: Sequence[str] = ()) -> None:
        self.chance, self.deep = chance, deep
        self.names = [name for name in COLUMNS if name not in left_out]

    def pick(self, *choices: str) -> str:
        return self.chance.choice(choices)

    def of(self, names: Sequence[str]) -> str:
        return self.pick(*(name for name in names if name in self.names))

    def word(self) -> str:
        text = self.chance.choice(WORDS).replace("\\", "\\\\").replace("\n", "\\n")
        return "'" + text.replace("'", self.pick("\\'", "''")) + "'"

    def constant(self, name: str) -> str:
        """A constant to compare a column with, mostly of its type."""
        if name in NUMBERS:
            return self.pick(*NUMERALS)
        if name in TEXTS:
            return self.pick(self.word(), self.word(), self.word(), "NULL")
        if name in TIMES:
            return self.pick(*LITERAL_TIMES)
        if name in ("bin", "fix"):
            return self.pick("X''", "X'00'", "X'61'", "X'6100'", "X'6162'", "X'FFFF'", "X'616200'", "NULL")
        return self.pick("0", "1", "65536") if name == "u" else self.pick("TRUE", "FALSE", "NULL")

    def on_a_column(self) -> str:
        """A test of one column, by itself or converted, against constants."""
        name = side = self.of([each for each in COLUMNS if each != "u"])
        constants = name
        if name in CASTS and self.chance.random() < 0.2:
            kind = self.pick(*CASTS[name])
            side, constants = f"CAST({name} AS {kind})", {"STRING": "s", "BINARY": "bin"}.get(kind, name)
            constants = "j" if name == "flag" and kind != "STRING" else constants
        one, two, negated = self.constant(constants), self.constant(constants), self.pick("", "", "NOT ")
        several = ", ".join(self.constant(constants) for _ in range(self.chance.randint(1, 4)))
        op = self.pick("=", "<>", "<", "<=", ">", ">=", "<=>", "==", "!=")
        shapes = [
            f"{side} {op} {one}",
            f"{side} {op} {one}",
            f"{one} {op} {side}",
            f"{side} IS {negated}NULL",
        ]
        shapes += [f"{side} {negated}IN ({several})", f"{side} {negated}BETWEEN {one} AND {two}"]
        if name in TEXTS:
            shapes.append(f"{name} {negated}LIKE '{self.pick(*PATTERNS)}'")
            shapes.append(f"{self.pick('startswith', 'endswith')}({name}, {self.word()})")
        if name in ("flag", "c"):
            shapes += [name, f"{name} IS {negated}TRUE", f"{name} IS {negated}FALSE"]
        return self.pick(*shapes)

    def number(self, depth: int) -> str:
        if depth <= 0 or self.chance.random() < 0.4:
            return self.pick(*SMALL)
        one, two, less = self.number(depth - 1), self.number(depth - 1), depth - 1
        return self.pick(
            *(f"({one} {op} {two})" for op in "+-"),
            f"(j * {one})",
            f"(d / nullif({one}, 0))",
            "(j / nullif(j, 0))",
            f"(i % nullif({self.pick('i', 'j', 'l', '3', '-1')}, 0))",
            "(l DIV nullif(j, 0))",
            f"abs({one})",
            f"(-{one})",
            f"coalesce({one}, {two})",
            f"nvl({one}, {two})",
            f"nullif({one}, {two})",
            f"if({self.condition(less)}, {one}, {two})",
            f"CASE WHEN {self.condition(less)} THEN {one} WHEN flag THEN {two} END",
            f"CASE j WHEN 1 THEN {one} WHEN 2 THEN {two} ELSE 0 END",
            f"length({self.pick(self.text(less), 'bin')})",
            f"{self.pick('year', 'month', 'day')}({self.pick('day', 'us')})",
            *(f"CAST({one} AS {kind})" for kind in ("DOUBLE", "INT")),
            *("CAST(j AS TINYINT)", "CAST(m AS INT)", "CAST(m AS DECIMAL(10, 1))", "CAST(flag AS INT)"),
            *("CAST(j AS DECIMAL(12, 3))", "CAST(l AS FLOAT)"),
        )

    def text(self, depth: int) -> str:
        if depth <= 0 or self.chance.random() < 0.5:
            return self.pick("s", "t", self.word())
        one, two, less = self.text(depth - 1), self.text(depth - 1), depth - 1
        return self.pick(
            *(f"{name}({one})" for name in ("upper", "lower", "trim", "ltrim", "rtrim")),
            f"({one} || {two})",
            f"concat({one}, '-', {self.pick(two, 'j')})",
            f"coalesce({one}, {two})",
            f"nullif({one}, {two})",
            f"if({self.condition(less)}, {one}, {two})",
            f"CAST({self.pick('i', 'l', 'm', 'flag', 'day', 'us')} AS STRING)",
            "j::STRING",
        )

    def time(self) -> str:
        steps = f"INTERVAL '{self.pick('1', '-13', '400')}' {self.pick('DAY', 'MONTH', 'YEAR')}"
        return self.pick(
            *("day", "us", "day", "us", "CAST(us AS DATE)", "CAST(day AS TIMESTAMP)", "coalesce(day, us)"),
            *("CAST(us AS TIMESTAMP_NTZ)", f"TIMESTAMP '{self.pick(*MOMENTS)}+02:00'"),
            *LITERAL_TIMES[: len(DATES) + 2 * len(MOMENTS)],
            *[f"(DATE '{self.pick(*DATES)}' {self.pick('+', '-')} {steps})"] * 3,
        )

    def computed(self, depth: int) -> str:
        """A condition on what is computed of several columns."""
        op, negated, less = (
            self.pick("=", "<>", "<", "<=", ">", ">=", "<=>"),
            self.pick("", "NOT "),
            depth - 1,
        )
        number, text = self.number(less), self.text(less)
        numbers = ", ".join(self.number(0) for _ in range(self.chance.randint(1, 5)))
        words = ", ".join(self.text(0) for _ in range(self.chance.randint(1, 4)))
        times = [*DATES, *MOMENTS, "2024-01-01T00:00:00Z", "2024-01-01 00:00", "2020-01-01T01:00:00+01:00"]
        return self.pick(
            *[f"{number} {op} {self.number(less)}"] * 2,
            f"{text} {op} {self.text(less)}",
            f"{self.time()} {op} {self.time()}",
            f"{self.pick('day', 'us')} {op} '{self.pick(*times)}'",
            f"{self.pick('i', 'l', 'd', 'm', 'f')} {op} '{self.pick('1', '7', '-1')}'",
            f"bin {op} {self.pick('bin', 's', 'fix')}",
            f"flag {op} {self.pick('c', 'TRUE', 'NULL')}",
            f"{number} IS {negated}NULL",
            f"{self.pick(number, 'i', 'l', 'd', 'm')} {negated}IN ({numbers})",
            f"{text} {negated}IN ({words})",
            f"{number} {negated}BETWEEN {self.number(0)} AND {self.number(0)}",
            f"{text} {negated}BETWEEN {self.text(0)} AND {self.text(0)}",
            f"{text} {negated}{self.pick('LIKE', 'ILIKE')} '{self.pick(*PATTERNS)}'",
            f"{text} LIKE NULL",
            f"{self.pick('startswith', 'endswith', 'contains')}({text}, {self.pick(self.word(), 'NULL')})",
            f"isnan({number})",
            # What a condition guards is not computed for the rows that it excludes.
            f"(j <> 0 AND 10 / j > {self.number(0)})",
            f"(j = 0 OR 10 / j > {self.number(0)})",
            f"coalesce(j = 0 OR NULL, 10 / j > {self.number(0)})",
            f"if(j = 0, {self.pick('TRUE', 'NULL')}, 10 DIV j > {self.number(0)})",
        )

    def condition(self, depth: int) -> str:
        if depth <= 0 or self.chance.random() < 0.3:
            if self.chance.random() < self.deep:
                return self.computed(depth)
            constants = ["TRUE", "FALSE", "NULL", "CAST(NULL AS BOOLEAN)", "1 = 1", "u IS NULL", "l < d"]
            return self.pick(*constants) if self.chance.random() < 0.1 else self.on_a_column()
        parts = [f"({self.condition(depth - 1)})" for _ in range(self.chance.randint(2, 3))]
        return self.pick(
            *[" AND ".join(parts), " OR ".join(parts)] * 2,
            f"NOT {parts[0]}",
            f"{parts[0]} IS {self.pick('NULL', 'NOT NULL', 'TRUE', 'NOT TRUE', 'FALSE', 'NOT FALSE')}",
            *[f"CASE WHEN {parts[0]} THEN {parts[1]} ELSE {self.on_a_column()} END"] * (self.deep > 0.3),
        )


SEEDS = st.integers(0, 2**48)
CONDITIONS = SEEDS.map(lambda seed: Filters(random.Random(seed)).condition(3))
TESTS_OF_A_COLUMN = SEEDS.map(lambda seed: Filters(random.Random(seed)).on_a_column())


def column_of(name: str, picks: Sequence[int | None]) -> pa.Array:
    """A column of these of its values, by their number."""
    kind, values = COLUMNS[name]
    chosen = [None if pick is None else values[pick % len(values)] for pick in picks]
    if pa.types.is_timestamp(kind):
        return pa.array(chosen, pa.int64()).view(kind)
    if pa.types.is_date(kind):
        return pa.array(chosen, pa.int32()).view(kind)
    return pa.array(chosen, kind)


def random_rows(chance: random.Random, count: int) -> pa.RecordBatch:
    picks = {
        name: [None if chance.random() < 0.15 else chance.randrange(99) for _ in range(count)]
        for name in COLUMNS
    }
    return pa.record_batch([column_of(name, some) for name, some in picks.items()], schema=SCHEMA)


def mask_of(predicate: Predicate, rows: pa.RecordBatch) -> list[bool | None]:
    # Arrow cannot filter views, so only the columns that matter are handed over.
    mask: list[bool | None] = predicate.mask(rows.select(sorted(predicate.columns) or ["i"])).to_pylist()
    return mask


def evaluated(text: str, rows: pa.RecordBatch) -> tuple[Predicate, list[bool | None]] | None:
    """A condition, and whether it is true of each row; None where it is refused, or fails on a row."""
    try:
        predicate = Predicate.parse(text, SCHEMA)
        return predicate, mask_of(predicate, rows)
    except FilterError:
        return None


def about(chance: random.Random, names: Sequence[str]) -> str:
    """A condition on these columns alone, and on few others."""
    return Filters(chance, left_out=[name for name in COLUMNS if name not in names]).condition(3)
