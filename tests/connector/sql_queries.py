"""Four small tables, and random queries over them; those by hand are in `plans.txt`.

Random queries are joins and sets of queries, queries with a LIMIT, and aggregates. Which rows a LIMIT gives
is not specified without a whole order, so of such rows only what is certain is asked for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


CHOICES: dict[str, dict[str, Sequence[Any]]] = {
    "flights": {
        "a": range(8), "b": [0.5, 1.5, 2.5, math.nan, 4.0], "s": ["ab", "b", "Abc", "", "it's"],
        "d": [date(2024, 1, day) for day in range(1, 6)], "g": [True, False],
        "st": [{"x": x, "y": y} for x in (None, 0, 1, 2, 3) for y in (None, "y")],
        "arr": [[], [0], [1, 4], [3, 2]], "current_date": range(3),
        "at": [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=hour) for hour in range(48)],
    },
    "ports": {
        "id": range(40), "a": range(8), "name": ["ab", "b", "c"],
        "m": [Decimal(cents) / 100 for cents in range(-300, 300, 7)],
    },
    "tiny": {"note": ["n"], "a": range(2, 12, 2)},
    "wide": {name: values for name, (_, values) in VALUES.items()},
}  # fmt: skip


def _rows(draw: random.Random, table: str, keys: Iterable[Any]) -> pa.Table:
    """Rows of some keys, each other value one of `CHOICES`, or null."""
    rows = [
        {
            name: None if draw.random() < 0.2 else draw.choice(values)
            for name, values in CHOICES[table].items()
        }
        | {KEYS[table]: key}
        for key in keys
    ]
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in SCHEMAS[table]]
    return pa.Table.from_arrays(columns, schema=SCHEMAS[table])


def fill(store: Store) -> None:
    """Make the tables; `wide` in several commits, with rows written again and rows deleted."""
    draw = random.Random(7)
    keys = {"flights": range(60), "ports": [f"p{at}" for at in range(20)], "tiny": range(0, 12, 2)}
    for name, schema in SCHEMAS.items():
        table = store.create_table(name, schema, [KEYS[name]])
        for column in INDEXES[name]:
            table.create_index(f"by_{column}", [column])
        table.upsert(_rows(draw, name, keys.get(name, range(90))))
    store.table("wide").upsert(_rows(draw, "wide", draw.sample(range(120), 40)))
    store.table("wide").delete(draw.sample(range(120), 20))


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
Columns = Mapping[str, str]
Source = tuple[str, Columns]
JOINS = [
    " JOIN", " LEFT JOIN", " LEFT JOIN", " RIGHT JOIN", " FULL JOIN", " LEFT SEMI JOIN", " LEFT ANTI JOIN",
    " CROSS JOIN", ",",
]  # fmt: skip
CONDITIONS = [
    "i32 > 0", "id % 2 = 0", "s >= 'a'", "b", "NOT b OR i8 = 0", "d5 > 0 AND i64 < 0", "t IS NOT NULL",
    "id BETWEEN 10 AND 40", "f64 > 0", "id < 0",
]  # fmt: skip
COMPUTED = {"year(t)": "t", "upper(s)": "s", "i32 + 1L": "i32", "CASE WHEN b THEN 1 ELSE 2 END": "b"}


class Generator:
    """Queries over the tables, from a seed. Never one whose rows depend on chance or order, but of limits."""

    def __init__(self, seed: int) -> None:
        self.chance, self.count = random.Random(seed), 0
        self.pick = self.chance.choice

    def query(self) -> str:
        shape = self.chance.random()
        if shape < 0.15:
            kind = self.pick(["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "MINUS"])
            return f"{self.select('ns')} {kind} {self.select('ns')}"
        if shape < 0.35:
            # One of the tables' own names hides the table in the body, not in its own definition.
            name = self.pick(["c1", "ports", "Tiny"])
            second = self.pick(["", f", c2 AS (SELECT * FROM {name} WHERE c0 > 1)"])
            body = self.select(self.pick(["n", "group"]), {name.lower(): {"c0": "n", "c1": "s"}})
            return f"WITH {name} AS ({self.select('ns')}){second} {body}"
        return self.select(self.pick(["n", "sn", "nsn", "*", "*", "group", "group", "count", "window"]))

    def select(
        self, shown: str, ctes: Mapping[str, Columns] = {}, outer: Sequence[Source] = (), depth: int = 0
    ) -> str:
        """A SELECT of a number and a text, say, as `shown` is "ns"; its columns are c0 and c1."""
        text, first = self.source(ctes, depth)
        scope = [first]
        for _ in range(self.pick([0, 0, 1, 1, 2] if depth == 0 else [0, 0, 1])):
            kind = self.pick(JOINS)
            other, added = self.source(ctes, depth)
            on = [f"{self.column(scope, 'n')} = {self.column([added], 'n')}"]
            on += [self.condition(self.pick([scope, [added]])) for _ in range(self.pick([0, 1, 1]))]
            text += f"{kind} {other}" + ("" if kind in (",", " CROSS JOIN") else f" ON {' AND '.join(on)}")
            scope += [] if "SEMI" in kind or "ANTI" in kind else [added]
        conditions = [self.condition(scope) for _ in range(self.pick([0, 1, 1, 2]))]
        if outer and self.chance.random() < 0.8:
            conditions.append(f"{self.column(scope, 'n')} = {self.column(outer, 'n')}")
        if depth == 0 and self.chance.random() < 0.3:
            inner = self.select("n", ctes, self.pick([(), scope]), depth=2)
            number = f"{self.column(scope, 'n')} IN"
            conditions.append(f"{self.pick(['EXISTS', 'NOT EXISTS', number])} ({inner})")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return self.shown(scope, shown, f"FROM {text}{where}")

    def shown(self, scope: Sequence[Source], shown: str, rest: str) -> str:
        number, other = self.column(scope, "n"), self.column(scope, "n")
        every = ["*", f"{scope[0][0]}.*", f"{scope[-1][0]}.*, {number} AS x"]
        total = self.pick(["count(*)", f"sum({other})", f"max({other})"])
        kinds = {
            "*": f"SELECT {self.pick(every)} {rest}",
            "group": f"SELECT {number} AS c0, {total} AS c1 {rest} GROUP BY {self.pick([number, 'ALL'])}",
            "count": f"SELECT count(*) AS c0 {rest}",
            "window": f"SELECT {number} AS c0, max({other}) OVER (PARTITION BY {number}) AS w {rest}",
        }
        columns = [f"{self.column(scope, kind)} AS c{at}" for at, kind in enumerate(shown) if kind in "ns"]
        return kinds.get(shown, f"SELECT {', '.join(columns)} {rest}")

    def source(self, ctes: Mapping[str, Columns], depth: int) -> tuple[str, Source]:
        self.count += 1
        alias, chance = f"q{self.count}", self.chance.random()
        if ctes and chance < 0.5:
            name = self.pick(list(ctes))
            return f"{name} {alias}", (alias, ctes[name])
        if depth < 1 and chance < 0.65:
            return f"({self.select('ns', ctes, depth=1)}) {alias}", (alias, {"c0": "n", "c1": "s"})
        name = self.pick([name for name in COLUMNS if name not in ctes])
        return f"{self.spelt(name)} {self.pick(['', 'AS '])}{alias}", (alias, COLUMNS[name])

    def spelt(self, name: str) -> str:
        return self.pick([name, name, name.upper(), f"`{name}`"])

    def column(self, scope: Sequence[Source], kind: str) -> str:
        named = [
            f"{alias}.{self.pick([name, name, name.upper()])}"
            for alias, columns in scope
            for name, each in columns.items()
            if each == kind
        ]
        return self.pick(named)

    def condition(self, scope: Sequence[Source]) -> str:
        roll = self.chance.random()
        if roll < 0.12:
            return f"({self.condition(scope)} OR {self.condition(scope)})"
        if roll < 0.2:
            return f"NOT ({self.condition(scope)})"
        kinds = {kind for _, columns in scope for kind in columns.values()}
        kind = self.pick([each for each in "nnnsfdb" if each in kinds])
        name, number = self.column(scope, kind), self.chance.randrange(6)
        forms = {
            "n": [f"{name} > {number}", f"{name} <= {number}.5", f"{name} IN ({number}, 2, NULL)",
                  f"{name} BETWEEN 1 AND {number}", f"{name} <=> {number}", f"{name} + 1 > {number}",
                  f"coalesce({name}, 0) = 0", f"{name} <> {number}", f"{name} = {self.column(scope, 'n')}",
                  f"{name} <=> NULL"],
            "f": [f"{name} > {number}", f"{name} = 1.5", f"isnan({name})", f"{name} < 2.5e0", f"{name} >= 4"],
            "s": [f"{name} = 'ab'", f"{name} LIKE '%b%'", f"{name} IN ('b', 'it\\'s', '')", f"{name} > 'a'",
                  f"upper({name}) = 'AB'", f"{name} NOT LIKE 'a_'"],
            "d": [f"{name} >= '2024-01-03'", f"{name} = DATE '2024-01-02'", f"{name} < DATE '2024-01-04'",
                  f"year({name}) = 2024"],
            "b": [name, f"NOT {name}", f"{name} IS TRUE", f"{name} = false"],
        }  # fmt: skip
        return self.pick([*forms[kind], f"{name} IS {self.pick(['', 'NOT '])}NULL"])

    def limited(self) -> str:
        table = self.pick(list(COLUMNS))
        key = KEYS[table]
        conditions = [self.condition([("t", COLUMNS[table])]) for _ in range(self.pick([0, 0, 1, 1, 2]))]
        if self.chance.random() < 0.2:
            keys = "2, 4, 40, 99" if key == "id" else "'p3', 'p7', 'p99'"
            conditions.append(f"t.{key} IN ({keys})")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        by = self.pick([(), (key,), ("a", key), ("a", key), ("a",)])
        directions = self.pick([("", ""), (" DESC", " DESC"), ("", " DESC"), (" DESC", "")])
        order = f" ORDER BY {', '.join(map(str.__add__, by, directions))}" if by else ""
        shown = f"{', '.join(by or (key,))}, {self.pick(['t.a', 't.a + 1'])} AS x"
        if by == ("a",):
            shown = "a"  # of equal ones, any rows
        elif not by and self.chance.random() < 0.3:
            shown = "*"
        whole = f"SELECT {shown} FROM {self.spelt(table)} t{where}"
        rows, offset = self.pick([0, 1, 2, 5, 30, 1_000]), self.pick(["", "", "", " OFFSET 1", " OFFSET 4"])
        part = f"{whole}{order} LIMIT {rows}{offset}"
        if not by:
            counted = f"SELECT count(*), count(DISTINCT {key}) FROM ({part}) l"
            return f"{counted} LEFT SEMI JOIN ({whole}) t ON l.{key} = t.{key}"
        joined = "SELECT l.*, tiny.note FROM ({0}) l LEFT JOIN tiny ON length(tiny.note) + tiny.id = 5"
        body = "SELECT x.* FROM c x CROSS JOIN (SELECT count(*) AS n FROM c) y WHERE n >= 0"
        shapes = ["{0}", "{0}", "{0}", "SELECT count(*) FROM ({0})", "({0}) UNION ALL ({0})"]
        return self.pick([*shapes, f"WITH c AS ({{0}}) {body}", joined]).format(part)

    def aggregated(self) -> str:
        draw, columns = self.chance, list(VALUES)
        column = self.pick([f"{self.pick(['', 'x.'])}{name}" for name in columns])
        by = draw.sample(columns, self.pick([0, 0, 1, 1, 2]))
        groups = [*by, *(self.pick([[], [], [], [self.pick(list(COMPUTED))]]) if by else [])]
        forms = ["count(*)", "COUNT(1)", f"count({column})", f"count(DISTINCT {self.pick(columns)})"]
        forms += [f"sum({self.pick(SUMMED)})", f"avg({self.pick(AVERAGED)})", f"min({column})"]
        made = [self.pick([*forms, f"MAX({self.pick(columns)})"]) for _ in range(self.pick([1, 2, 3, 6]))]
        # Spark makes up a name of an expression, in a spelling of its own.
        shown = [f"{text} AS v{at}" if draw.random() < 0.5 else text for at, text in enumerate(made)]
        shown += self.pick([[], [], [], ["coalesce(max(i8), 0) * 2 AS w"]])
        where = self.pick(["", f" WHERE {' AND '.join(draw.sample(CONDITIONS, self.pick([1, 2])))}"])
        text = f"SELECT {', '.join([*groups, *shown])} FROM wide x{where}"
        having = f" HAVING count(*) > {self.pick([0, 1, 3])} OR min(i8) IS NULL"
        if groups:
            ordinals = ", ".join(str(at + 1) for at in range(len(groups)))
            text += f" GROUP BY {self.pick(['ALL', ', '.join(groups), ordinals])}"
            # Not both: behind HAVING Spark does not know the columns any more.
            having = self.pick([having, f" ORDER BY {made[0]} DESC, {groups[0]}", ""])
        text += self.pick([having, ""])
        distinct = f"SELECT DISTINCT {', '.join(draw.sample(columns, 2))} FROM wide{where}"
        twice = f"WITH c AS ({text}) SELECT * FROM c UNION ALL SELECT * FROM c"
        return self.pick([f"SELECT count(*) FROM ({text})", twice, distinct, *[text] * 7])
