"""Pages of documentation: their blocks of Python, and what the remarks in them promise.

A remark after an expression promises its value where it begins like one: `trips.scan().count()  # 2`; or an
error: `# FilterError: [ES_INVALID_FILTER] …`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from elasticscan.base.errors import ElasticScanError

ROOT = Path(__file__).resolve().parents[1]
_FENCED = re.compile(
    r"(?:^<!-- ([^\n]*) -->\n)?^```(\w*)\n(.*?)^```$(?:\n```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)
_RAISED = re.compile(r"\w+: \[(ES_\w+)\]")
_NUMBER = re.compile(r"\d+")


class Block(NamedTuple):
    """A block of a page: the remark above it, its language and its text, and the output right under it."""

    remark: str
    language: str
    code: str
    output: str


def fenced(text: str) -> list[Block]:
    """The blocks of a text in any language."""
    return [Block(*(part or "" for part in match.groups())) for match in _FENCED.finditer(text)]


def blocks(text: str, language: str = "python") -> list[tuple[str, str]]:
    """The code of a text, each block with the output right under it, if any."""
    return [(block.code, block.output) for block in fenced(text) if block.language == language]


def steps(text: str) -> Iterator[tuple[str, str, str]]:
    """What a reader types, in order, each with what the page says that he sees: ("python", code, output),
    whose output is the block right under it, and ("shell", "elasticscan …", output), in one block."""
    for block in fenced(text):
        if block.remark.startswith("not run: "):
            continue
        if block.language == "python":
            yield "python", block.code, block.output
        elif not block.language and block.code.startswith("$ "):
            command, _, output = block.code[2:].partition("\n")
            yield "shell", command, output


def stripped(text: str) -> list[str]:
    """Lines without the blanks that fill them up."""
    return [line.rstrip() for line in text.strip().splitlines()]


def statements(code: str) -> Iterator[tuple[ast.stmt, str | None]]:
    """Each statement with the remark at its end."""
    lines = code.splitlines()
    for statement in ast.parse(code).body:
        assert statement.end_lineno is not None
        _, found, remark = lines[statement.end_lineno - 1].partition("  # ")
        yield statement, remark if found else None


def promised(remark: str, value: Any) -> bool:
    """Whether a remark promises this value; words alone promise nothing."""
    if not re.match(r"[\d(\[{]|True|False", remark):
        return True
    number = _NUMBER.match(remark)
    return repr(value) in (remark, number and number[0])


def run(code: str, names: dict[str, Any]) -> list[str]:
    """Run a block; what came out otherwise than it promises."""
    wrong = []
    for statement, remark in statements(code):
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), "a page", "exec"), names)
            continue
        raised, text = _RAISED.match(remark or ""), ast.unparse(statement)
        try:
            value = eval(compile(ast.Expression(statement.value), "a page", "eval"), names)  # noqa: S307
        except ElasticScanError as error:
            if raised is None:
                raise
            wrong += [] if error.code == raised[1] else [f"{text} is {error}, not {raised[1]}"]
            continue
        if raised is not None:
            wrong.append(f"{text} is no {raised[1]}")
        elif remark is not None and not promised(remark, value):
            wrong.append(f"{text} is {value!r}, not {remark}")
    return wrong
