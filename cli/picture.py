"""The status of a store, drawn: a line of blocks for each shard, and a table for each section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from elasticscan.base.showing import utc
from elasticscan.cli.output import listing, right, size

Row = Mapping[str, Any]

COLOURS = ("dodger_blue1", "dark_orange", "spring_green3", "medium_orchid", "gold1", "turquoise2", "hot_pink")
BLOCK, LEAVING = "■", "▷"
MAX_BLOCKS, MAX_RANGES = 1_024, 64
INDEXES = "table, index, kind, columns, carries, size, "
STREAMS = "stream, table, commit, commits behind, rows behind, for, held until"
UPKEEP = "table, due, to read, fragments a slot, reads, writes, space"
SCAN = (
    "table",
    "snapshot",
    "slots",
    "slots_done",
    "slots_moved",
    "rows",
    "rows_per_second",
    "pages",
    "began_at",
)
MOVE = ("tablet", "from", "to", "phase", "started_at", "silent_since", "taken_over_from")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def picture(uri: str, status: Row) -> RenderableType:
    """Draw all of `Store.status()`."""
    tablets = f"{len(status['tablets'])} tablets over {status['slots']:,} slots"
    head = f"   topology {status['topology']}   snapshot {status['snapshot']}   {tablets}"
    parts: list[RenderableType] = [Text.assemble((uri, "bold"), head), Text(), shard_lines(status)]
    if status.get("outdated"):
        parts.insert(1, Text(status["outdated"], style="red"))
    if status.get("read_only"):
        text = f"for reading alone, scans take no leases: {status['read_only']}"
        parts.insert(1, Text(text, style="yellow"))
    tables, moves, leases = status["tables"], status["moves"], status["leases"]
    indexes = [{"table": table["name"], **index} for table in tables for index in table["indexes"]]
    for title, titles, rows in (
        ("tables", "name, rows, size, fragments, primary key", [*map(_table_row, tables)]),
        ("indexes", INDEXES, [*map(index_row, indexes)]),
        ("upkeep", UPKEEP, [*map(_upkeep_row, tables)]),
        ("removed shards", *_plain(status["removed_shards"], "name", "root", "files", "kept_until")),
        ("upkeep under way", *_plain(status["upkeep"]["running"], "step", "owner", "started_at")),
        ("moves under way", *_plain(moves, *MOVE)),
        ("streams", STREAMS, [*map(stream_row, status.get("streams", ()))]),
        ("scans in flight", *_plain(status["scans"], *SCAN)),
        ("leases", *_plain(leases, *(leases[0] if leases else ()))),
    ):
        if rows:
            parts += [Text(), Text(title, style="bold"), listing(titles, rows)]
    return Group(*parts)


def colours(status: Row) -> dict[str, str]:
    """Return a colour for each shard."""
    return {shard["name"]: COLOURS[at % len(COLOURS)] for at, shard in enumerate(status["shards"])}


def shard_lines(status: Row) -> Table:
    """Draw the shards with a block for each tablet; an arrow, in its target's colour, moves."""
    colour, lines = colours(status), Table.grid(padding=(0, 2))
    targets = {move["tablet"]: colour.get(move["to"], "white") for move in status["moves"]}
    for shard in status["shards"]:
        name = shard["name"]
        ids = sorted(tablet["id"] for tablet in status["tablets"] if tablet["shard"] == name)
        blocks = Text(overflow="fold")
        for each in ids[:MAX_BLOCKS]:
            goes = targets.get(each)
            blocks.append(LEAVING if goes else BLOCK, f"bold {goes}" if goes else colour[name])
        if len(ids) > MAX_BLOCKS:
            blocks.append(f" and {len(ids) - MAX_BLOCKS:,} more", "dim")
        if ids:
            blocks.append(f"\nids {_ranges(ids)}", "dim")
        lines.add_row(
            Text.assemble((name, f"bold {colour[name]}"), (" leaving" * shard["draining"], "dim italic")),
            Text(f"{len(ids):>4} tablets", "dim"),
            Text(f"{size(shard['bytes'])!s:>9}", "dim"),
            blocks,
        )
    return lines


def _ranges(ids: Sequence[int]) -> str:
    known = set(ids)
    starts = [each for each in ids if each - 1 not in known]
    ends = [each for each in ids if each + 1 not in known]
    ranges = [str(a) if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True)]
    more = f" and {len(ranges) - MAX_RANGES:,} ranges more" if len(ranges) > MAX_RANGES else ""
    return ", ".join(ranges[:MAX_RANGES]) + more


def tablet_listing(status: Row) -> Table:
    """Draw a line for each tablet, by its slots; neighbours can be joined."""
    colour, targets = colours(status), {move["tablet"]: move["to"] for move in status["moves"]}
    rows = [
        (
            str(tablet["id"]),
            f"{tablet['slots'][0]} to {tablet['slots'][1] - 1}",
            Text(tablet["shard"], colour.get(tablet["shard"], "")),
            targets.get(tablet["id"]),
        )
        for tablet in sorted(status["tablets"], key=lambda tablet: tablet["slots"])
    ]
    return listing("tablet, slots, shard, moving to", rows)


def row_count(table: Row) -> Text:
    """Return the rows of a table of `Store.status()`, as far as they are known."""
    return right(f"{'' if table['rows_exact'] else '≤ '}{table['rows']:,}")


def table_size(table: Row) -> Text:
    """Return the bytes of a table of `Store.status()`, with the compression of its files."""
    return right(f"{size(table['bytes'])} {table['compression'] or ''}".rstrip())


def index_row(index: Row) -> tuple[Any, ...]:
    """Return the cells of `INDEXES` for an index of `Store.status()` with its table."""
    is_ready = "" if index["ready"] else Text("not built yet", "yellow")
    names = ", ".join(index["columns"]), ", ".join(index["include"])
    return index["table"], index["name"], index["kind"], *names, size(index["bytes"]), is_ready


def stream_row(stream: Row) -> tuple[Any, ...]:
    """Return the cells of `STREAMS` for a stream of `Store.status()`."""
    behind = stream["behind_commits"], stream["behind_rows"], right(span(stream["behind_seconds"]))
    until = utc(stream["expires_at"])
    return stream["name"], stream["table"], right(str(stream["commit"])), *behind, until


def _table_row(table: Row) -> tuple[Any, ...]:
    keys = ", ".join(table["primary_key"])
    return table["name"], row_count(table), table_size(table), table["fragments"], keys


def _upkeep_row(table: Row) -> tuple[Any, ...]:
    upkeep = table["upkeep"]
    costs = (right(f"{upkeep['amplification'][of]:.1f}×") for of in ("reads", "writes", "space"))
    pending = right(f"{upkeep['merges_due']} merges"), size(upkeep["bytes_due"]), upkeep["slot_fragments"]
    return table["name"], *pending, *costs


def _plain(rows: Sequence[Row], *keys: str) -> tuple[str, list[list[Any]]]:
    """Return titles and cells of some keys; a float is a moment."""
    cells = [[utc(row[key]) if isinstance(row[key], float) else row[key] for key in keys] for row in rows]
    return ", ".join(key.replace("_", " ") for key in keys), cells


def span(seconds: float) -> str:
    """Return about how long, in the largest unit that fits: `3 s`, `12 min`, `5 h`, `2 d`."""
    length, unit = next((each for each in _UNITS if seconds >= each[0]), _UNITS[-1])
    return f"{int(seconds // length)} {unit}"
