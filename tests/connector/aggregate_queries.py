"""Random queries with aggregates over one table that has a column of every type."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

NAN, INFINITE = float("nan"), float("inf")
# Floats whose sums are the same in any order; so are those of whole numbers, which Spark averages as floats.
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "b": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, 0, 127]),
    "u32": (pa.uint32(), [0, 7, 2**32 - 1]),
    "i32": (pa.int32(), [-(2**31), 0, 5, 2**31 - 1]),
    "i64": (pa.int64(), [-(2**44), -7, 0, 2**40]),
    "f32": (pa.float32(), [NAN, -0.0, 0.0, 1.5, -2.25, INFINITE]),
    "f64": (pa.float64(), [-0.0, 0.0, 1.5, -2.25, 1024.0]),
    "d5": (pa.decimal128(5, 2), [Decimal("999.99"), Decimal("-0.01"), Decimal("0.00"), Decimal("0.02")]),
    "d20": (pa.decimal128(20, 18), [Decimal("1").scaleb(-18), Decimal("99") + Decimal("1").scaleb(-18)]),
    "d38": (pa.decimal128(38, 10), [Decimal("1").scaleb(-10), Decimal(10**20), Decimal(-(10**20))]),
    "s": (pa.string(), ["", "a", "Z", "ü", "\U0001f600", "\uffee"]),
    "y": (pa.binary(), [b"", b"\x00", b"\xff", b"a"]),
    "t": (pa.date32(), [-719162, 0, 20000]),
    "m": (pa.timestamp("us", "UTC"), [-1, 0, 10**15]),
    "n": (pa.timestamp("ns", "UTC"), [-1, 0, 999, 1_000]),
    "z": (pa.timestamp("us"), [-1, 0, 10**15]),
}  # fmt: skip
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), *((name, kind) for name, (kind, _) in VALUES.items())]
)
SUMMED = ["i8", "u32", "i32", "i64", "f32", "f64", "d5", "d20", "d38"]
AVERAGED = [name for name in SUMMED if not name.startswith("d")]


def some_rows(draw: random.Random, ids: list[int]) -> pa.Table:
    def column(kind: pa.DataType, values: list[Any]) -> pa.Array:
        return pa.array([None if draw.random() < 0.25 else draw.choice(values) for _ in ids], kind)

    arrays = [column(kind, values) for kind, values in VALUES.values()]
    return pa.Table.from_arrays([pa.array(ids, pa.int64()), *arrays], schema=SCHEMA)


CONDITIONS = [
    "i32 > 0", "id % 2 = 0", "s >= 'a'", "b", "NOT b OR i8 = 0", "d5 > 0 AND i64 < 0", "t IS NOT NULL",
    "id BETWEEN 10 AND 40", "f64 > 0", "id < 0",
]  # fmt: skip
COMPUTED = {"year(t)": "t", "upper(s)": "s", "i32 + 1L": "i32", "CASE WHEN b THEN 1 ELSE 2 END": "b"}


def aggregated(seed: int) -> str:
    """The query of a seed. Never one whose rows depend on chance or order."""
    draw = random.Random(seed)
    columns = list(VALUES)

    def aggregate() -> str:
        roll = draw.random()
        if roll < 0.2:
            return draw.choice(["count(*)", "COUNT(1)"])
        if roll < 0.35:
            return f"count({draw.choice(columns)})"
        if roll < 0.42:
            return f"count(DISTINCT {draw.choice(columns)})"
        if roll < 0.62:
            return f"sum({draw.choice(SUMMED)})"
        if roll < 0.78:
            return f"avg({draw.choice(AVERAGED)})"
        return f"{draw.choice(['min', 'MAX'])}({draw.choice(['', 'x.'])}{draw.choice(columns)})"

    by = draw.sample(columns, draw.choice([0, 0, 1, 1, 2]))
    computed = draw.choice(list(COMPUTED)) if by and draw.random() < 0.25 else None
    groups = [*by, *([computed] if computed else [])]
    made = [aggregate() for _ in range(draw.choice([1, 2, 3, 6]))]
    # Spark makes up a name of an expression, in a spelling of its own.
    shown = [f"{text} AS v{at}" if draw.random() < 0.5 else text for at, text in enumerate(made)]
    if draw.random() < 0.2:
        shown.append("coalesce(max(i8), 0) * 2 AS w")
    where = (
        f" WHERE {' AND '.join(draw.sample(CONDITIONS, draw.choice([1, 2])))}" if draw.random() < 0.6 else ""
    )
    text = f"SELECT {', '.join([*groups, *shown])} FROM wide x{where}"
    if groups:
        ordinals = ", ".join(str(at + 1) for at in range(len(groups)))
        text += f" GROUP BY {draw.choice(['ALL', ', '.join(groups), ordinals])}"
        if draw.random() < 0.3:
            text += f" HAVING count(*) > {draw.choice([0, 1, 3])} OR min(i8) IS NULL"
        elif draw.random() < 0.4:  # not behind HAVING, where Spark does not know the columns any more
            text += f" ORDER BY {made[0]} DESC, {groups[0]}"
    elif draw.random() < 0.2:
        text += " HAVING count(*) >= 0"
    roll = draw.random()
    if roll < 0.1:
        return f"SELECT count(*) FROM ({text})"
    if roll < 0.2:
        return f"WITH c AS ({text}) SELECT * FROM c UNION ALL SELECT * FROM c"
    if roll < 0.3:
        return f"SELECT DISTINCT {', '.join(draw.sample(columns, 2))} FROM wide{where}"
    return text


BY_HAND = r"""
SELECT sum(i64) FROM wide WHERE id < 0

