"""The notebooks of docs/notebooks: each cell runs, and gives the text that is kept in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from scripts.notebooks import differences
from tests.pages import ROOT


def notebook(name: str) -> dict[str, Any]:
    """Where a test of it fails, `python scripts/notebooks.py docs/notebooks/*.ipynb`."""
    found: dict[str, Any] = json.loads((ROOT / "docs" / "notebooks" / name).read_text(encoding="utf-8"))
    return found


def test_the_notebook_without_spark_gives_what_it_says() -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("polars")
    assert differences(notebook("python.ipynb")) == []


@pytest.mark.long
@pytest.mark.spark
def test_the_notebook_with_spark_gives_what_it_says(spark: SparkSession) -> None:
    assert differences(notebook("spark.ipynb")) == []
    for view in ("trips", "corrections"):
        spark.catalog.dropTempView(view)


@pytest.mark.long
@pytest.mark.spark
def test_the_notebook_of_flights_gives_what_it_says(spark: SparkSession) -> None:
    for package in ("duckdb", "polars"):
        pytest.importorskip(package)
    assert differences(notebook("flights.ipynb")) == []
    for view in ("flights", "corrections"):
        spark.catalog.dropTempView(view)


def test_a_cell_that_gives_something_else_is_found() -> None:
    def cell(source: str, value: str, *tags: str) -> dict[str, Any]:
        shown = {"output_type": "execute_result", "data": {"text/plain": [value]}}
        meta = {"tags": list(tags)}
        return {"cell_type": "code", "metadata": meta, "source": [source], "outputs": [shown]}

    cells = [cell("x = 1\nx + 1", "2"), cell("x", "2", "varies"), cell("x", "3")]
    (wrong,) = differences({"cells": cells})
    assert wrong.startswith("x\ngives ['1'], not ['3']")
