"""Verification: what is damaged, and what of each table cannot be read for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from elasticscan.base.errors import OperatorNeeded
from elasticscan.metadata import IndexRun
from elasticscan.storage import verify_file
from elasticscan.store.context import Context
from elasticscan.topology import SlotSet


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that `verify` found wrong. As a text it is all that people need.

    Attributes:
        error: what is wrong, with its code.
        shard, path: the damaged file; None for what is no file: the catalog, a root.
        table, index: what it is of; `index` is None for a table's own rows.
        slots: ranges [start, end) of the slots whose rows the file has.
        rows: how many rows (of an index: entries) it has, some or all of which cannot be read: versions of
            rows, and deletions, each counted.
        commits: the first and the last that wrote rows of the file.
    """

    error: str
    shard: str | None = None
    path: str | None = None
    table: str | None = None
    index: str | None = None
    slots: tuple[tuple[int, int], ...] = ()
    rows: int = 0
    commits: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.path is None:
            return self.error
        lost = f"up to {self.rows:,} rows in slots {SlotSet.of(self.slots)}"
        if self.index is not None:
            lost = f"up to {self.rows:,} entries; no row is lost: make the index again"
        elif not self.slots:
            lost = "no row that the table still has: compact it"
        if self.commits is not None:
            first, last = self.commits
            lost += f", of commit {first}" if first == last else f", of commits {first} to {last}"
        return f"{self.error}. Not readable: {lost}"


def verify(context: Context) -> Iterator[Finding]:
    """Look at the whole catalog and every root's marker, read every file and compare checksums.

    Yields what is wrong instead of raising it. In a damaged catalog no file is looked up.
    """
    try:
        context.catalog.check_whole()
        state = context.state()
        files = state.files()
        tables = {table.id: table.name for table in state.infos()}
        indexes = {index.id: index.name for index in state.indexes()}
    except OperatorNeeded as error:
        yield Finding(str(error))
        return
    for shard in state.shards.values():
        try:
            with context.unless_left(shard.id):
                context.check_root(shard.id)
        except OperatorNeeded as error:
            yield Finding(str(error), shard=shard.name)
    for fragment, file in files:
        table = tables.get(fragment.table)
        index = indexes.get(file.index, "") if isinstance(file, IndexRun) else None
        label = f" (table {table!r}, slots {fragment.slots}{'' if index is None else f', index {index!r}'})"
        try:
            verify_file(context.disk_of(fragment.shard), file.path, file.seal, label)
        except OperatorNeeded as error:
            where, commits = state.shards[fragment.shard].name, (fragment.min_commit, fragment.max_commit)
            found = Finding(str(error), where, file.path, table, index, fragment.slots.ranges, file.rows)
            yield found if index is not None else replace(found, commits=commits)
