"""A store's status, drawn: a block for each tablet, a line of blocks for each shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from elasticscan.cli.indexes import index_listing
from elasticscan.cli.output import listing, size, when

COLOURS = ("dodger_blue1", "dark_orange", "spring_green3", "medium_orchid", "gold1", "turquoise2", "hot_pink")
BLOCK, LEAVING = "■", "▷"
MOST_BLOCKS = 1_024
_MOST_RANGES = 64
_NUMBERS = ("rows", "size", "fragments")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def colours(shards: Sequence[str]) -> dict[str, str]:
    """A colour for each shard, the same for the same list."""
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(shards)}


def blocks(tablets: Sequence[Mapping[str, Any]], colour: str, leaving: Mapping[int, str]) -> Text:
    """One block a tablet; a tablet on its way is an arrow in the colour of where it goes."""
    text = Text(overflow="fold")
    for tablet in tablets[:MOST_BLOCKS]:
        goes = leaving.get(tablet["id"])
        text.append(LEAVING if goes else BLOCK, style=f"bold {goes}" if goes else colour)
    if len(tablets) > MOST_BLOCKS:
        text.append(f" and {len(tablets) - MOST_BLOCKS:,} more", style="dim")
    return text


def picture(uri: str, status: Mapping[str, Any]) -> RenderableType:
    """All of `Store.status()` for people."""
    parts: list[RenderableType] = [
        Text.from_markup(
            f"[bold]{escape(uri)}[/bold]   topology {status['topology']}   snapshot {status['snapshot']}   "
            f"{len(status['tablets'])} tablets over {status['slots']:,} slots"
        ),
        Text(),
        shard_lines(status),
    ]
    if status.get("outdated"):
        parts[1:1] = [Text(status["outdated"], style="red")]
    if status.get("read_only"):
        parts[1:1] = [Text(f"for reading alone, scans take no leases: {status['read_only']}", style="yellow")]
    for title, shown in (
        ("tables", _tables(status["tables"])),
        ("indexes", _indexes(status["tables"])),
        ("upkeep", _upkeep(status["tables"])),
        ("upkeep under way", _steps(status["upkeep"]["running"])),
        ("moves under way", _moves(status)),
        ("streams", stream_listing(status.get("streams", ()))),
        ("scans in flight", _scans(status["scans"])),
        ("leases", _leases(status["leases"])),
    ):
        if shown.row_count:
            parts += [Text(), Text(title, style="bold"), shown]
    return Group(*parts)


def shard_lines(status: Mapping[str, Any]) -> Table:
    """The shards with their tablets."""
    colour = colours([shard["name"] for shard in status["shards"]])
    leaving = {move["tablet"]: colour.get(move["to"], "white") for move in status["moves"]}
    lines = Table.grid(padding=(0, 2))
    for shard in status["shards"]:
        name = shard["name"]
        here = [tablet for tablet in status["tablets"] if tablet["shard"] == name]
        label = Text(name, style=f"bold {colour[name]}")
        if shard["draining"]:
            label.append(" leaving", style="dim italic")
        lines.add_row(
            label,
            Text(f"{len(here):>4} tablets", style="dim"),
            Text(f"{size(shard['bytes']):>9}", style="dim"),
            Text.assemble(blocks(here, colour[name], leaving), *_ids(here)),
        )
    return lines


def _ids(tablets: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The ids of tablets as ranges, on a line of their own."""
    ids = sorted(tablet["id"] for tablet in tablets)
    starts = [one for one in ids if one - 1 not in ids]
    ends = [one for one in ids if one + 1 not in ids]
    ranges = [str(a) if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True)]
    more = f" and {len(ranges) - _MOST_RANGES:,} ranges more" if len(ranges) > _MOST_RANGES else ""
    return [(f"\nids {', '.join(ranges[:_MOST_RANGES])}{more}", "dim")] if ids else []


