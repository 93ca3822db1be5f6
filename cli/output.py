"""The two voices of a command: for people, and JSON for scripts."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from elasticscan.base.errors import ElasticScanError, OperatorNeeded, StartAgain, TryAgain, UsageError
from elasticscan.topology import Topology

# Without a terminal there is no width to respect; a table is then better wide than wrapped.
PIPE_WIDTH = 240

EXIT_CODES: Mapping[type[ElasticScanError], int] = {
    UsageError: 2,
    TryAgain: 3,
    StartAgain: 4,
    OperatorNeeded: 5,
}


def console(stderr: bool = False) -> Console:
    """A console, made anew for each use, so that it follows a redirected stdout."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)


def say(text: str) -> None:
    """A line for people; markup in it counts."""
    console().print(text)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=plain))


def print_json_line(value: Any, stderr: bool = False) -> None:
    print(json.dumps(value, default=plain), file=sys.stderr if stderr else sys.stdout)


def print_json_lines(values: Iterable[Any]) -> None:
    sys.stdout.writelines(f"{json.dumps(value, default=plain)}\n" for value in values)


def plain(value: Any) -> Any:
    """A value that JSON has no form for as one that it has: bytes as base64, all others as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)


def report_error(error: ElasticScanError, as_json: bool) -> int:
    """Print an error on stderr and return the exit code."""
    code = next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1)
    if as_json:
        report = {"code": error.code, "message": error.message, "fields": error.fields, "exit_code": code}
        print_json_line({"error": report}, stderr=True)
    else:
        # Not markup: the code stands in brackets.
        console(stderr=True).print(str(error), style="red", markup=False, soft_wrap=True)
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


def size(byte_count: int) -> str:
    return decimal(byte_count)


def when(seconds: float) -> str:
    """A moment in local time."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def topology_value(topology: Topology) -> dict[str, Any]:
    """A topology as plain values."""
    names = dict(topology.shard_names)
    tablets = topology.placement.tablets
    return {
        "topology": topology.number,
        "created_at": topology.created_at,
        "published": topology.published,
        "reason": topology.reason,
        "shards": {name: sum(t.shard == shard for t in tablets) for shard, name in sorted(names.items())},
    }
