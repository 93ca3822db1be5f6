"""Streams for people: which follow a table, and how far behind they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from elasticscan.cli.output import when

NO_STREAMS = "[dim]no streams; one with the option `streamName` is listed here[/dim]"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def stream_listing(streams: Sequence[Mapping[str, Any]]) -> Table:
    """One line for each stream, as `Store.status()["streams"]` has them."""
    shown = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    titles = ("stream", "table", "commit", "commits behind", "rows behind", "for", "held until")
    for title in titles:
        shown.add_column(title, justify="right" if title in titles[2:6] else "left")
    for stream in streams:
        shown.add_row(
            escape(stream["name"]),
            stream["table"],
            f"{stream['commit']:,}",
            f"{stream['behind_commits']:,}",
            f"{stream['behind_rows']:,}",
            span(stream["behind_seconds"]),
            when(stream["expires_at"]),
        )
    return shown


def span(seconds: float) -> str:
    """About how long, in the largest unit that fits: `3 s`, `12 min`, `5 h`, `2 d`."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
