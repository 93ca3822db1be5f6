"""What a query is found to need, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from elasticscan.connector.sql.plan import QueryPlan, TableShape, plan_query
from elasticscan.connector.sql.query import Session, UnreadableError
from elasticscan.filters import Predicate

FLIGHTS = pa.schema([
    ("id", pa.int64()), ("origin", pa.string()), ("dest", pa.string()), ("delay", pa.int32()),
    ("small", pa.int8()), ("price", pa.decimal128(7, 2)), ("big", pa.decimal128(38, 0)), ("km", pa.float64()),
    ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")),
    ("late", pa.bool_()),
    ("st", pa.struct([("x", pa.int32())])), ("arr", pa.list_(pa.int32())), ("current_user", pa.string()),
])  # fmt: skip
PORTS = pa.schema([("code", pa.string()), ("id", pa.int64()), ("name", pa.string()), ("alt", pa.int32())])
TABLES = {"flights": TableShape(FLIGHTS, "id"), "ports": TableShape(PORTS, "code")}


def plan(text: str, session: Session | None = None) -> QueryPlan:
    return plan_query(text, TABLES, session or Session())


def columns(text: str, session: Session | None = None) -> list[str]:
    """The columns of each reference, in one text each; `*` for all."""
    return [" ".join(scan.columns or "*") for scan in plan(text, session).scans]


def filters(text: str, session: Session | None = None) -> list[str | None]:
    return [scan.filter for scan in plan(text, session).scans]


def reasons(text: str, session: Session | None = None) -> str:
    return "; ".join(why for scan in plan(text, session).scans for _, why in scan.stayed)


# Columns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT origin FROM flights", ["origin"]),
        ("SELECT ORIGIN, `Dest` FROM Flights ORDER BY flights.DELAY", ["origin dest delay"]),
        ("SELECT count(*) FROM flights", ["id"]),
        ("SELECT count(DISTINCT *) FROM ports", ["*"]),
        ("SELECT * FROM flights", ["*"]),
        ("SELECT p.*, f.id FROM flights f, ports p", ["id", "*"]),
        ("SELECT hash(*) FROM ports", ["*"]),
        ("SELECT code, id, name, alt FROM ports", ["*"]),
        ("SELECT f.st.x, f.st.* FROM flights f", ["st"]),
        ("SELECT current_user FROM flights", ["current_user"]),
        ("SELECT f.delay, p.name FROM flights f JOIN ports p USING (id)", ["id delay", "id name"]),
        ("SELECT v FROM flights LATERAL VIEW explode(arr) e AS v", ["arr"]),
        ("SELECT filter(arr, km -> km > delay) FROM flights", ["delay km arr"]),
        ("SELECT origin FROM flights GROUP BY ALL HAVING max(delay) > 3", ["origin delay"]),
        ("SELECT origin FROM flights QUALIFY row_number() OVER (ORDER BY km) = 1", ["origin km"]),
        ("(SELECT id FROM flights) ORDER BY km", ["id km"]),
        ("SELECT id FROM flights UNION SELECT alt FROM ports ORDER BY id", ["id", "alt"]),
        ("SELECT (SELECT max(alt) FROM ports WHERE code = f.dest) FROM flights f", ["code alt", "dest"]),
        ("SELECT id FROM flights WHERE EXISTS (SELECT * FROM ports WHERE code = dest)", ["id dest", "code"]),
        ("SELECT n FROM flights f, LATERAL (SELECT f.km + alt AS n FROM ports)", ["km", "alt"]),
        ("SELECT l.km FROM flights f, LATERAL (SELECT *) l", ["*"]),
        ("SELECT * FROM (SELECT delay FROM flights) PIVOT (count(*) FOR delay IN (1))", ["delay"]),
    ],
)  # fmt: skip
def test_every_column_that_a_query_mentions_is_read_and_no_other(text: str, expected: list[str]) -> None:
    assert columns(text) == expected


def test_names_that_the_option_cannot_list_are_never_chosen_among() -> None:
    for names in (["a", "b,c"], ["a", " b"], ["a", "A"]):
        tables = {"t": TableShape(pa.schema([(name, pa.int32()) for name in names]), "a")}
        assert plan_query("SELECT a FROM t", tables, Session()).scans[0].columns is None


# Conditions


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("delay > 60", "delay > 60"),
        ("DELAY BETWEEN 1 AND 3", "delay >= 1 AND delay <= 3"),
        ("origin IN ('JFK', 'LGA') AND NOT late", "origin IN ('JFK', 'LGA') AND NOT late"),
        ("origin LIKE 'J%' OR origin IS NULL", "origin LIKE 'J%' OR origin IS NULL"),
        ("(delay > 1 AND (km < 2 AND late))", "delay > 1 AND km < 2.0D AND late"),
        ("delay <=> NULL", "delay <=> NULL"),
        ("day = '2024-01-02'", "day = DATE '2024-01-02'"),
        ("st.x = 3 AND flights.st.x < 9", "st.x = 3 AND st.x < 9"),
        ("id > 3 AND id = 5L AND delay < 1.5", "id > 3L AND id = 5L AND delay < 1.5"),
        ("price > 1 AND km > 1.5e0 AND small < 1000", "price > 1.00 AND km > 1.5D AND small < 1000"),
        ("price > id", "price > id"),
        ("delay > 1 AND delay > 1", "delay > 1"),
        ("origin = 'it\\'s' AND dest = 'it''s'", "origin = 'it\\'s' AND dest = 'it\\'s'"),
        ("at > '2024-01-02'", "at > TIMESTAMP '2024-01-02 00:00:00'"),
        ("id = 1 + 2 AND delay > 10 * 60", "id = 1 + 2 AND delay > 10 * 60"),
    ],
)
def test_a_condition_on_one_table_goes_to_it(condition: str, expected: str) -> None:
    (found,) = filters(f"SELECT 1 FROM flights WHERE {condition}")
    assert found is not None
    assert Predicate.parse(found, FLIGHTS) == Predicate.parse(expected, FLIGHTS)


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("coalesce(delay, 0) = 0", "computed"),
        ("origin = 5", "converts origin to BIGINT"),
        ("CAST(origin AS INT) = 1", "converts origin"),
        ("origin = DATE '2024-01-01'", "converts origin"),
        ("day = at", "converts day"),
        ("day = '2024-02-30'", "2024-02-30"),
        ("rand() > 0.5", ""),
        ("id = 2147483647 + 1", ""),
        ("delay > (SELECT 1)", "sub-query"),
        ("my_function(delay)", "MY_FUNCTION"),
        ("array_contains(arr, 1)", ""),
        ("1 = 1", ""),
        ("nothing > 1", ""),
    ],
)
def test_a_condition_that_could_fail_or_mean_something_else_stays(condition: str, why: str) -> None:
    text = f"SELECT 1 FROM flights WHERE {condition}"
    assert filters(text) == [None]
    assert why in reasons(text)
    assert plan(text).rewritten(["v"]).endswith(f"`v` AS `flights` WHERE {condition}")


def test_the_other_conjuncts_go_without_those_that_stay() -> None:
    assert filters("SELECT 1 FROM flights WHERE delay > 1 AND delay / 0 > 1 AND late") == [
        "delay > 1 AND late"
    ]


def test_a_filter_that_would_be_too_long_is_left_out_and_the_others_go() -> None:
    long = ", ".join(f"'{i:06}'" for i in range(8_000))
    assert filters(f"SELECT 1 FROM flights WHERE origin IN ({long}) AND late") == ["late"]


# Joins

JOINED = "SELECT 1 FROM flights f {kind} ports p ON f.dest = p.code AND f.delay > 1 AND p.alt > 2"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("JOIN", ["delay > 1", "alt > 2"]),
        ("LEFT JOIN", [None, "alt > 2"]),
        ("RIGHT JOIN", ["delay > 1", None]),
        ("FULL JOIN", [None, None]),
        ("LEFT SEMI JOIN", ["delay > 1", "alt > 2"]),
        ("LEFT ANTI JOIN", [None, "alt > 2"]),
    ],
)
def test_a_condition_of_a_join_reduces_the_sides_that_lose_rows(
    kind: str, expected: list[str | None]
) -> None:
    assert filters(JOINED.format(kind=kind)) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("JOIN", ["delay IS NULL", "alt IS NULL"]),
        ("LEFT JOIN", ["delay IS NULL", None]),
        ("RIGHT JOIN", [None, "alt IS NULL"]),
        ("FULL JOIN", [None, None]),
    ],
)
def test_a_condition_does_not_pass_an_outer_join_that_fills_its_table_with_nulls(
    kind: str, expected: list[str | None]
) -> None:
    text = (
        f"SELECT 1 FROM flights f {kind} ports p ON f.dest = p.code WHERE f.delay IS NULL AND p.alt IS NULL"
    )
    assert filters(text) == expected
    if None in expected:
        assert "an outer join gives rows" in reasons(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1 FROM flights, ports WHERE delay > 1 AND alt > 2", ["delay > 1", "alt > 2"]),
        ("SELECT 1 FROM flights f JOIN flights g ON f.id = g.delay WHERE f.late AND g.km > 1 AND late",
         ["late", "km > 1.0D"]),
        ("SELECT 1 FROM flights JOIN ports USING (id) WHERE id > 3", ["id > 3", None]),
        ("SELECT 1 FROM flights LEFT JOIN ports USING (id) WHERE id > 3", ["id > 3", None]),
        ("SELECT 1 FROM flights RIGHT JOIN ports USING (id) WHERE id > 3", [None, None]),
        ("SELECT 1 FROM flights FULL JOIN ports USING (id) WHERE id > 3", [None, None]),
        ("SELECT 1 FROM flights JOIN ports WHERE id > 3", [None, None]),
        ("SELECT 1 FROM ports p, ports q LEFT JOIN flights f ON f.id = q.id AND p.alt > 1 AND f.late",
         [None, None, "late"]),
        ("SELECT 1 FROM ports p, ports q JOIN flights f ON p.alt > 1 AND q.alt > 2",
         ["alt > 1", "alt > 2", None]),
        ("SELECT 1 FROM flights f LEFT SEMI JOIN ports p ON f.dest = p.code WHERE alt > 3", [None, None]),
        ("SELECT 1 FROM flights LATERAL VIEW explode(arr) st AS x WHERE st.x > 1 AND late", ["late"]),
        ("SELECT 1 FROM (SELECT * FROM flights WHERE late) flights WHERE flights.delay > 1", ["late"]),
        ("SELECT 1 FROM ports p WHERE EXISTS (SELECT 1 FROM flights WHERE p.alt > 1 AND late)",
         [None, "late"]),
        ("SELECT 1 FROM ports WHERE alt > 1 UNION SELECT 1 FROM ports WHERE alt > 2", ["alt > 1", "alt > 2"]),
        ("SELECT 1 FROM flights f WHERE flights.late", [None]),
        ("SELECT id FROM flights HAVING late", [None]),
    ],
)  # fmt: skip
def test_conditions_find_the_reference_that_they_are_about(text: str, expected: list[str | None]) -> None:
    assert [None if each is None else each.replace("L", "") for each in filters(text)] == expected


# References


@pytest.mark.parametrize(
    ("text", "views"),
    [
        ("WITH flights AS (SELECT 1 AS id) SELECT * FROM flights", []),
        ("WITH FLIGHTS AS (SELECT * FROM flights) SELECT * FROM flights, ports", ["flights", "ports"]),
        (
            "WITH a AS (SELECT * FROM flights), flights AS (SELECT * FROM a) SELECT * FROM flights",
            ["flights"],
        ),
        ("WITH ports AS (SELECT 1), a AS (SELECT * FROM ports) SELECT * FROM a, flights", ["flights"]),
        ("SELECT * FROM (WITH ports AS (SELECT 1) SELECT * FROM ports) x, ports", ["ports"]),
        ("SELECT (WITH a AS (SELECT 1 AS n) SELECT n FROM a, ports) FROM flights", ["ports", "flights"]),
        ("WITH ports AS (SELECT 1) SELECT * FROM flights WHERE id IN (SELECT * FROM ports)", ["flights"]),
        ("SELECT * FROM other.flights, ports", ["ports"]),
        ("SELECT /*+ BROADCAST(ports) */ * FROM flights -- FROM ports", ["flights"]),
        ("SELECT 'FROM ports' FROM flights ports", ["flights"]),
        (
            "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r, ports) SELECT * FROM r",
            ["ports"],
        ),
        ("SELECT 1", []),
    ],
)
def test_a_reference_is_reported_from_what_only_has_the_name(text: str, views: list[str]) -> None:
    assert [scan.view for scan in plan(text).scans] == views


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT flights.id FROM flights;", "SELECT flights.id FROM `v0` AS `flights`;"),
        ("SELECT 1 FROM FLIGHTS f, `ports`", "SELECT 1 FROM `v0` f, `v1` AS `ports`"),
        ("SELECT 1 /* é😀 */ FROM flights\n-- x\nAS f", "SELECT 1 /* é😀 */ FROM `v0`\n-- x\nAS f"),
            ],
)  # fmt: skip
def test_only_names_change_in_the_text(text: str, expected: str) -> None:
    found = plan(text)
    assert found.rewritten([f"v{at}" for at in range(len(found.scans))]) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "INSERT INTO flights SELECT * FROM flights",
        "CREATE TABLE x AS SELECT * FROM flights",
        "EXPLAIN SELECT * FROM flights",
        "TABLE flights",
        "SELECT * FROM f(TABLE(flights))",
        "SELECT * FROM STREAM(flights)",
        "SELECT * FROM IDENTIFIER('flights')",
        "SELECT IDENTIFIER('delay') FROM flights",
        "FROM flights |> WHERE late",
        "FROM flights SELECT id SELECT delay",
        "SELECT ${x} FROM flights",
        "SELECT FROM WHERE",
        "SELECT 'open FROM flights",
        "SELECT 1; SELECT 2",
        "SELECT * FROM session.flights",
        "SELECT name FROM (ports) AS p",
        "SELECT id FROM flights NATURAL JOIN ports",
        "SELECT id FROM flights AS f(id, x, y)",
        "SELECT * FROM ports PIVOT (count(*) FOR alt IN (1))",
        "SELECT 1 FROM ports TABLESAMPLE (3 ROWS) WHERE alt > 1",
        "WITH RECURSIVE flights AS (SELECT * FROM flights) SELECT * FROM flights",
        "SELECT " + "(" * 5_000 + "1" + ")" * 5_000 + " FROM flights",
    ],
)
def test_text_that_is_no_query_or_not_certain_is_left_alone(text: str) -> None:
    with pytest.raises(UnreadableError):
        plan(text)


def test_two_views_whose_names_differ_by_case_alone_are_left_alone() -> None:
    tables = {"T": TABLES["ports"], "t": TABLES["ports"]}
    with pytest.raises(UnreadableError):
        plan_query("SELECT code FROM t", tables, Session())


# Settings


def test_moments_are_compared_by_spark_where_the_time_zone_is_another() -> None:
    session = Session(utc=False)
    text = "SELECT 1 FROM flights WHERE {}"
    for condition in (
        "at > '2024-01-02'",
        "at = TIMESTAMP '2024-01-02'",
        "local < at",
        "at > day",
        "at = at",
    ):
        assert filters(text.format(condition), session) == [None]
    assert filters(text.format("at IS NOT NULL AND day > '2024-01-02'"), session) != [None]
    assert filters(text.format("local > '2024-01-02'"), session) != [None]


def test_nothing_that_converts_is_handed_over_without_the_ansi_rules() -> None:
    session = Session(ansi=False)
    text = "SELECT 1 FROM flights WHERE {}"
    for condition in (
        "delay = '3'",
        "day > '2024-01-02'",
        "delay > 1.5",
        "delay > km",
        "delay = CAST(3 AS INT)",
    ):
        assert filters(text.format(condition), session) == [None]
    assert filters(text.format("delay > 3 AND id < 4 AND km > 2 AND origin = 'a'"), session) != [None]


def test_a_session_that_reads_text_otherwise_gets_its_text_unchanged() -> None:
    with pytest.raises(UnreadableError, match="some setting"):
        plan("SELECT id FROM flights", Session(unusual="some setting"))
