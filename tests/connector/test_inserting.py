"""INSERTs that leave columns out: which they are, and what Spark is given in their place."""

from __future__ import annotations

import pytest

from elasticscan.base.errors import NotSupported
from elasticscan.connector.sql.inserting import insertion

TABLES = {"trips": ["id", "City", "km"], "odd`name": ["id", "a b"]}


@pytest.mark.parametrize(
    ("text", "view", "columns", "into"),
    [
        (
            "INSERT INTO trips (id, km) VALUES (1, 2)",
            "trips",
            ("id", "km"),
            "INSERT INTO `x` (id, km) VALUES (1, 2)",
        ),
        (
            "insert into table Session.`Trips`(city,ID) select 'a', 1",
            "trips",
            ("id", "City"),
            "insert into table `x` (city,ID) select 'a', 1",
        ),
        (
            "INSERT INTO `odd``name` (`id`) (SELECT 1)",
            "odd`name",
            ("id",),
            "INSERT INTO `x` (`id`) (SELECT 1)",
        ),
        (
            "WITH x AS (SELECT 1 AS a) INSERT INTO trips (id) SELECT a FROM x",
            "trips",
            ("id",),
            "WITH x AS (SELECT 1 AS a) INSERT INTO `x` (id) SELECT a FROM x",
        ),
    ],
)
def test_an_insert_that_leaves_columns_out_is_found(
    text: str, view: str, columns: tuple[str, ...], into: str
) -> None:
    found = insertion(text, TABLES)
    assert found is not None
    assert (found.view, found.columns, found.into("x")) == (view, columns, into)


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
    assert insertion(text, TABLES) is None


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO trips BY NAME SELECT 1 AS id",
        "BEGIN INSERT INTO trips (id) VALUES (1); END",
        "FROM x INSERT INTO trips (id) SELECT a INSERT INTO trips (id, km) SELECT a, b",
    ],
)
def test_an_insert_that_may_empty_columns_is_refused(text: str) -> None:
    with pytest.raises(NotSupported, match=r"INSERT INTO trips might empty columns that it leaves out"):
        insertion(text, TABLES)
