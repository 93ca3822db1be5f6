"""Pages of documentation: their blocks of Python, and what the remarks in them promise.

A remark after an expression promises its value where it begins like one: `trips.scan().count()  # 2`; or an
error: `# FilterError: [ES_INVALID_FILTER] …`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elasticscan.base.errors import ElasticScanError

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RAISED = re.compile(r"\w+: \[(ES_\w+)\]")
_NUMBER = re.compile(r"\d+")


def blocks(text: str, language: str = "python") -> list[tuple[str, str | None]]:
    """The code of a text, each block with the output right under it, if any."""
    return [(match[2], match[3]) for match in _BLOCK.finditer(text) if match[1] == language]


def steps(text: str) -> Iterator[tuple[str, str, str]]:
    """What a reader types, in order, each with what the page says that he sees: ("python", code, output),
    whose output is the block right under it, and ("shell", "elasticscan …", output), in one block."""
    fenced = list(_FENCED.finditer(text))
    for at, block in enumerate(fenced):
        if text[: block.start()].rstrip().rpartition("\n")[2].startswith("<!-- not run: "):
            continue
        if block[1] == "python":
            after = fenced[at + 1] if at + 1 < len(fenced) else None
            printed = after is not None and after.start() == block.end() + 1 and not after[1]
            yield "python", block[2], after[2] if after is not None and printed else ""
        elif not block[1] and block[2].startswith("$ "):
            command, _, output = block[2][2:].partition("\n")
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
        if remark is not None and (raised := _RAISED.match(remark)):
            wrong += _raises(statement, raised[1], names)
            continue
        value = eval(compile(ast.Expression(statement.value), "a page", "eval"), names)  # noqa: S307
        if remark is not None and not promised(remark, value):
            wrong.append(f"{ast.unparse(statement)} is {value!r}, not {remark}")
    return wrong


def _raises(statement: ast.Expr, code: str, names: dict[str, Any]) -> list[str]:
    """Run a statement that promises an error."""
    try:
        eval(compile(ast.Expression(statement.value), "a page", "eval"), names)  # noqa: S307
    except ElasticScanError as error:
        return [] if error.code == code else [f"{ast.unparse(statement)} is {error}, not {code}"]
    return [f"{ast.unparse(statement)} is no {code}"]
