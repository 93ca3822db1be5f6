"""explain: the ways there are to read, their estimates, and the one that was chosen."""

from __future__ import annotations

import math
import time
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table as Listing

from elasticscan.cli.options import (
    Columns,
    Filter,
    IndexChoice,
    Json,
    Snapshot,
    Table,
    Uri,
    names_of,
)
from elasticscan.cli.output import console, print_json
from elasticscan.metadata import AUTO
from elasticscan.store import Scan, Store

CHOSEN = "▶"
_NUMBERS = ("scans", "cost", "estimated", "actual")


def explain(
    uri: Uri,
    table: Table,
    columns: Columns = None,
    filter: Filter = None,  # noqa: A002 - the word users know
    snapshot: Snapshot = None,
    index: IndexChoice = None,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Run the scan, and hold the estimates against it.")
    ] = False,
    json: Json = False,
) -> None:
    """Say how a scan would read, where, and why so."""
    with (
        Store.open(uri) as store,
        store.table(table).scan(names_of(columns), filter, index=index or AUTO, snapshot=snapshot) as begun,
    ):
        found = _found(begun, analyze)
    if json:
        print_json(found)
    else:
        console().print(_picture(found, index or AUTO))


def _found(begun: Scan, analyze: bool) -> dict[str, Any]:
    """`Scan.explain()` as JSON can hold it, with the chosen candidate marked."""
    found = begun.explain()
    found["candidates"] = [
        # What cannot be chosen has a cost without end, for which JSON has no word.
        each | {"cost": each["cost"] if math.isfinite(each["cost"]) else None, "chosen": chosen}
        for each in found["candidates"]
        for chosen in [each["access"] == found["access"]]
    ]
    if not analyze:
        return found | {"actual": None}
    began = time.monotonic()
    for _ in begun:
        pass
    seconds = time.monotonic() - began
    return found | {"actual": begun.explain()["actual"] | {"seconds": round(seconds, 3)}}


def _picture(found: dict[str, Any], asked: str) -> RenderableType:
    condition = escape(found["filter"] or "none")
    parts: list[RenderableType] = [
        f"[bold]{escape(found['table'])}[/bold]   snapshot {found['snapshot']}   filter {condition}",
        "",
        _candidates(found["candidates"]),
        "",
        _choice(found, asked),
    ]
    if found["actual"] is not None:
        parts += ["", _analyzed(found)]
    return Group(*parts)


def _candidates(candidates: list[dict[str, Any]]) -> Listing:
    titles = ("", "access", "kind", "looks up", "then tests", "scans", "cost", "note")
    shown = _listing(*titles)
    for each in candidates:
        style = "bold" if each["chosen"] else "" if each["usable"] else "dim"
        note = [each["reason"]] if each["reason"] else []
        if each["usable"] and not each["covered"]:
            note.insert(0, "fetches rows")
        shown.add_row(
            CHOSEN if each["chosen"] else "",
            each["access"],
            each["kind"] if each["kind"] != each["access"] else "",
            *(_estimated(each) if each["cost"] is not None else [""] * 4),
            escape("; ".join(note)),
            style=style,
        )
    return shown


def _estimated(candidate: dict[str, Any]) -> list[str]:
    numbers = (candidate[name] for name in ("rows_scanned", "cost"))
    texts = escape(candidate["condition"] or "all"), escape(candidate["remainder"] or "")
    return [*texts, *map(_about, numbers)]


def _choice(found: dict[str, Any], asked: str) -> Listing:
    """Return what was chosen, and where it reads."""
    direct = found["ranges"] is None
    how = "a direct scan" if direct else f"index {found['access']}, {_counted(found['ranges'], 'range')}"
    why = "the cheapest" if asked == AUTO else f"asked for with --index {asked}"
    shown = Listing(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    places = (f"{part['scan']} of {part['slots']:,} slots at {part['shard']}" for part in found["scans"])
    for name, text in (
        ("chosen", f"{how} ({why})"),
        ("looks up", None if direct else found["index_condition"] or "all entries"),
        ("then tests", found["remainder"]),
        ("columns", ", ".join(found["columns"])),
        ("reads", "\n".join(places)),
    ):
        if text:
            shown.add_row(f"[dim]{name}[/dim]", escape(text))
    return shown


def _analyzed(found: dict[str, Any]) -> Listing:
    """Estimates beside what the run counted."""
    (chosen,) = (each for each in found["candidates"] if each["chosen"])
    actual = found["actual"]
    shown = _listing("", "estimated", "actual")
    shown.add_row("rows scanned", _about(chosen["rows_scanned"]), f"{actual['rows_scanned']:,}")
    shown.add_row("rows returned", "", f"{actual['rows_returned']:,}")
    if actual["rows_skipped"]:
        shown.add_row("rows skipped by statistics", "", f"{actual['rows_skipped']:,}")
    shown.add_row("pages", "", f"{actual['pages']:,}")
    shown.add_row("seconds", "", f"{actual['seconds']:.3f}")
    return shown


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _about(number: float) -> str:
    return f"{round(number):,}"


def _listing(*titles: str) -> Listing:
    shown = Listing(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for title in titles:
        shown.add_column(title, justify="right" if title in _NUMBERS else "left")
    return shown
