"""INSERTs that leave columns out: which they are, and what Spark is given in their place."""

from __future__ import annotations

import pytest

from elasticscan.base.errors import NotSupported
from elasticscan.connector.sql.inserting import insertions
from elasticscan.connector.sql.query import Session

TABLES = {"trips": ["id", "City", "km"], "odd`name": ["id", "a b"]}


@pytest.mark.parametrize(
    ("text", "view", "columns", "pieces"),
    [
        (
            "INSERT INTO trips (id, km) VALUES (1, 2)",
            "trips",
            ("id", "km"),
            ("trips", "(id", "VALUES (1, 2)"),
        ),
        (
            "insert into table Session.`Trips`(city,ID) select 'a', 1",
            "trips",
            ("id", "City"),
            ("Session.", "(city", "select 'a', 1"),
        ),
        ("INSERT INTO `odd``name` (`id`) (SELECT 1)", "odd`name", ("id",), ("`odd", "(`id`", "(SELECT 1)")),
        ("INSERT INTO trips BY NAME SELECT 1 AS id", "trips", None, ("trips", "BY NAME", "SELECT 1 AS id")),
        (
            "WITH x AS (SELECT 1 AS a) INSERT INTO trips (id) SELECT a FROM x",
            "trips",
            ("id",),
            ("trips", "(id)", "SELECT a FROM x"),
        ),
        (
            "BEGIN INSERT INTO trips (id) VALUES (1); END",
            "trips",
            ("id",),
            ("trips", "(id)", "VALUES (1); END"),
        ),
    ],
)
def test_an_insert_that_leaves_columns_out_is_found(
    text: str, view: str, columns: tuple[str, ...] | None, pieces: tuple[str, str, str]
) -> None:
    (found,) = insertions(text, TABLES, Session())
    assert (found.view, found.columns) == (view, columns)
    assert text[found.insert :].lower().startswith("insert into")
    for place, piece in zip((found.name, found.behind, found.query), pieces, strict=True):
        assert text[place:].startswith(piece)


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO trips VALUES (1, 'a', 2)",
        "INSERT INTO trips (km, city, id) VALUES (2, 'a', 1)",
        "INSERT INTO trips (id, nope) VALUES (1, 2)",
        "INSERT INTO trips (id, ID) VALUES (1, 2)",
        "INSERT INTO trips (SELECT id FROM trips)",
        "INSERT INTO trips (VALUES (1))",
        "INSERT INTO other (id) VALUES (1)",
        "INSERT INTO elsewhere.trips (id) VALUES (1)",
        "INSERT OVERWRITE trips (id) VALUES (1)",
        "INSERT INTO trips (id)",
        "EXPLAIN INSERT INTO trips (id) VALUES (1)",
        "SELECT 'INSERT INTO trips (id) VALUES (1)'",
        "MERGE INTO trips USING s ON true WHEN NOT MATCHED THEN INSERT (id) VALUES (1)",
        "INSERT INTO",
        "",
    ],
)
def test_every_other_text_is_left_as_it_is(text: str) -> None:
    assert insertions(text, TABLES, Session()) == []


def test_columns_of_a_query_are_reported_only_where_it_stands_by_itself() -> None:
    with pytest.raises(NotSupported, match="list the columns"):
        insertions("BEGIN INSERT INTO trips BY NAME SELECT 1 AS id; END", TABLES, Session())
