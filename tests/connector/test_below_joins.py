"""Aggregates below joins: which table of which query; `test_semi_joins` compares their rows."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from elasticscan.connector.sql import few_rows
from elasticscan.connector.sql.plan import plan_query
from elasticscan.connector.sql.query import Session
from tests.connector.catalog_queries import SHAPES

GROUPED = {
    "flights": ["id", "a", "s", "d", "g"],
    "ports": ["id", "a", "code", "name"],
    "tiny": ["id", "a", "note"],
}
ADDED = {"flights": ["id", "a", "b", "current_date"], "ports": ["id", "a", "m"], "tiny": ["id", "a"]}
KINDS = ["JOIN", "JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN", ","]
STAR = "SELECT p.name, sum(f.a) AS s FROM flights f JOIN ports p ON f.a = p.a GROUP BY p.name"


def summed(seed: int) -> str:
    """The query of a seed: two or three tables, and aggregates of one of them."""
    draw = random.Random(seed)
    names = [draw.choice(["flights", *GROUPED]) for _ in range(draw.choice([2, 2, 3]))]
    of = draw.randrange(len(names))
    text, where, shown = f"{names[0]} x0", [], [0]
    for at in range(1, len(names)):
        kind, other = draw.choice(KINDS), draw.choice(shown)
        key, same = draw.choice(["id", "a"]), draw.choice(["id", "a"])
        on = f"x{other}.{key} = X{at}.{same.upper()}"
        if kind == ",":
            text, where = f"{text}, {names[at]} x{at}", [*where, on]
        elif draw.random() < 0.2 and len(names) == 2:
            text += f" {kind} {names[at]} x{at} USING ({key})"
        else:
            more = draw.choice(["", "", f" AND x{at}.a > 2", f" AND x{other}.id < x{at}.id + 9"])
            text += f" {kind} {names[at]} x{at} ON {on}{more}"
        if kind not in ("SEMI JOIN", "ANTI JOIN"):
            shown.append(at)
    for at in shown:
        where += draw.choice(
            [
                [],
                [],
                [f"x{at}.a BETWEEN 1 AND 6"],
                [f"x{at}.a + 1 > 2"],
                [f"(x{at}.id < 30 OR x{at}.a = 4)"],
                [f"x{at}.id IN (2, 4, 8) AND NOT x{at}.a = 3"],
            ]
        )
    if of not in shown:
        of = draw.choice(shown)
    groups = [
        f"x{at}.{draw.choice(GROUPED[names[at]])}"
        for at in draw.sample(shown, draw.randrange(len(shown) + 1))
    ]
    column = draw.choice(ADDED[names[of]])
    items = draw.sample(
        ["count(*) AS n", f"sum(x{of}.{column}) AS s", f"avg(x{of}.{column}) AS v", f"count(x{of}.a)",
         f"min(x{of}.{column}) AS low", f"max(x{of}.id)", f"sum(x{of}.a * 2L) AS twice",
         f"count(DISTINCT x{draw.choice(shown)}.a) AS few"], draw.choice([1, 2, 3]))  # fmt: skip
    items = [f"{group} AS g{number}" for number, group in enumerate(groups)] + items
    text = f"SELECT {', '.join(items)} FROM {text}"
    text += f" WHERE {' AND '.join(where)}" if where else ""
    text += f" GROUP BY {', '.join(groups)}" if groups else ""
    return text + draw.choice(["", "", " HAVING count(*) > 2"])


def folded(text: str) -> list[str]:
    return [scan.alias for scan in plan_query(text, SHAPES, Session()).scans if scan.aggregates]


def reasons(text: str) -> str:
    scans = plan_query(text, SHAPES, Session()).scans
    return "; ".join(why for scan in scans for what, why in scan.stayed if what == "aggregates")


def test_most_random_aggregates_of_joins_are_folded() -> None:
    assert sum(bool(folded(summed(seed))) for seed in range(60)) > 30
    assert all(len(folded(summed(seed))) <= 1 for seed in range(60))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (STAR, "f sum(a) by a"),
        ("SELECT min(b) FROM ports p, flights f WHERE f.s = p.name AND f.g AND p.code LIKE 'p%'",
         "f min(b) by s"),
        ("SELECT note, count(*) FROM flights JOIN tiny USING (id) GROUP BY ALL", "flights count(*) by id"),
        ("SELECT g, max(x.b) FROM flights x ANTI JOIN tiny t ON x.id = t.a GROUP BY g", "x max(b) by g,id"),
        ("SELECT t.note, avg(x.b) FROM tiny t RIGHT JOIN flights x ON t.a < x.a GROUP BY t.note",
         "x avg(b),count(b) by a"),
        ("SELECT DISTINCT s, note FROM flights x JOIN tiny t ON x.a = t.a", "x  by s,a"),
        ("SELECT count(*) FROM flights CROSS JOIN ports", "flights count(*) by "),
        ("WITH y AS (SELECT t.a, sum(m) FROM ports JOIN tiny t USING (a) GROUP BY t.a) SELECT * FROM y",
         "ports sum(m) by a"),
    ],
)  # fmt: skip
def test_one_table_of_a_join_is_folded(text: str, expected: str) -> None:
    scans = [scan for scan in plan_query(text, SHAPES, Session()).scans if scan.aggregates]
    partial = [(scan.alias, scan.aggregates.partial) for scan in scans if scan.aggregates]
    assert [f"{alias} {','.join(one.values)} by {','.join(one.by)}" for alias, one in partial] == [expected]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELECT sum(f.a * p.a) AS s FROM flights f JOIN ports p ON f.a = p.a", "p.a is a column of another"),
        ("SELECT count(*) FROM flights f FULL JOIN ports p ON f.a = p.a", "rows without one of this table"),
        ("SELECT sum(p.a) FROM flights f LEFT JOIN ports p ON f.a = p.a", "rows without one of this table"),
        ("SELECT sum(a) FROM flights f JOIN ports p ON f.a = p.a", "not certainly a column of one table"),
        ("SELECT sum(a) FROM flights f JOIN ports p USING (a)", "not certainly a column of one table"),
        ("SELECT count(*) FROM flights NATURAL JOIN tiny", "not plain ones"),
        ("SELECT count(*) FROM flights f JOIN ports TABLESAMPLE (9 ROWS) p ON f.a = p.a", "not plain ones"),
        ("SELECT count(*) FROM flights f JOIN (SELECT 1 AS a) p USING (a)", "has more than a table"),
        ("SELECT count(*) FROM flights f JOIN others p ON f.a = p.a", "tests a condition first"),
        ("SELECT count(*) FROM flights f, ports p, others o", "more than tables of the store"),
        ("SELECT count(*) FROM flights f JOIN ports p ON f.a = p.a AND rand() < 0.5", "RAND"),
        ("SELECT count(*) FROM flights f JOIN ports p ON f.a = p.a WHERE p.a > rand()", "RAND"),
        ("SELECT p.name, sum(f.a) AS s FROM flights f JOIN ports p ON f.b = p.a GROUP BY 1", "0.0 and -0.0"),
        ("SELECT f.st.x, count(*) FROM flights f JOIN ports p ON f.a = p.a GROUP BY 1", "not certainly"),
    ],
)  # fmt: skip
def test_what_is_not_certain_is_joined_by_spark(text: str, why: str) -> None:
    assert not folded(text)
    assert why in reasons(text)


def test_conditions_go_from_the_text_where_tables_test_them() -> None:
    text = (
        "SELECT sum(f.b) AS n FROM flights f, ports p WHERE f.id BETWEEN 3 AND 50 AND f.a = p.a "
        "AND (p.m > 1 OR p.m + p.a < 9) AND f.g ORDER BY n"
    )
    assert plan_query(text, SHAPES, Session()).rewritten(["F", "P"]) == (
        "SELECT sum(`partial sum(b)`) AS n FROM `F` f, `P` p WHERE f.a = p.a "
        "AND (p.m > 1 OR p.m + p.a < 9) ORDER BY n"
    )


def test_groups_are_few_where_the_later_rows_begin_few() -> None:
    def few(*values: list[int]) -> bool:
        new = few_rows.NewGroups(["k"])
        return all(new.add(pa.record_batch({"k": page})) for page in values) and new.are_few()

    assert few([1, 2, 3, 4], [4, 3, 2, 1]) and few([1], [1], [1])
    assert not few([1, 2, 3, 4], [5, 6, 7, 8])
    assert not few([1, 1, 2, 2], [3, 3, 4, 4])
    assert few_rows.NewGroups([]).are_few() and not few_rows.NewGroups(["k"]).are_few()
