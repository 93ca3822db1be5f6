"""Three small tables, and queries over them: random ones from a seed, and some by hand."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from elasticscan.connector.sql.plan import TableShape

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
KEYS = {"flights": "id", "ports": "code", "tiny": "id"}


def tables() -> dict[str, pa.Table]:
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


SHAPES = {name: TableShape(rows.schema, KEYS[name]) for name, rows in tables().items()}


# Random queries

COLUMNS = {
    "flights": {"id": "n", "a": "n", "b": "f", "s": "s", "d": "d", "g": "b", "st.x": "n"}
    | {"current_date": "n"},
    "ports": {"code": "s", "id": "n", "a": "n", "name": "s", "m": "n"},
    "tiny": {"id": "n", "note": "s", "a": "n"},
}  # fmt: skip
Source = tuple[str, dict[str, str]]


class Generator:
    """Queries over the three tables, from a seed. Never one whose rows depend on chance or order."""

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


def generated(seed: int) -> str:
    return Generator(seed).query()


# Queries by hand, with an empty line between

BY_HAND = r"""
select COUNT(*), count(distinct *) from Flights where `A` > 2

SELECT flights.id, `flights`.`S` FROM `flights` WHERE flights.S = 'ab' -- about flights
 AND id > 3;

SELECT current_date FROM flights WHERE current_date > 0

SELECT * EXCEPT (arr, st) FROM flights WHERE st.x = 1 AND st.y IS NOT NULL

SELECT f.st.x, st.y, f.st.* FROM flights f WHERE f.st.x >= 1

SELECT id, v FROM flights LATERAL VIEW explode(arr) e AS v WHERE v > 1 AND a < 6 AND e.v < 4

SELECT id, v FROM flights LATERAL VIEW OUTER explode(arr) e AS v WHERE v IS NULL AND g

SELECT f.id, l.n FROM flights f, LATERAL (SELECT count(*) AS n FROM ports p WHERE p.a = f.a AND p.id
> 9) l

SELECT id, filter(arr, a -> a > 1) FROM flights WHERE size(arr) > 0 AND id < 40

SELECT g, sum(a) FROM flights WHERE s LIKE '%b%' GROUP BY ALL HAVING sum(a) > 1 ORDER BY ALL

SELECT g, a, grouping_id() FROM flights WHERE id < 30 GROUP BY CUBE (g, a)

SELECT id, rank() OVER w FROM flights WHERE a > 1 WINDOW w AS (PARTITION BY g ORDER BY id)

SELECT * FROM flights f JOIN tiny t USING (id) WHERE t.note IS NOT NULL AND f.a > 1

SELECT id, note FROM flights LEFT JOIN tiny USING (id) WHERE id > 2 AND note IS NULL

SELECT id, note FROM tiny RIGHT JOIN flights USING (id) WHERE id > 2

SELECT id, note FROM tiny FULL JOIN ports USING (id) WHERE id > 2

SELECT id, note FROM tiny FULL JOIN ports USING (id) WHERE id IS NULL OR tiny.id IS NULL

SELECT * FROM ports LEFT ANTI JOIN tiny USING (id) WHERE id > 3

SELECT f.id, p.code FROM flights f LEFT JOIN ports p ON f.id = p.id WHERE p.m IS NULL

SELECT f.id, p.code FROM flights f LEFT JOIN ports p ON f.id = p.id WHERE NOT p.m <=> 1 AND p.a <=>
NULL

SELECT f.id FROM ports p RIGHT JOIN flights f ON f.id = p.id AND f.a > 3 AND p.a > 2 WHERE p.a IS
NULL

(SELECT id FROM tiny WHERE a > 2) ORDER BY note

SELECT a FROM flights INTERSECT (SELECT a FROM ports WHERE m > 0 EXCEPT SELECT a FROM tiny WHERE a >
4)

WITH tiny AS (SELECT id AS k FROM ports), x AS (WITH ports AS (SELECT k AS a FROM tiny) SELECT a
FROM ports) SELECT x.a, count(*) FROM x JOIN ports p ON p.id = x.a WHERE p.a > 1 GROUP BY 1

WITH x AS (SELECT id FROM tiny), tiny AS (SELECT 5 AS id) SELECT x.id, tiny.id FROM x, tiny WHERE
x.id > 1

WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 4) SELECT n, note FROM r
JOIN tiny ON n = tiny.id WHERE tiny.a > 1

SELECT (SELECT max(p.m) FROM ports p WHERE p.a = f.a AND p.id > 3) FROM flights f WHERE f.id < 20

SELECT id FROM flights f WHERE a = (SELECT count(*) FROM tiny WHERE tiny.id < f.id AND note = 'n')

SELECT id FROM tiny t WHERE EXISTS (SELECT 1 FROM flights a, ports t WHERE t.code = 'p1' AND a.id =
3)

SELECT * FROM (SELECT g, a FROM flights) PIVOT (count(*) FOR g IN (true, false))

FROM flights SELECT id WHERE a > 2

SELECT /*+ BROADCAST(tiny), MERGE(f) */ f.id FROM flights f JOIN tiny ON f.id = tiny.id

SELECT id FROM flights WHERE at >= '2024-01-01 12:00:00' AND at < TIMESTAMP '2024-01-02' AND d <>
'2024-01-02'

SELECT id FROM flights WHERE a <> 0 AND 10 / a > 2 AND (a > 3 OR b > 1) AND NOT (g OR s = 'b')

SELECT id FROM flights WHERE true AND NOT false AND b = b AND b > 2 AND s = 'it''s'

SELECT 'SELECT * FROM flights' AS `x`, '😀' AS `é` FROM tiny WHERE note LIKE 'n%' /* FROM flights */

SELECT t.id, r.id FROM tiny t JOIN range(3, 8) r ON t.id = r.id WHERE t.a > 2 AND r.id < 7

SELECT id FROM tiny, VALUES (1, 4), (2, 5) AS v(k, w) WHERE id = w AND k > 0

SELECT DISTINCT s, CASE WHEN a > 3 THEN 'x' ELSE s END FROM flights DISTRIBUTE BY s SORT BY s

SELECT max(struct(a, id)).id, max_by(s, id) FROM flights WHERE id BETWEEN 3 AND 20

SELECT f.id FROM flights f ANTI JOIN ports p ON f.a = p.a AND f.id > 4 AND p.m > 0
""".strip().split("\n\n")