def tablet_listing(status: Mapping[str, Any]) -> Table:
    """A line for each tablet, by its slots; neighbours can be joined."""
    colour = colours([shard["name"] for shard in status["shards"]])
    goes = {move["tablet"]: move["to"] for move in status["moves"]}
    shown = listing("tablet", "slots", "shard", "moving to")
    for tablet in sorted(status["tablets"], key=lambda row: row["slots"]):
        here = Text(tablet["shard"], style=colour.get(tablet["shard"], "white"))
        start, end = tablet["slots"]
        shown.add_row(str(tablet["id"]), f"{start} to {end - 1}", here, goes.get(tablet["id"], ""))
    return shown


def _tables(tables: Sequence[Mapping[str, Any]]) -> Table:
    shown = listing("name", *_NUMBERS, "primary key", right=_NUMBERS)
    for table in tables:
        keys = ", ".join(table["primary_key"])
        shown.add_row(table["name"], row_count(table), table_size(table), str(table["fragments"]), keys)
    return shown


def row_count(table: Mapping[str, Any]) -> str:
    """The rows of a table of `Store.status()`, as far as they are known."""
    return f"{'' if table['rows_exact'] else '≤ '}{table['rows']:,}"


def table_size(table: Mapping[str, Any]) -> str:
    """The bytes of a table of `Store.status()`, and how its files are compressed if they are."""
    return " ".join(filter(None, (size(table["bytes"]), table["compression"])))


def _indexes(tables: Sequence[Mapping[str, Any]]) -> Table:
    return index_listing(
        [{"table": table["name"], **index} for table in tables for index in table["indexes"]]
    )


def _moves(status: Mapping[str, Any]) -> Table:
    colour = colours([shard["name"] for shard in status["shards"]])
    shown = listing("tablet", "from", "to", "phase", "since")
    for move in status["moves"]:
        names = (Text(move[end], style=colour.get(move[end], "white")) for end in ("from", "to"))
        shown.add_row(str(move["tablet"]), *names, move["phase"], when(move["started_at"]))
    return shown


def _upkeep(tables: Sequence[Mapping[str, Any]]) -> Table:
    titles = ("table", "due", "to read", "fragments a slot", "reads", "writes", "space")
    shown = listing(*titles, right=titles[1:])
    for table in tables:
        upkeep, costs = table["upkeep"], table["upkeep"]["amplification"]
        due = (f"{upkeep['merges_due']} merges", size(upkeep["bytes_due"]), str(upkeep["slot_fragments"]))
        shown.add_row(table["name"], *due, *(f"{costs[of]:.1f}×" for of in ("reads", "writes", "space")))
    return shown


def _steps(steps: Sequence[Mapping[str, Any]]) -> Table:
    shown = listing("step", "owner", "since")
    for step in steps:
        shown.add_row(escape(step["step"]), escape(step["owner"]), when(step["started_at"]))
    return shown


def _scans(scans: Sequence[Mapping[str, Any]]) -> Table:
    titles = ("table", "snapshot", "tasks", "slots done", "moved", "rows", "rows/s", "pages", "virtual reads")
    shown = listing(*titles, "since", right=titles[1:])
    for scan in scans:
        done = f"{scan['slots_done']:,} of {scan['slots']:,}"
        first = (scan["table"], f"{scan['snapshot']:,}", f"{scan['parts']:,}", done)
        counted = ("slots_moved", "rows", "rows_per_second", "pages", "virtual_reads")
        shown.add_row(*first, *(f"{scan[name]:,}" for name in counted), when(scan["began_at"]))
    return shown


def _leases(leases: Sequence[Mapping[str, Any]]) -> Table:
    shown = listing(*(leases[0] if leases else ()))
    for lease in leases:
        texts = [
            when(value) if isinstance(value, float) else "" if value is None else str(value)
            for value in lease.values()
        ]
        shown.add_row(*(escape(text) for text in texts))
    return shown


def stream_listing(streams: Sequence[Mapping[str, Any]]) -> Table:
    """One line for each stream, as `Store.status()["streams"]` has them."""
    titles = ("stream", "table", "commit", "commits behind", "rows behind", "for", "held until")
    shown = listing(*titles, right=titles[2:6])
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
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"
