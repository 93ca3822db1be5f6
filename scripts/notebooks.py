"""Run notebooks and write their outputs into them; with --check, print the outputs that differ.

    python scripts/notebooks.py [--check] docs/notebooks/*.ipynb

Cells run one after the other in one Python process, as in a kernel. Text is compared, pictures are not; a
cell with the tag `varies` has an output that differs in each run.
"""

from __future__ import annotations

import ast
import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def run(notebook: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Run the cells of code; yield each with its new outputs."""
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        yield cell, _outputs("".join(cell["source"]), number, names)


def _outputs(source: str, number: int, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the output of a cell, and the value of its last expression."""
    body, last = ast.parse(source).body, None
    if body and isinstance(body[-1], ast.Expr) and not source.rstrip().endswith(";"):
        last = ast.Expression(body.pop().value)  # type: ignore[attr-defined]
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), names)
        value = None if last is None else eval(compile(last, f"cell {number}", "eval"), names)  # noqa: S307
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        shown = {"output_type": "execute_result", "execution_count": number, "data": data, "metadata": {}}
        outputs.append(shown)
    return outputs


def texts(outputs: list[dict[str, Any]]) -> list[str]:
    """Return the parts of outputs that must not change."""
    return ["".join(each.get("text") or each["data"]["text/plain"]) for each in outputs]


def differences(notebook: dict[str, Any]) -> list[str]:
    """Return the cells whose output differs from the notebook."""
    wrong = []
    for cell, now in run(notebook):
        varies = "varies" in cell["metadata"].get("tags", ())
        if not varies and texts(now) != texts(cell["outputs"]):
            wrong.append(f"{''.join(cell['source'])}\ngives {texts(now)}, not {texts(cell['outputs'])}")
    return wrong


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    for path in (Path(each) for each in arguments if each != "--check"):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if check:
            wrong = differences(notebook)
            sys.stderr.writelines(f"{path}: {each}\n" for each in wrong)
            if wrong:
                return 1
            continue
        for number, (cell, now) in enumerate(run(notebook), 1):
            cell |= {"outputs": now, "execution_count": number}
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
