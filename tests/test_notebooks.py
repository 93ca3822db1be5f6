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
@pytest.mark.parametrize(("name", "first_view"), [("spark.ipynb", "trips"), ("flights.ipynb", "flights")])
def test_the_notebooks_with_spark_give_what_they_say(spark: SparkSession, name: str, first_view: str) -> None:
    for package in ("duckdb", "polars"):
        pytest.importorskip(package)
    assert differences(notebook(name)) == []
    for view in (first_view, "corrections"):
        spark.catalog.dropTempView(view)
