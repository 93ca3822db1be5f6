"""The examples of docs/streaming.md, run one after the other, with the results that it promises."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from elasticscan.connector import register

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "streaming.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d+")


def blocks() -> list[tuple[str, str | None]]:
    """The guide's code, each block with the output that stands right under it, if any."""
    return [(match[1], match[2]) for match in _BLOCK.finditer(GUIDE.read_text(encoding="utf-8"))]


def statements(code: str) -> Iterator[tuple[ast.stmt, str | None]]:
    """Each statement with the remark at its end."""
    lines = code.splitlines()
    for statement in ast.parse(code).body:
        assert statement.end_lineno is not None
        _, found, remark = lines[statement.end_lineno - 1].partition("  # ")
        yield statement, remark if found else None


def promised(remark: str, value: Any) -> bool:
    """Whether a remark promises this value; words alone promise nothing."""
    if not re.match(r"[\d(]|True|False", remark):
        return True
    number = _NUMBER.match(remark)
    return repr(value) in (remark, number and number[0])


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


@pytest.mark.spark
def test_the_examples_of_the_guide_do_what_it_says(
    following: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    wrong = []
    for code, output in blocks():
        capsys.readouterr()
        for statement, remark in statements(code.replace('"/data/', f'"{tmp_path}/')):
            if not isinstance(statement, ast.Expr):
                exec(compile(ast.Module([statement], []), str(GUIDE), "exec"), names)
                continue
            value = eval(compile(ast.Expression(statement.value), str(GUIDE), "eval"), names)  # noqa: S307
            if remark is not None and not promised(remark, value):
                wrong.append(f"{ast.unparse(statement)} is {value!r}, not {remark}")
        if output is not None and output.startswith("+"):
            assert capsys.readouterr().out.strip() == output.strip()
    following.streams.removeListener(names["listener"])
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
        ("tablets move to a new shard,", None, True),
    ],
)
def test_a_remark_is_compared_where_it_promises_a_value(remark: str, value: Any, right: bool) -> None:
    assert promised(remark, value) is right