SELECT count(*), count(s), min(s), max(y), sum(d5), avg(i8), avg(f64) FROM wide WHERE id < 0

SELECT s, count(*) FROM wide WHERE id < 0 GROUP BY s

SELECT s, sum(i32) AS i32 FROM wide GROUP BY s ORDER BY i32, s

SELECT s, sum(i32) AS total, total + 1 AS more FROM wide GROUP BY s HAVING total > 3

SELECT x.`s`, SUM(x.I32), Count(`b`) FROM wide AS x WHERE x.id > 3 GROUP BY x.s

SELECT DISTINCT f32 FROM wide

SELECT f32, count(*), count(DISTINCT f64) FROM wide GROUP BY f32

SELECT sum(DISTINCT i8), count(DISTINCT s, b), avg(i32) FROM wide

SELECT n, count(*) FROM wide GROUP BY n

SELECT (SELECT max(i32) FROM wide) AS a, (SELECT count(*) FROM wide w WHERE w.id > 5) AS b

SELECT id FROM wide WHERE i64 = (SELECT max(i64) FROM wide) AND EXISTS (SELECT count(*) FROM wide)

SELECT o.id, (SELECT count(*) FROM wide w WHERE w.id = o.id) AS c FROM wide o WHERE o.id < 9

SELECT a.s, b.n FROM (SELECT s, max(id) AS k FROM wide GROUP BY s) a JOIN (SELECT i8, count(*) AS n, min(id)
AS k FROM wide GROUP BY i8) b ON a.k > b.k

SELECT s, sum(i32) OVER (PARTITION BY s) FROM wide WHERE i32 < 9

SELECT s, rank() OVER (ORDER BY count(*)) AS r FROM wide GROUP BY s

SELECT s, b, count(*) FROM wide GROUP BY ROLLUP (s, b)

SELECT sum(i32) FILTER (WHERE b) FROM wide

SELECT count(*) FROM wide -- of all
 WHERE id > 4 /* more */ ;

SELECT max(s) AS s, min(i8) AS k FROM wide HAVING max(s) > 'a'

SELECT i8, max(i8) AS m FROM wide GROUP BY i8 ORDER BY max(i8) + count(*), i8

SELECT year(t) AS y, month(t), count(*) FROM wide GROUP BY year(t), month(t)

SELECT max(cast(f32 AS string)), f32 + 1 FROM wide GROUP BY f32

SELECT cast(f64 AS string), count(*) FROM wide GROUP BY cast(f64 AS string)

SELECT count(*) AS `count(*)`, sum(i8) AS `partial sum(i32)`, sum(i32) FROM wide

SELECT b, count(*) c FROM wide GROUP BY b UNION ALL SELECT true, count(*) FROM wide GROUP BY i8
ORDER BY 1, 2
""".strip().split("\n\n")
