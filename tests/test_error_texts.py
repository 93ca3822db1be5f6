"""Error texts have one clause and one next step. None is longer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.test_architecture import sources, tree_of

MOST_CHARACTERS, MOST_SEMICOLONS = 120, 1


def test_texts_of_errors_are_short() -> None:
    longer = [text for text in raised_texts() if is_long(text[1])]
    assert not longer, "\n".join(f"{place}: {text}" for place, text in longer)


def is_long(text: str) -> bool:
    plain = re.sub(r"`[^`]*`", "", text)
    return len(plain) > MOST_CHARACTERS or plain.count(";") > MOST_SEMICOLONS


def raised_texts() -> Iterator[tuple[str, str]]:
    """Yield the place and the literal part of the text of each error that the product makes."""
    names = {node.name for node in tree_of("base/errors.py").body if isinstance(node, ast.ClassDef)}
    for source in sources():
        for call in calls(tree_of(source), names):
            yield f"{source}:{call.lineno}", literal(call.args[0])


def calls(tree: ast.AST, names: set[str]) -> list[ast.Call]:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    return [call for call in found if ast.unparse(call.func).rpartition(".")[2] in names]


def literal(text: ast.expr) -> str:
    if isinstance(text, ast.JoinedStr):
        return "".join(literal(part) for part in text.values)
    if isinstance(text, ast.BinOp):
        return literal(text.left) + literal(text.right)
    return text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
