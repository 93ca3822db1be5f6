"""Output of commands: text and tables for people, JSON for scripts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import pyarrow as pa
from rich.console import Console, RenderableType
from rich.status import Status
from rich.table import Table
from rich.text import Text

from elasticscan.base.errors import ElasticScanError, OperatorNeeded, StartAgain, TryAgain, UsageError
from elasticscan.base.formatting import json_text, json_value
from elasticscan.ui import cells

# The width without a terminal: lines of a table should not be wrapped then.
PIPE_WIDTH = 240
_JSON = ContextVar("json", default=False)
EXIT_CODES: Mapping[type[ElasticScanError], int] = {
    UsageError: 2,
    TryAgain: 3,
    StartAgain: 4,
    OperatorNeeded: 5,
}


def console(stderr: bool = False) -> Console:
    """Return a new console for each use, so that it follows a redirected stdout."""
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = PIPE_WIDTH
    return made


def say(text: RenderableType) -> None:
    """Print text without wrapping it, or a table."""
    console().print(text, soft_wrap=isinstance(text, str))


def warn(text: str, style: str = "") -> None:
    """Print a line on stderr."""
    console(stderr=True).print(text, style=style, soft_wrap=True)


def take_json(words: list[str]) -> list[str]:
    """Return the words of a command line without `--json`; `is_json` then returns whether it was there."""
    end = words.index("--") if "--" in words else len(words)
    _JSON.set("--json" in words[:end])
    return [word for at, word in enumerate(words) if at >= end or word != "--json"]


def is_json() -> bool:
    """Return whether the command prints JSON."""
    return _JSON.get()


def answer(value: Any, text: RenderableType) -> None:
    """Print the result of a command: the value as JSON, or the text."""
    if is_json():
        print(json_text(value, indent=2))
    else:
        say(text)


def answer_rows(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], none: str = "none") -> None:
    """Print rows as JSON, or the values of `keys` as a table, or the text `none` if there are no rows."""
    answer(rows, listing(keys, cells(rows, keys)) if rows else none)


def print_json_line(value: Any, stderr: bool = False) -> None:
    print(json_text(value), file=sys.stderr if stderr else sys.stdout)


def listing(titles: Sequence[str], rows: Sequence[Sequence[int | str]]) -> Table:
    """Draw cells as a table without lines; numbers are aligned to the right."""
    shown = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for at, title in enumerate(titles):
        is_right = any(isinstance(row[at], int) for row in rows)
        shown.add_column(title.replace("_", " "), justify="right" if is_right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(f"{value:,}" if isinstance(value, int) else value) for value in row))
    return shown


def show_rows(schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> int:
    """Print rows of a table or a query, and return their number."""
    shown = Table(header_style="bold", row_styles=("", "dim"))
    for field in schema:
        is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        shown.add_column(Text(field.name), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text("·", "dim") if value is None else Text(_text(value)) for value in row.values()))
    say(shown)
    return shown.row_count


def _text(value: Any) -> str:
    """Escape control characters, so that a value cannot control the terminal."""
    text = str(json_value(value) if isinstance(value, bytes) else value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def report_error(error: ElasticScanError) -> int:
    """Print an error on stderr and return the exit code."""
    code = next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1)
    if is_json():
        report = {"code": error.code, "message": error.message, "fields": error.fields, "exit_code": code}
        print_json_line({"error": report}, stderr=True)
    else:
        warn(str(error), "red")
    return code


def progress(title: str) -> Status:
    """Show a title with a spinner on stderr while the block runs, if stderr is a terminal."""
    return console(stderr=True).status(title)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 row, 2 rows."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
