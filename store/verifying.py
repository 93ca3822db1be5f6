"""Verification: what is damaged, and what of each table cannot be read for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from elasticscan.base.errors import OperatorNeeded
from elasticscan.metadata import Fragment, IndexRun
from elasticscan.storage import FileDamage, find_damage
from elasticscan.store.context import Context
from elasticscan.topology import SlotSet


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that `verify` found wrong. As a text it is all that people need.

    Attributes:
        error: what is wrong, with its code.
        shard, path: the damaged file; None for what is no file: the catalog, a root.
        table, index: what it is of; `index` is None for a table's own rows.
        slots: ranges [start, end) of the slots of which rows cannot be read.
        rows, of_rows: how many rows (of an index: entries) cannot be read, and how many the file has:
            versions of rows, and deletions, each counted.
        commits: the first and the last that wrote rows of the file.
    """

    error: str
    shard: str | None = None
    path: str | None = None
    table: str | None = None
    index: str | None = None
    slots: tuple[tuple[int, int], ...] = ()
    rows: int = 0
    of_rows: int = 0
    commits: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.path is None:
            return self.error
        if self.index is not None:
            lost = f"{self.rows:,} of its {self.of_rows:,} entries; no row is lost: make the index again"
        elif not self.rows:
            lost = "no row that the table still has: compact it"
        else:
            lost = f"{self.rows:,} of its {self.of_rows:,} rows, in slots {SlotSet.of(self.slots)}"
        if self.commits is not None:
            first, last = self.commits
            lost += f", of commit {first}" if first == last else f", of commits {first} to {last}"
        return (
            f"{self.error}. Not readable: {lost}. `gc` puts back a copy in the trash of shard {self.shard!r}"
        )


def verify(context: Context) -> Iterator[Finding]:
    """Look at the whole catalog and every root's marker, read every file and compare checksums.

    Yields what is wrong instead of raising it. In a damaged catalog no file is looked up.
    """
    try:
        context.catalog.check_whole()
        state = context.state()
        shards, runs = state.shards.values(), state.runs()
        names = {table.id: table.name for table in state.infos()}
        fragments = {fragment.id: fragment for fragment in state.fragments()}
        indexes = {index.id: index.name for index in state.indexes()}
    except OperatorNeeded as error:
        yield Finding(str(error))
        return
    for shard in shards:
        try:
            with context.unless_left(shard.id):
                context.check_root(shard.id)
        except OperatorNeeded as error:
            yield Finding(str(error), shard=shard.name)
    shard_names = {shard.id: shard.name for shard in shards}
    for fragment in fragments.values():
        found = Finding("", shard_names[fragment.shard], table=names.get(fragment.table))
        yield from _look(context, fragment, fragment, found)
    for run in runs:
        fragment, index = fragments[run.fragment], indexes.get(run.index, "")
        found = Finding("", shard_names[fragment.shard], table=names.get(fragment.table), index=index)
        yield from _look(context, fragment, run, found)


def _look(
    context: Context, fragment: Fragment, file: Fragment | IndexRun, found: Finding
) -> Iterator[Finding]:
    """Read a fragment's own file, or that of one of its runs."""
    label = f" (table {found.table!r}, slots {fragment.slots}"
    label += ")" if found.index is None else f", index {found.index!r})"
    damage: FileDamage | None
    try:
        damage = find_damage(context.disk_of(fragment.shard), file.path, file.seal, label)
    except OperatorNeeded as error:
        damage = FileDamage(error, None)
    if damage is None:
        return
    slots, rows, commits = fragment.slots, file.rows, None
    if isinstance(file, IndexRun):  # no order of slots
        if damage.batches is not None:
            rows = sum(count for count, _ in damage.batches.values())
    else:
        commits = fragment.min_commit, fragment.max_commit
        if damage.batches is not None:
            batches = damage.batches.values()
            lost = [(count, SlotSet.span(first, last + 1) & slots) for count, first, last in batches]
            slots, rows = SlotSet.union(of for _, of in lost), sum(count for count, of in lost if of)
    yield replace(
        found,
        error=str(damage.error),
        path=file.path,
        slots=slots.ranges,
        rows=rows,
        of_rows=file.rows,
        commits=commits,
    )
