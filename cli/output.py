"""The two voices of a command: for people, and JSON for scripts."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from elasticscan.base.errors import (
    ElasticScanError,
    InvalidOption,
    OperatorNeeded,
    StartAgain,
    TryAgain,
    UsageError,
)
from elasticscan.base.json_text import json_text
from elasticscan.base.showing import utc

# Without a terminal there is no width to respect; a table is then better wide than wrapped.
PIPE_WIDTH = 240
_NO_SCREEN = 1_000_000  # so wide that nothing is wrapped

EXIT_CODES: Mapping[type[ElasticScanError], int] = {
    UsageError: 2,
    TryAgain: 3,
    StartAgain: 4,
    OperatorNeeded: 5,
}


_JSON = "elasticscan.json"  # in a command's context: whether it was asked for


def remember_json(context: typer.Context, value: bool) -> bool:
    """Note whether a command was given `--json`; returns that."""
    context.meta[_JSON] = value
    return value


def wants_json(context: typer.Context) -> bool:
    """True if the command of this context, or of one below it, was given `--json`."""
    return bool(context.meta.get(_JSON, False))


def console(stderr: bool = False) -> Console:
    """A console, made again for each use, so that it follows a redirected stdout."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)


def answer(as_json: bool, value: Any, text: RenderableType) -> None:
    """Print the outcome of a command: a value for scripts, or text for people; markup in it counts."""
    if as_json:
        print(json_text(value, indent=2))
    else:
        console().print(text)


def warn(text: str, style: str = "") -> None:
    """Print a line on stderr as it is: brackets in it are no markup."""
    console(stderr=True).print(text, style=style, markup=False, soft_wrap=True)


class Listing(Table):
    """A table that turns its rows into blocks, a line for each column, where it is wider than the screen."""

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        if self.__rich_measure__(screen, options.update(max_width=_NO_SCREEN)).maximum <= options.max_width:
            yield from super().__rich_console__(screen, options)
            return
        for row in range(self.row_count):
            block = Table.grid(padding=(0, 2), pad_edge=False)
            block.add_column(style=self.header_style, no_wrap=True)
            block.add_column(overflow="fold")
            for column in self.columns:
                block.add_row(column.header, list(column.cells)[row])
            yield from ([Text()] if row else [])
            yield block


def listing(*titles: str, right: Collection[str] = ()) -> Listing:
    """A table without lines; columns of numbers stand to the right."""
    shown = Listing(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for title in titles:
        shown.add_column(title, justify="right" if title in right else "left")
    return shown


def print_json_line(value: Any, stderr: bool = False) -> None:
    print(json_text(value), file=sys.stderr if stderr else sys.stdout)


def print_json_lines(values: Iterable[Any]) -> None:
    sys.stdout.writelines(f"{json_text(value)}\n" for value in values)


def printable(text: str) -> str:
    """Text with its control characters escaped: what a row holds must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def unwritten(error: OSError | UnicodeEncodeError) -> InvalidOption | None:
    """The error to tell where stdout takes no more; None for any other, and where its reader has enough."""
    if isinstance(error, UnicodeEncodeError):
        missing = ascii(error.object[error.start])
        why = f"its encoding, {error.encoding}, has no {missing}; set PYTHONIOENCODING=utf-8"
    elif isinstance(error, BrokenPipeError) or error.filename is not None or not error.errno:
        return None
    else:
        why = os.strerror(error.errno)
    with suppress(OSError, ValueError):  # what it still holds would fail once more at the end
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return InvalidOption(f"stdout cannot be written: {why}", file="stdout")


def report_error(error: ElasticScanError, as_json: bool) -> int:
    """Print an error on stderr and return the exit code."""
    code = next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1)
    if as_json:
        report = {"code": error.code, "message": error.message, "fields": error.fields, "exit_code": code}
        print_json_line({"error": report}, stderr=True)
    else:
        warn(str(error), "red")
    return code


def progress() -> Progress:
    """A progress bar on stderr; draws nothing without a terminal. Tasks have a `note`."""
    screen = console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[note]}", style="dim"),
        TimeRemainingColumn(),
        console=screen,
        disable=not screen.is_terminal,
        transient=True,
    )


def counted(number: int, what: str) -> str:
    """A number of things: 1 row, 2 rows."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def size(byte_count: int) -> str:
    return decimal(byte_count)


def when(seconds: float) -> str:
    """A moment in UTC, to the last digit: given as a time of a snapshot it is that very moment."""
    return utc(seconds)
