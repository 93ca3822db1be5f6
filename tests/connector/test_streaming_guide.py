"""The examples of docs/streaming.md, run one after the other, with the results that it promises."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from elasticscan.connector import register
from tests.connector.guide import blocks, run
from tests.pages import promised, statements


@pytest.fixture
def following(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that forgets what the guide did to it and to the log."""
    register(spark)
    log, root = logging.getLogger("elasticscan"), logging.getLogger()
    level, handlers = log.level, list(root.handlers)
    yield spark
    for query in spark.streams.active:
        query.stop()
    log.setLevel(level)
    root.handlers[:] = handlers


@pytest.mark.long
@pytest.mark.spark
def test_the_examples_of_the_guide_do_what_it_says(
    following: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    wrong = []
    for code, output in blocks():
        capsys.readouterr()
        wrong += run(code, tmp_path, names)
        if output is not None and output.startswith("+"):
            assert capsys.readouterr().out.strip() == output.strip()
    assert wrong == []


def test_the_guide_has_examples_with_results_and_one_with_output() -> None:
    found = blocks()
    remarks = [remark for code, _ in found for _, remark in statements(code) if remark]
    assert len(remarks) >= 15
    assert any(output and output.startswith("+") for _, output in found)


@pytest.mark.parametrize(
    ("remark", "value", "right"),
    [
        ("10250", 10_250, True),
        ("10250", 10_251, False),
        ("4: rows that were there before", 4, True),
        ("4: rows that were there before", 5, False),
        ("(3, 10300, True)", (3, 10_300, True), True),
        ("(3, 10300, True)", (4, 10_300, True), False),
        ("True", False, False),
        ("['visits']", ["visits"], True),
        ("['visits']", ["trips"], False),
        ("tablets move to a new shard,", None, True),
    ],
)
def test_a_remark_is_compared_where_it_promises_a_value(remark: str, value: Any, right: bool) -> None:
    assert promised(remark, value) is right
