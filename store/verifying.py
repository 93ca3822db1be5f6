"""Verification: which files, roots and catalog entries are damaged, and which rows are lost with them."""

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
    """A problem that `verify` found. Its text, `str(finding)`, has everything that people need.

    Attributes:
        error: the problem, with its error code.
        shard, path: the damaged file; `path` is None if the catalog or a root is damaged.
        table, index: the table and index of the file; `index` is None for a file of rows.
        slots: ranges [start, end) of slots whose rows are in the file.
        rows: number of rows in the file, or of index entries. Some or all of them cannot be read. Each
            version of a row and each deletion counts.
        commits: the first and the last commit that wrote rows of the file.
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
    """Check the whole catalog and every root's marker, read every file and compare checksums.

    Yields problems instead of raising them. If the catalog is damaged, no file is read.
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
            finding = Finding(str(error), where, file.path, table, index, fragment.slots.ranges, file.rows)
            yield finding if index is not None else replace(finding, commits=commits)
