"""Which LIMITs a table is reported of, without Spark."""

from __future__ import annotations

import pytest

from elasticscan.connector.sql.limits import RowLimit
from elasticscan.connector.sql.plan import plan_query
from elasticscan.connector.sql.query import Session
from tests.connector.catalog_queries import SHAPES


def limits(text: str) -> list[RowLimit | None]:
    return [scan.limit for scan in plan_query(text, SHAPES, Session()).scans]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT * FROM tiny LIMIT 3", 3),
        ("SELECT * FROM tiny LIMIT 0", 0),
        ("FROM tiny LIMIT 3", 3),
        ("SELECT a + 1 AS b, CASE WHEN id > 2 THEN note END FROM tiny t LIMIT 3", 3),
        ("SELECT * FROM tiny LIMIT 3 OFFSET 4", 7),
        ("SELECT * EXCEPT (a) FROM tiny WHERE a > 2 AND note LIKE 'n%' LIMIT 3", 3),
        ("SELECT count(*) FROM (SELECT a FROM tiny LIMIT 3)", 3),
        ("(SELECT a FROM tiny LIMIT 3) LIMIT 1", 3),
        ("WITH c AS (SELECT a FROM tiny LIMIT 3) SELECT * FROM c x JOIN c y ON x.a = y.a", 3),
        ("SELECT * FROM (SELECT a FROM tiny LIMIT 3) UNION ALL SELECT 1 LIMIT 2", 3),
        ("SELECT (SELECT a FROM tiny LIMIT 1)", 1),
    ],
)
def test_a_limit_right_over_a_table_reaches_it(text: str, rows: int) -> None:
    assert limits(text) == [RowLimit(rows)]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM tiny",
        "SELECT * FROM tiny LIMIT ALL",
        "SELECT * FROM tiny LIMIT 1 + 1",
        "SELECT * FROM tiny OFFSET 3",
        "SELECT * FROM tiny LIMIT 2147483647 OFFSET 1",
        "SELECT count(*) FROM tiny LIMIT 3",
        "SELECT my_total(a) FROM tiny LIMIT 3",
        "SELECT sum(a) OVER () FROM tiny LIMIT 3",
        "SELECT explode(array(a)) FROM tiny LIMIT 3",
        "SELECT DISTINCT a FROM tiny LIMIT 3",
        "SELECT a FROM tiny QUALIFY row_number() OVER (ORDER BY a) = 1 LIMIT 3",
        "SELECT a FROM tiny LATERAL VIEW explode(array(1, 2)) e AS v LIMIT 3",
        "SELECT a FROM tiny WHERE a + 1 > 2 LIMIT 3",
        "SELECT a FROM tiny WHERE a IN (SELECT 1) LIMIT 3",
        "(SELECT a FROM tiny) LIMIT 3",
        "SELECT a FROM tiny ORDER BY a + 1 LIMIT 3",
        "SELECT a FROM tiny ORDER BY 1 LIMIT 3",
        "SELECT a FROM tiny ORDER BY a NULLS LAST LIMIT 3",
        "SELECT a FROM tiny ORDER BY note COLLATE UTF8_LCASE LIMIT 3",
        "SELECT -a AS a FROM tiny ORDER BY a LIMIT 3",
        "SELECT id FROM flights ORDER BY st.x LIMIT 3",
        "SELECT st.* FROM flights ORDER BY a LIMIT 3",
        "SELECT a + 1 FROM tiny ORDER BY a LIMIT 3",
    ],
)
def test_any_other_limit_stays_with_spark(text: str) -> None:
    assert limits(text) == [None]


def test_a_join_needs_all_rows_of_both_sides() -> None:
    for kind in ("JOIN", "LEFT JOIN", "CROSS JOIN", "LEFT SEMI JOIN"):
        on = "" if kind == "CROSS JOIN" else " ON t.id = u.id"
        assert limits(f"SELECT t.a FROM tiny t {kind} tiny u{on} LIMIT 3") == [None, None]
    assert limits("SELECT t.a FROM tiny t, tiny u LIMIT 3") == [None, None]


def test_a_sub_query_that_compares_with_the_query_around_it_has_no_limit() -> None:
    text = "SELECT (SELECT a FROM tiny u WHERE u.id = t.id LIMIT 1) FROM tiny t LIMIT 4"
    assert limits(text) == [None, None]


def test_an_order_by_columns_goes_with_the_limit() -> None:
    assert limits("SELECT * FROM tiny t ORDER BY t.A DESC NULLS LAST, ID DESC LIMIT 3 OFFSET 1") == [
        RowLimit(4, ("a DESC", "id DESC"))
    ]
    assert limits("SELECT a AS x FROM tiny ORDER BY note NULLS FIRST LIMIT 3") == [RowLimit(3, ("note",))]
    assert limits("SELECT a AS b FROM tiny ORDER BY a LIMIT 3") == [RowLimit(3, ("a",))]
