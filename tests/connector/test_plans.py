"""Golden plans: of each query what its tables read, and of each other statement what is made of it; no Spark.

Below each text of `plans.txt` and `statements.txt` stands its plan, after `| `.
After a change that is meant, `PLANS=write pytest tests/connector/test_plans.py` writes them again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import InvalidCall
from elasticscan.connector.sql.changing import CHANGES, read_change
from elasticscan.connector.sql.definitions import read_creation
from elasticscan.connector.sql.plan import plan_query
from elasticscan.connector.sql.query import Session
from elasticscan.connector.sql.statements import insertion, statement_about
from elasticscan.connector.sql.tokens import NotUnderstoodError
from tests.connector.sql_queries import TABLES, blocks_of, table_of

TARGETS = {
    "trips": table_of(pa.schema({name: pa.int32() for name in ("day", "id", "km", "to")}), "day", "id"),
    "odd`name": table_of(pa.schema({"id": pa.int32(), "a b": pa.int32()}), "id"),
    "update": table_of(pa.schema({"id": pa.int32()}), "id"),
}


def query_plan(text: str) -> str:
    setting, _, query = text[1:].partition("] ") if text.startswith("[") else ("", "", text)
    name, _, value = setting.partition("=")
    session = Session(**({name: value if name == "unusual" else False} if name else {}))  # type: ignore[arg-type]
    try:
        plan = plan_query(query, TABLES, session)
    except NotUnderstoodError as why:
        return f"left to Spark: {why}"
    shown = plan.explained(1, [None] * len(plan.scans))
    names = [f"{scan.reference.table}#{number}" for number, scan in enumerate(plan.scans, 1)]
    ended = plan.rewritten(names, [True] * len(names))
    if ended != plan.rewritten(names, [False] * len(names)):
        shown += f"\nin the driver: {ended}"
    return shown.removeprefix("snapshot 1\n\n")


def statement_plan(text: str) -> str:
    try:
        statement = statement_about(text, TARGETS)
        if statement is None:
            found = insertion(text, {view: table.schema.names for view, table in TARGETS.items()}, "x")
            return (
                "Spark's"
                if found is None
                else f"partial update of {found[0]} ({', '.join(found[1])}): {found[2]}"
            )
        if statement.kind == "CREATE TABLE":
            columns, rows, options = read_creation(statement.reader)
            lenient = " if missing" * statement.is_lenient
            return f"{statement.view}{lenient} of {columns or rows} with {options}"
        if statement.kind in CHANGES:
            change = read_change(statement, TARGETS[statement.view])
            return f"{', '.join(change.actions)} by {change.query}"
        return f"{statement.kind} of {statement.view}{' if it exists' * statement.is_lenient}"
    except (NotUnderstoodError, InvalidCall) as why:
        return f"refused: {why}"


@pytest.mark.parametrize(("name", "shown"), [("plans", query_plan), ("statements", statement_plan)])
def test_texts_are_planned_as_the_file_says(name: str, shown: Callable[[str], str]) -> None:
    file = Path(__file__).with_name(f"{name}.txt")
    again = []
    for head, text in blocks_of(file):
        lines = [line.rstrip() for line in shown(text).splitlines() if line.strip()] if text else []
        again.append("\n".join([*head, *([text] if text else []), *(f"| {line}" for line in lines)]))
    written = "\n\n".join(again) + "\n"
    if os.environ.get("PLANS") == "write":
        file.write_text(written, encoding="utf-8")
    assert written == file.read_text(encoding="utf-8")


def test_a_filter_that_would_be_too_long_is_left_out_and_the_others_go() -> None:
    long = ", ".join(f"'{i:06}'" for i in range(8_000))
    (scan,) = plan_query(f"SELECT 1 FROM flights WHERE s IN ({long}) AND g", TABLES, Session()).scans
    assert scan.filter == "g"


def test_a_query_that_is_nested_too_deeply_is_left_to_spark() -> None:
    assert query_plan("SELECT " + "(" * 5_000 + "1" + ")" * 5_000 + " FROM flights").startswith(
        "left to Spark"
    )


def test_names_that_cannot_be_listed_are_not_chosen_among() -> None:
    for names in (["a", "b,c"], ["a", " b"], ["a", "A"]):
        tables = {"t": table_of(pa.schema([(name, pa.int32()) for name in names]), "a")}
        assert plan_query("SELECT a FROM t", tables, Session()).scans[0].columns is None
