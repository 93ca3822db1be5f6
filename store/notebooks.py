"""The HTML that notebooks show: of a table, its history, and the explanation of a scan."""

from __future__ import annotations

import math
from typing import Any

from elasticscan.base.drawing import code, listing
from elasticscan.base.showing import utc
from elasticscan.catalog import Commit
from elasticscan.metadata import TableInfo

_MOST_LINES = 20
_TITLES = ("commit", "kind", "rows", "bytes", "made at (UTC)", "said")


class History(tuple[Commit, ...]):
    """The commits of a table, oldest first; in a shell a line for each of the newest."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = [
            f"{c.number:>9}  {c.kind:<9} {c.rows:>13,} rows {c.bytes:>16,} bytes  {utc(c.created_at)}"
            for c in self[-_MOST_LINES:]
        ]
        earlier = [f"{len(self) - _MOST_LINES:,} earlier"] if len(self) > _MOST_LINES else []
        return "\n".join(
            [f"History of {len(self):,} commit{'' if len(self) == 1 else 's'}", *earlier, *shown]
        )

    def _repr_html_(self) -> str:
        return listing(
            _TITLES,
            (
                (
                    *(c.number, c.kind, c.rows, c.bytes, utc(c.created_at)),
                    ", ".join(f"{name}={text}" for name, text in c.user_metadata.items()),
                )
                for c in self
            ),
        )


def table_html(title: str, table: TableInfo, commits: History) -> str:
    """Return the columns and some commits of a table as notebooks show them."""
    columns = [
        (field.name, field.type, "primary key" if field.name in table.primary_key else "")
        for field in table.schema
    ]
    return f"{code(title)}<br/>{listing(('column', 'type', ''), columns)}<br/>{commits._repr_html_()}"


class Explanation(dict[str, Any]):
    """The explanation of a scan, a dictionary: lines in a shell, tables in a notebook."""

    def __repr__(self) -> str:
        counted = self["actual"]
        lines = [
            f"Explanation of a scan of {self['table']!r} at snapshot {self['snapshot']}",
            f"columns   {', '.join(self['columns']) or 'none'}",
            f"filter    {self['filter'] or 'none'}",
            f"access    {self['access']}",
            f"until now {counted['rows_scanned']:,} rows scanned, {counted['rows_returned']:,} returned",
            *(f"{s['scan']} at {s['shard']}: {s['slots']:,} slots" for s in self["scans"]),
            *(f"not used  {c['access']}: {c['reason']}" for c in self["candidates"] if not c["usable"]),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        title = f"{self['table']}   snapshot {self['snapshot']}   filter {self['filter'] or 'none'}"
        paths = [
            (
                path["access"],
                *(round(path[of]) if math.isfinite(path[of]) else "" for of in ("cost", "rows_scanned")),
                path["reason"],
            )
            for path in self["candidates"]
        ]
        listings = (
            (
                (f"access, chosen: {self['access']}", "cost", "rows scanned, estimated", "not used because"),
                paths,
            ),
            (("until now", ""), [(name.replace("_", " "), rows) for name, rows in self["actual"].items()]),
            (("reads", "at", "slots"), [(s["scan"], s["shard"], s["slots"]) for s in self["scans"]]),
        )
        return "<br/>".join([code(title), *(listing(*each) for each in listings)])
