"""A session whose workers run a Python without elasticscan is refused with what to set."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from elasticscan.base.errors import InvalidOption
from elasticscan.connector import attach, register
from elasticscan.connector.workers import check_python_of, wrong_python


def session(python: str, master: str = "local[2]") -> SparkSession:
    """A session that only says what runs its workers, and keeps what is registered."""
    kept: list[type] = []
    made: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(pythonExec=python, master=master),
        dataSource=SimpleNamespace(register=kept.append),
        kept=kept,
    )
    return cast(SparkSession, made)


@pytest.fixture
def another_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Python on the path that finds no elasticscan."""
    name = f"python_of_{tmp_path.name}"  # asked once for each name
    script = tmp_path / name
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return name


def test_a_session_with_another_python_is_reported_which_to_name() -> None:
    message = wrong_python("ModuleNotFoundError: No module named 'elasticscan'", "python3")
    assert message is not None and f"PYSPARK_PYTHON={sys.executable}" in message.message
    assert "Spark's workers run python3 without elasticscan" in message.message
    assert wrong_python("No module named 'numpy'", "python3") is None


def test_register_and_attach_refuse_workers_without_the_package(another_python: str) -> None:
    spark = session(another_python)
    for call in (register, lambda spark: attach(spark, "a.store")):
        with pytest.raises(InvalidOption, match=f"workers run {another_python} without .*PYSPARK_PYTHON="):
            call(spark)
    assert cast(Any, spark).kept == []


def test_workers_that_may_have_it_are_let_be(another_python: str) -> None:
    for spark in (
        session(sys.executable),
        session("python_that_is_nowhere"),
        session(another_python, "spark://elsewhere:7077"),  # there it is another one of this name
        cast(SparkSession, object()),  # unknown over Spark Connect
    ):
        check_python_of(spark)


def test_a_store_in_place_of_its_uri_is_reported() -> None:
    with pytest.raises(InvalidOption, match=r"store\.uri"):
        attach(session(sys.executable), cast(str, object()))
