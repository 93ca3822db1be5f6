"""Four small tables, and random queries over them; those by hand are in `plans.txt`.

Random queries are joins and sets of queries, queries with a LIMIT, and aggregates. Which rows a LIMIT gives
is not specified without a whole order, so of such rows only what is certain is asked for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from elasticscan.metadata import TableInfo
from elasticscan.store import Store

FLIGHTS = pa.schema([
    pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), ("b", pa.float64()), ("s", pa.string()),
    ("d", pa.date32()), ("g", pa.bool_()), ("st", pa.struct([("x", pa.int32()), ("y", pa.string())])),
    ("arr", pa.list_(pa.int32())), ("at", pa.timestamp("us", "UTC")), ("current_date", pa.int32()),
])  # fmt: skip
PORTS = pa.schema([
    pa.field("code", pa.string(), nullable=False), ("id", pa.int64()), ("a", pa.int32()),
    ("name", pa.string()), ("m", pa.decimal128(9, 2)),
])  # fmt: skip
TINY = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string()), ("a", pa.int32())])
KEYS = {"flights": "id", "ports": "code", "tiny": "id", "wide": "id"}
INDEXES = {
    "flights": ("id", "a", "b", "s", "d", "at"),
    "ports": ("id", "a", "name", "m"),
    "tiny": ("a",),
    "wide": (),
}

# Floats whose sums are the same in any order; so are those of whole numbers, which Spark averages as floats.
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "b": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, 0, 127]),
    "u32": (pa.uint32(), [0, 7, 2**32 - 1]),
    "i32": (pa.int32(), [-(2**31), 0, 5, 2**31 - 1]),
    "i64": (pa.int64(), [-(2**44), -7, 0, 2**40]),
    "f32": (pa.float32(), [math.nan, -0.0, 0.0, 1.5, -2.25, math.inf]),
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
WIDE = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), *((name, kind) for name, (kind, _) in VALUES.items())]
)
SUMMED = ["i8", "u32", "i32", "i64", "f32", "f64", "d5", "d20", "d38"]
AVERAGED = [name for name in SUMMED if not name.startswith("d")]


def _rows() -> dict[str, pa.Table]:
    chance = random.Random(7)

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.2 else value

    flights = [
        {
            "id": i,
            "a": maybe(chance.randrange(8)),
            "b": maybe(chance.choice([0.5, 1.5, 2.5, math.nan, 4.0])),
            "s": maybe(chance.choice(["ab", "b", "Abc", "", "it's"])),
            "d": maybe(date(2024, 1, 1) + timedelta(days=chance.randrange(5))),
            "g": maybe(chance.random() < 0.5),
            "st": maybe({"x": maybe(chance.randrange(4)), "y": maybe("y")}),
            "arr": maybe([chance.randrange(5) for _ in range(chance.randrange(3))]),
            "at": maybe(datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=chance.randrange(48))),
            "current_date": maybe(chance.randrange(3)),
        }
        for i in range(60)
    ]
    ports = [
        {
            "code": f"p{i}",
            "id": maybe(chance.randrange(40)),
            "a": maybe(chance.randrange(8)),
            "name": maybe(chance.choice(["ab", "b", "c"])),
            "m": maybe(Decimal(chance.randrange(-300, 300)) / 100),
        }
        for i in range(20)
    ]
    tiny = [{"id": i, "note": maybe("n"), "a": maybe(i)} for i in range(0, 12, 2)]
    rows = {"flights": (flights, FLIGHTS), "ports": (ports, PORTS), "tiny": (tiny, TINY)}
    return {name: pa.Table.from_pylist(found, schema=schema) for name, (found, schema) in rows.items()}


def _wide_rows(draw: random.Random, ids: list[int]) -> pa.Table:
    columns = [
        pa.array([None if draw.random() < 0.25 else draw.choice(values) for _ in ids], kind)
        for kind, values in VALUES.values()
    ]
    return pa.Table.from_arrays([pa.array(ids, pa.int64()), *columns], schema=WIDE)


def fill(store: Store) -> None:
    """Make the tables; `wide` in several commits, with rows written again and rows deleted."""
    for name, schema in SCHEMAS.items():
        store.create_table(name, schema, [KEYS[name]])
        for column in INDEXES[name]:
            store.table(name).create_index(f"by_{column}", [column])
    for name, rows in _rows().items():
        store.table(name).upsert(rows)
    draw, wide = random.Random(5), store.table("wide")
    wide.upsert(_wide_rows(draw, list(range(90))))
    wide.upsert(_wide_rows(draw, draw.sample(range(120), 40)))
    wide.delete(draw.sample(range(120), 20))


SCHEMAS = {"flights": FLIGHTS, "ports": PORTS, "tiny": TINY, "wide": WIDE}


def table_of(schema: pa.Schema, *key: str) -> TableInfo:
    return TableInfo(1, "t", schema, key, key, None, 1, 1)


TABLES = {name: table_of(schema, KEYS[name]) for name, schema in SCHEMAS.items()}


def blocks_of(file: Path) -> Iterator[tuple[list[str], str]]:
    """Return the remarks above each text of a golden file, and the text without its plan."""
    for block in file.read_text(encoding="utf-8").strip("\n").split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith("| ")]
        head = [line for line in lines if line.startswith("# ")]
        yield head, "\n".join(lines[len(head) :])


# Random queries


COLUMNS = {
    "flights": {"id": "n", "a": "n", "b": "f", "s": "s", "d": "d", "g": "b", "st.x": "n"}
    | {"current_date": "n"},
    "ports": {"code": "s", "id": "n", "a": "n", "name": "s", "m": "n"},
    "tiny": {"id": "n", "note": "s", "a": "n"},
}  # fmt: skip
Source = tuple[str, dict[str, str]]
CONDITIONS = [
    "i32 > 0", "id % 2 = 0", "s >= 'a'", "b", "NOT b OR i8 = 0", "d5 > 0 AND i64 < 0", "t IS NOT NULL",
    "id BETWEEN 10 AND 40", "f64 > 0", "id < 0",
]  # fmt: skip
COMPUTED = {"year(t)": "t", "upper(s)": "s", "i32 + 1L": "i32", "CASE WHEN b THEN 1 ELSE 2 END": "b"}


class Generator:
    """Queries over the tables, from a seed. Never one whose rows depend on chance or order, but of limits."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.count = 0

    def query(self) -> str:
        shape = self.chance.random()
        if shape < 0.15:
            kind = self.chance.choice(["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "MINUS"])
            return f"{self.select(types='ns')} {kind} {self.select(types='ns')}"
        if shape < 0.35:
            return self.with_cte()
        return self.select(top=True)

    def with_cte(self) -> str:
        # One of the tables' own names hides the table in the body, not in its own definition.
        name = self.chance.choice(["c1", "ports", "Tiny"])
        inner = self.select(types="ns")
        body = self.select(types="n", ctes={name.lower(): {"c0": "n", "c1": "s"}})
        second = f", c2 AS (SELECT * FROM {name} WHERE c0 > 1)" if self.chance.random() < 0.4 else ""
        return f"WITH {name} AS ({inner}){second} {body}"

    def alias(self) -> str:
        self.count += 1
        return f"q{self.count}"

    def source(self, ctes: dict[str, dict[str, str]], depth: int) -> tuple[str, Source]:
        chance = self.chance.random()
        if ctes and chance < 0.5:
            name = self.chance.choice(list(ctes))
            alias = self.alias()
            return f"{name} {alias}", (alias, ctes[name])
        if depth < 1 and chance < 0.65:
            alias = self.alias()
            inner = self.select(types="ns", depth=depth + 1, ctes=ctes)
            return f"({inner}) {alias}", (alias, {"c0": "n", "c1": "s"})
        tables = [name for name in COLUMNS if name not in ctes]
        name = self.chance.choice(tables)
        alias = self.alias()
        return f"{self.spelt(name)} {self.chance.choice(['', 'AS '])}{alias}", (alias, COLUMNS[name])

    def spelt(self, name: str) -> str:
        return self.chance.choice([name, name, name.upper(), f"`{name}`"])

    def select(
        self,
        types: str | None = None,
        depth: int = 0,
        ctes: dict[str, dict[str, str]] | None = None,
        outer: list[Source] | None = None,
        top: bool = False,
    ) -> str:
        sources, hidden = [], set()
        text, first = self.source(ctes or {}, depth)
        sources.append(first)
        for _ in range(self.chance.choice([0, 0, 1, 1, 2] if depth == 0 else [0, 0, 1])):
            kind = self.chance.choice(
                ["JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN",
                 "LEFT ANTI JOIN", "CROSS JOIN", ","]
            )  # fmt: skip
            other, added = self.source(ctes or {}, depth)
            visible = [each for each in sources if each[0] not in hidden]
            text += f" {kind} {other}" if kind != "," else f", {other}"
            sources.append(added)
            if "CROSS" not in kind and kind != ",":
                text += f" ON {self.on(visible, added)}"
            if "SEMI" in kind or "ANTI" in kind:
                hidden.add(added[0])
        scope = [each for each in sources if each[0] not in hidden]
        conditions = [self.condition(scope) for _ in range(self.chance.choice([0, 1, 1, 2]))]
        if outer and self.chance.random() < 0.8:
            left, right = self.of_type(scope, "n"), self.of_type(outer, "n")
            conditions.append(f"{self.named(*left)} = {self.named(*right)}")
        if depth < 1 and self.chance.random() < 0.3:
            conditions.append(self.subquery(scope, depth, ctes or {}))
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {self.items(scope, types, top, text + where)}"

    def items(self, scope: list[Source], types: str | None, top: bool, rest: str) -> str:
        if top and self.chance.random() < 0.3:
            star = self.chance.choice(
                ["*", f"{scope[0][0]}.*", f"{scope[-1][0]}.*, {self.number(scope)} AS x"]
            )
            return f"{star} FROM {rest}"
        if self.chance.random() < 0.3 and types in (None, "n"):
            key = self.number(scope)
            total = self.chance.choice(
                ["count(*)", f"sum({self.number(scope)})", f"max({self.number(scope)})"]
            )
            group = self.chance.choice([key, "ALL"])
            return f"{key} AS c0, {total} AS c1 FROM {rest} GROUP BY {group}"
        if top and self.chance.random() < 0.1:
            return f"count(*) AS c0 FROM {rest}"
        if types == "x":
            return f"{self.number(scope)} AS c0 FROM {rest}"
        wanted = types or "".join(self.chance.choice("nsn") for _ in range(self.chance.choice([1, 2, 3])))
        items = [
            f"{self.named(*self.of_type(scope, kind)) if self.has(scope, kind) else 'NULL'} AS c{i}"
            for i, kind in enumerate(wanted)
        ]
        if top and self.chance.random() < 0.2:
            items.append(f"max({self.number(scope)}) OVER (PARTITION BY {self.number(scope)}) AS w")
        return f"{', '.join(items)} FROM {rest}"

    def on(self, left: list[Source], right: Source) -> str:
        parts = [f"{self.named(*self.of_type(left, 'n'))} = {self.named(*self.of_type([right], 'n'))}"]
        parts += [
            self.condition(self.chance.choice([left, [right]])) for _ in range(self.chance.choice([0, 1, 1]))
        ]
        return " AND ".join(parts)

    def subquery(self, scope: list[Source], depth: int, ctes: dict[str, dict[str, str]]) -> str:
        kind = self.chance.choice(["EXISTS", "NOT EXISTS", "IN"])
        if kind == "IN":
            return f"{self.number(scope)} IN ({self.select(types='x', depth=2, ctes=ctes)})"
        return f"{kind} ({self.select(types='n', depth=2, outer=scope, ctes=ctes)})"

    def has(self, scope: list[Source], kind: str) -> bool:
        return any(kind in columns.values() for _, columns in scope)

    def of_type(self, scope: list[Source], kind: str) -> tuple[str, str]:
        found = [(alias, name) for alias, columns in scope for name, each in columns.items() if each == kind]
        return self.chance.choice(found)

    def number(self, scope: list[Source]) -> str:
        return self.named(*self.of_type(scope, "n"))

    def named(self, alias: str, column: str) -> str:
        return f"{alias}.{self.chance.choice([column, column, column.upper()])}"

    def condition(self, scope: list[Source]) -> str:
        roll = self.chance.random()
        if roll < 0.12:
            return f"({self.condition(scope)} OR {self.condition(scope)})"
        if roll < 0.2:
            return f"NOT ({self.condition(scope)})"
        kind = self.chance.choice([each for each in "nnnsfdb" if self.has(scope, each)])
        name = self.named(*self.of_type(scope, kind))
        if self.chance.random() < 0.15:
            return f"{name} IS {self.chance.choice(['', 'NOT '])}NULL"
        number = self.chance.randrange(6)
        forms = {
            "n": [f"{name} > {number}", f"{name} <= {number}.5", f"{name} IN ({number}, 2, NULL)",
                  f"{name} BETWEEN 1 AND {number}", f"{name} <=> {number}", f"{name} + 1 > {number}",
                  f"coalesce({name}, 0) = 0", f"{name} <> {number}", f"{name} = {self.number(scope)}",
                  f"{name} <=> NULL"],
            "f": [f"{name} > {number}", f"{name} = 1.5", f"isnan({name})", f"{name} < 2.5e0", f"{name} >= 4"],
            "s": [f"{name} = 'ab'", f"{name} LIKE '%b%'", f"{name} IN ('b', 'it\\'s', '')", f"{name} > 'a'",
                  f"upper({name}) = 'AB'", f"{name} NOT LIKE 'a_'"],
            "d": [f"{name} >= '2024-01-03'", f"{name} = DATE '2024-01-02'", f"{name} < DATE '2024-01-04'",
                  f"year({name}) = 2024"],
            "b": [name, f"NOT {name}", f"{name} IS TRUE", f"{name} = false"],
        }  # fmt: skip
        return self.chance.choice(forms[kind])

    def limited(self) -> str:
        chance = self.chance
        table = chance.choice(list(COLUMNS))
        scope, key = [("t", COLUMNS[table])], KEYS[table]
        conditions = [self.condition(scope) for _ in range(chance.choice([0, 0, 1, 1, 2]))]
        if chance.random() < 0.2:
            keys = "'p3', 'p7', 'p99'" if table == "ports" else "2, 4, 40, 99"
            conditions.append(f"t.{key} IN ({keys})")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        by = chance.choice([(), (key,), ("a", key), ("a", key), ("a",)])
        directions = chance.choice([("", ""), (" DESC", " DESC"), ("", " DESC"), (" DESC", "")])
        order = f" ORDER BY {', '.join(map(str.__add__, by, directions))}" if by else ""
        shown = f"{', '.join(by or (key,))}, {chance.choice(['t.a', 't.a + 1'])} AS x"
        if by == ("a",):
            shown = "a"  # of equal ones, any rows
        elif not by and chance.random() < 0.3:
            shown = "*"
        whole = f"SELECT {shown} FROM {self.spelt(table)} t{where}"
        rows, offset = chance.choice([0, 1, 2, 5, 30, 1_000]), chance.choice([0, 0, 0, 1, 4])
        part = f"{whole}{order} LIMIT {rows}" + (f" OFFSET {offset}" if offset else "")
        if not by:
            counted = f"SELECT count(*), count(DISTINCT {key}) FROM ({part}) l"
            return f"{counted} LEFT SEMI JOIN ({whole}) t ON l.{key} = t.{key}"
        joined = "SELECT l.*, tiny.note FROM ({0}) l LEFT JOIN tiny ON length(tiny.note) + tiny.id = 5"
        body = "SELECT x.* FROM c x CROSS JOIN (SELECT count(*) AS n FROM c) y WHERE n >= 0"
        shapes = ["{0}", "{0}", "{0}", "SELECT count(*) FROM ({0})", "({0}) UNION ALL ({0})"]
        return chance.choice([*shapes, f"WITH c AS ({{0}}) {body}", joined]).format(part)

    def aggregated(self) -> str:
        draw = self.chance
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
            f" WHERE {' AND '.join(draw.sample(CONDITIONS, draw.choice([1, 2])))}"
            if draw.random() < 0.6
            else ""
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
