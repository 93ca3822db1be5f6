"""The sections of a status, as titles and cells, for the command line and for the page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from elasticscan.base.formatting import utc

Row = Mapping[str, Any]
Cells = list[list[int | str]]

TABLETS = "id", "slots", "shard", "moving_to"
INDEXES = "table", "name", "kind", "columns", "include", "bytes", "ready"
_SECTIONS = {
    "shards": ("name", "tablets", "bytes", "draining"),
    "tables": ("name", "rows", "bytes", "compression", "fragments", "primary_key"),
    "indexes": INDEXES,
    "upkeep": ("table", "merges_due", "bytes_due", "slot_fragments"),
    "removed_shards": ("name", "root", "files", "kept_until"),
    "upkeep under way": ("step", "owner", "started_at"),
    "moves": ("tablet", "from", "to", "phase", "started_at", "silent_since", "taken_over_from"),
    "streams": ("name", "table", "commit", "behind_commits", "behind_rows", "behind_seconds", "expires_at"),
    "leases": ("purpose", "table", "snapshot", "expires_at"),
}
_UNITS = (10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")


def sections(status: Row) -> Iterator[tuple[str, tuple[str, ...], Cells]]:
    """Yield the title, the keys and the cells of each section of `Store.status()` that has rows."""
    tables = status["tables"]
    rows: dict[str, Any] = {
        **status,
        "indexes": [{"table": table["name"], **index} for table in tables for index in table["indexes"]],
        "upkeep": [{"table": table["name"], **table["upkeep"]} for table in tables],
        "upkeep under way": status["upkeep"]["running"],
    }
    for title, keys in _SECTIONS.items():
        if rows[title]:
            yield title.replace("_", " "), keys, cells(rows[title], keys)


def warnings_of(status: Row) -> list[str]:
    """Return warnings to show before a status: it is outdated, or the store is read-only."""
    read_only = status["read_only"] and f"for reading alone, scans take no leases: {status['read_only']}"
    return [text for text in (status["outdated"], read_only) if text]


def cells(rows: Iterable[Row], keys: Iterable[str]) -> Cells:
    """Return the values of `keys` in rows as integers and texts."""
    return [[_cell(key, row) for key in keys] for row in rows]


def _cell(key: str, row: Row) -> int | str:
    value = row[key]
    if key.startswith("bytes"):
        return size(value)
    if key.endswith("seconds"):
        return f"{value:,.0f} s"
    if isinstance(value, float):
        return utc(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {each}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if key == "rows" and not row.get("rows_exact", True):
        return f"≤ {value:,}"
    return value if isinstance(value, int) else "" if value is None else str(value)


def size(count: float) -> str:
    """Return a number of bytes in a unit that fits: `12 bytes`, `16.9 MB`."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} bytes"
