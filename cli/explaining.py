"""explain: the ways there are to read, their estimates, and the one that was chosen."""

from __future__ import annotations

import math
import time
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.markup import escape

from elasticscan.cli.options import (
    Columns,
    Filter,
    IndexChoice,
    Json,
    OrderBy,
    Snapshot,
    Table,
    Uri,
    names_of,
    snapshot_of,
)
from elasticscan.cli.output import Listing, answer, listing
from elasticscan.metadata import AUTO, KEY
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
    order_by: OrderBy = None,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Run the scan, and hold the estimates against it.")
    ] = False,
    json: Json = False,
) -> None:
    """Say how a scan would read, where, and why so."""
    with (
        Store.open(uri) as store,
        store.table(table).scan(
            names_of(columns), filter, index=index or AUTO, order_by=order_by, snapshot=snapshot_of(snapshot)
        ) as begun,
    ):
        explained = _explain(begun, analyze)
    answer(json, explained, _picture(explained, index or AUTO))


def _explain(begun: Scan, analyze: bool) -> dict[str, Any]:
    """`Scan.explain()` as JSON can hold it, with the chosen candidate marked."""
    explained = begun.explain()
    explained["candidates"] = [
        # A candidate that cannot be chosen costs infinity, which JSON cannot write.
        candidate
        | {"cost": candidate["cost"] if math.isfinite(candidate["cost"]) else None, "chosen": chosen}
        for candidate in explained["candidates"]
        for chosen in [candidate["access"] == explained["access"]]
    ]
    if not analyze:
        return explained | {"actual": None}
    began = time.monotonic()
    for _ in begun:
        pass
    seconds = time.monotonic() - began
    return explained | {"actual": begun.explain()["actual"] | {"seconds": round(seconds, 3)}}


def _picture(explained: dict[str, Any], index: str) -> RenderableType:
    condition = escape(explained["filter"] or "none")
    parts: list[RenderableType] = [
        f"[bold]{escape(explained['table'])}[/bold]   snapshot {explained['snapshot']}   filter {condition}",
        "",
        _candidates(explained["candidates"]),
        "",
        _choice(explained, index),
    ]
    if explained["actual"] is not None:
        parts += ["", _analysis(explained)]
    return Group(*parts)


def _candidates(candidates: list[dict[str, Any]]) -> Listing:
    titles = ("", "access", "kind", "looks up", "then tests", "scans", "cost", "note")
    shown = listing(*titles, right=_NUMBERS)
    for candidate in candidates:
        style = "bold" if candidate["chosen"] else "" if candidate["usable"] else "dim"
        note = [candidate["reason"]] if candidate["reason"] else []
        if candidate["usable"] and not candidate["covered"]:
            note.insert(0, "fetches rows")
        shown.add_row(
            CHOSEN if candidate["chosen"] else "",
            candidate["access"],
            candidate["kind"] if candidate["kind"] != candidate["access"] else "",
            *(_estimates(candidate) if candidate["cost"] is not None else [""] * 4),
            escape("; ".join(note)),
            style=style,
        )
    return shown


def _estimates(candidate: dict[str, Any]) -> list[str]:
    numbers = (candidate[name] for name in ("rows_scanned", "cost"))
    texts = escape(candidate["condition"] or "all"), escape(candidate["remainder"] or "")
    return [*texts, *map(_about, numbers)]


def _choice(explained: dict[str, Any], index: str) -> Listing:
    """Return what was chosen, and where it reads."""
    direct = explained["ranges"] is None
    ranges = f"{explained['ranges']:,} range{'' if explained['ranges'] == 1 else 's'}" if not direct else ""
    path = "the primary key" if explained["access"] == KEY else f"index {explained['access']}"
    how = "a direct scan" if direct else f"{path}, {ranges}"
    why = "the cheapest" if index == AUTO else f"asked for with --index {index}"
    shown = Listing(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    places = (f"{part['scan']} of {part['slots']:,} slots at {part['shard']}" for part in explained["scans"])
    for name, text in (
        ("chosen", f"{how} ({why})"),
        ("looks up", None if direct else explained["index_condition"] or "all entries"),
        ("then tests", explained["remainder"]),
        ("columns", ", ".join(explained["columns"])),
        ("reads", "\n".join(places)),
    ):
        if text:
            shown.add_row(f"[dim]{name}[/dim]", escape(text))
    return shown


def _analysis(explained: dict[str, Any]) -> Listing:
    """Estimates alongside what the run counted."""
    (chosen,) = (candidate for candidate in explained["candidates"] if candidate["chosen"])
    actual = explained["actual"]
    shown = listing("", "estimated", "actual", right=_NUMBERS)
    shown.add_row("rows scanned", _about(chosen["rows_scanned"]), f"{actual['rows_scanned']:,}")
    shown.add_row("rows returned", "", f"{actual['rows_returned']:,}")
    if actual["rows_skipped"]:
        shown.add_row("rows skipped by statistics", "", f"{actual['rows_skipped']:,}")
    shown.add_row("pages", "", f"{actual['pages']:,}")
    shown.add_row("seconds", "", f"{actual['seconds']:.3f}")
    return shown


def _about(number: float) -> str:
    return f"{round(number):,}"
