"""Random queries with LIMITs, each with what tells if an answer is right.

The rows that a LIMIT leaves are not specified. A query is made twice, with its limits and without: the rows
of the one are some of the other's, as many as there must be, and in an order they begin like the other's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.connector.catalog_queries import COLUMNS, KEYS, Generator


@dataclass(frozen=True, slots=True)
class LimitedQuery:
    """A query with a LIMIT.

    Attributes:
        text: the query; its rows are some of those of `whole`.
        inner: the SELECT with the LIMIT, without it and without its OFFSET.
        rows, offset: of the LIMIT.
        ordered: how many of the first columns the rows are in the order of, if `text` ends with that order.
        times: how often the SELECT's rows are in the answer.
        counts: true if the answer is the number of rows.
    """

    text: str
    whole: str
    inner: str
    rows: int
    offset: int
    ordered: int = 0
    times: int = 1
    counts: bool = False


def limited(seed: int) -> LimitedQuery:
    """The query of a seed."""
    chance, made = random.Random(seed), Generator(seed)
    table = chance.choice(list(COLUMNS))
    scope = [("t", COLUMNS[table])]
    key = KEYS[table]
    conditions = [made.condition(scope) for _ in range(chance.choice([0, 0, 1, 1, 2]))]
    if chance.random() < 0.2:
        conditions.append(f"t.{key} IN ({', '.join(repr(v) for v in ('p3', 'p7', 'p99'))})")
        if table != "ports":
            conditions[-1] = f"t.{key} IN (2, 4, 40, 99)"
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    by = chance.choice([(), (), (key,), ("a", key), ("a",)])
    directions = chance.choice([("", ""), (" DESC", " DESC"), ("", " DESC"), (" DESC", "")])
    shown = chance.choice(
        [f"{', '.join(by or (key,))}, t.a AS x", f"{', '.join(by or (key,))}, t.a + 1 AS x"]
    )
    if not by and chance.random() < 0.3:
        shown = "*"
    inner = f"SELECT {shown} FROM {made.spelt(table)} t{where}"
    order = f" ORDER BY {', '.join(map(str.__add__, by, directions))}" if by else ""
    rows, offset = chance.choice([0, 1, 2, 5, 30, 1_000]), chance.choice([0, 0, 0, 1, 4])
    part = f"{inner}{order} LIMIT {rows}" + (f" OFFSET {offset}" if offset else "")
    return _shaped(chance, inner + order, part, rows, offset, len(by))


def _shaped(
    chance: random.Random, whole: str, part: str, rows: int, offset: int, ordered: int
) -> LimitedQuery:
    shape = chance.random()
    if shape < 0.5:
        return LimitedQuery(part, whole, whole, rows, offset, ordered)
    if shape < 0.6:
        return LimitedQuery(f"SELECT count(*) FROM ({part})", whole, whole, rows, offset, counts=True)
    if shape < 0.75:
        return LimitedQuery(
            f"({part}) UNION ALL ({part})", f"({whole}) UNION ALL ({whole})", whole, rows, offset, times=2
        )
    if shape < 0.9:
        body = "SELECT x.* FROM c x CROSS JOIN (SELECT count(*) AS n FROM c) y WHERE n >= 0"
        return LimitedQuery(f"WITH c AS ({part}) {body}", f"WITH c AS ({whole}) {body}", whole, rows, offset)
    body = "SELECT l.*, tiny.note FROM ({}) l LEFT JOIN tiny ON length(tiny.note) + tiny.id = 5"
    return LimitedQuery(body.format(part), body.format(whole), whole, rows, offset)
