"""The words of the code: the nouns of the field, each with one meaning, and what sentences begin with.

Texts of errors have one clause and one next step.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.test_architecture import ROOT, in_folders, sources, tree_of

# Dialect, and the word to say instead.
BANNED = {
    r"speak(s|ing)? for": "serve",
    r"pass(es|ed|ing)? over": "skip",
    r"turned (bytes|keys?)": "inverted",
}
# A definition that begins like this is a relative clause, and hides what the thing is.
CLAUSE = re.compile(r"^(What|Whether|How|Where|Why|Who|Which)\b")


def texts() -> Iterator[tuple[str, str]]:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for path in [*documents, *(ROOT / source for source in sources())]:
        if path.name != "CHANGELOG.md":
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_no_word_is_of_a_dialect() -> None:
    wrong = [
        f"{source}:{number}: {match[0]!r}; say {better!r}"
        for source, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        for word, better in BANNED.items()
        if (match := re.search(rf"\b{word}\b", line, re.IGNORECASE))
    ]
    assert wrong == []


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    wrong = []
    for source in sources():
        for node in ast.walk(tree_of(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                if CLAUSE.match(text):
                    wrong.append(f"{source}: {text.splitlines()[0]}")
    assert wrong == []


def test_no_class_has_the_name_of_another() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for source in in_folders():
        for node in ast.walk(tree_of(source)):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(str(Path(source)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


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
