"""The examples of docs/streaming.md: which there are, and what they promise.

    python guide.py "Spark Connect" DIRECTORY

runs those of a section in a process of their own, with DIRECTORY in place of /data.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "streaming.md"
APART = ("Spark Connect", "Declarative Pipelines")  # sections that cannot share a classic session
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d+")


def sections() -> Mapping[str, str]:
    """The text under each heading of the second level."""
    first, *others = re.split(r"^## ", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {"": first} | {text.partition("\n")[0]: text for text in others}


def blocks(section: str | None = None, language: str = "python") -> list[tuple[str, str | None]]:
    """Code, each block with the output right under it, if any. By default all that shares a session."""
    texts = [text for name, text in sections().items() if section in (None, name)]
    if section is None:
        texts = [text for name, text in sections().items() if name not in APART]
    found = [match for text in texts for match in _BLOCK.finditer(text)]
    return [(match[2], match[3]) for match in found if match[1] == language]


def statements(code: str) -> Iterator[tuple[ast.stmt, str | None]]:
    """Each statement with the remark at its end."""
    lines = code.splitlines()
    for statement in ast.parse(code).body:
        assert statement.end_lineno is not None
        _, found, remark = lines[statement.end_lineno - 1].partition("  # ")
        yield statement, remark if found else None


def promised(remark: str, value: Any) -> bool:
    """Whether a remark promises this value; words alone promise nothing."""
    if not re.match(r"[\d(\[]|True|False", remark):
        return True
    number = _NUMBER.match(remark)
    return repr(value) in (remark, number and number[0])


def run(code: str, data: Path, names: dict[str, Any]) -> list[str]:
    """Run a block; what came out otherwise than it promises."""
    wrong = []
    for statement, remark in statements(code.replace('"/data/', f'"{data}/')):
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), str(GUIDE), "exec"), names)
            continue
        value = eval(compile(ast.Expression(statement.value), str(GUIDE), "eval"), names)  # noqa: S307
        if remark is not None and not promised(remark, value):
            wrong.append(f"{ast.unparse(statement)} is {value!r}, not {remark}")
    return wrong


def main() -> None:
    names: dict[str, Any] = {}
    found = blocks(sys.argv[1])
    wrong = [each for code, _ in found for each in run(code, Path(sys.argv[2]), names)]
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
