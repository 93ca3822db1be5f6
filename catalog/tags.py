"""Catalog transactions: tags, names that keep a snapshot.

A tag is a lease without an end. The merges of fragments keep all versions from the oldest snapshot on
that a tag or a lease holds, so what a tag names can be read for as long as the tag is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elasticscan.base.errors import AlreadyExists, LimitExceeded, NotFound
from elasticscan.base.limits import MAX_TAGS
from elasticscan.base.suggestions import suggest
from elasticscan.catalog.fragments import FragmentTx
from elasticscan.catalog.tables import tags
from elasticscan.metadata import TableInfo


@dataclass(frozen=True, slots=True)
class Tag:
    """A name for a snapshot of a table, which keeps it."""

    name: str
    snapshot: int
    created_at: float


class TagTx(FragmentTx):
    """Reads and changes of tags."""

    def tags(self, table: int | None = None) -> tuple[Tag, ...]:
        """Return the tags of a table, or of all, the oldest snapshot first."""
        rows = self._tag_rows(table)
        return tuple(sorted(map(_tag, rows), key=lambda tag: (tag.snapshot, tag.name)))

    def tags_by_table(self) -> dict[int, list[Tag]]:
        """Return the tags of each table that has some, as `tags`."""
        tagged: dict[int, list[Tag]] = {}
        for row in sorted(self._tag_rows(None), key=lambda row: (row.snapshot, row.name)):
            tagged.setdefault(row.table_id, []).append(_tag(row))
        return tagged

    def tag(self, table: TableInfo, name: str) -> Tag:
        """Return a tag by its name. Raises `NotFound`, with a suggestion."""
        return _tag(self._tag_row(table, name))

    def add_tag(self, table: TableInfo, name: str, snapshot: int) -> Tag:
        """Name a snapshot; its caller has checked, in this transaction, that it can be read.

        A name that stands for this snapshot already is left as it is.
        """
        there = self._tag_rows(table.id)
        taken = next((_tag(row) for row in there if row.name == name), None)
        if taken is not None and taken.snapshot == snapshot:
            return taken
        if taken is not None:
            raise AlreadyExists(
                f"table {table.name!r} already has a tag {name!r}, of snapshot {taken.snapshot}; drop it "
                f"first, or choose another name for snapshot {snapshot}",
                table=table.name,
                tag=name,
                snapshot=taken.snapshot,
            )
        if len(there) >= MAX_TAGS:
            raise LimitExceeded(
                f"table {table.name!r} has {len(there):,} tags, and more are not kept; drop some",
                table=table.name,
                most=MAX_TAGS,
            )
        made = Tag(name, snapshot, self.times.stamp)
        row = {"id": f"{table.id}/{name}", "table_id": table.id, "name": name}
        self._rows.insert(tags, row | {"snapshot": snapshot, "created_at": made.created_at})
        return made

    def drop_tag(self, table: TableInfo, name: str) -> None:
        self._rows.delete(tags, [self._tag_row(table, name)])

    def drop_tags(self, table: int) -> None:
        """Drop all tags of a table."""
        self._rows.delete(tags, self._tag_rows(table))

    def _oldest_tagged(self, table: int) -> int | None:
        return min((row.snapshot for row in self._tag_rows(table)), default=None)

    def _tag_rows(self, table: int | None) -> list[Any]:
        return self._rows.group(tags, {} if table is None else {"table_id": table})

    def _tag_row(self, table: TableInfo, name: str) -> Any:
        rows = {row.name: row for row in self._tag_rows(table.id)}
        if name in rows:
            return rows[name]
        hint = suggest(name, rows) or "; Table.tags() lists them"
        raise NotFound(
            f"table {table.name!r} has no tag {name!r}{hint}", table=table.name, tag=name, kind="tag"
        )


def _tag(row: Any) -> Tag:
    return Tag(row.name, row.snapshot, row.created_at)
