"""Verification: what is damaged, and what of each table cannot be read for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from elasticscan.base.errors import OperatorNeeded
from elasticscan.metadata import Fragment, IndexRun, Seal
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
        with context.catalog.reading() as tx:
            shards = tx.shards()
            names = {table.id: table.name for table in tx.tables()}
            fragments = {fragment.id: fragment for fragment in tx.fragments()}
            runs = tx.runs()
            indexes = {index.id: index.name for index in tx.indexes()}
    except OperatorNeeded as error:
        yield Finding(str(error))
        return
    for shard in shards:
        try:
            with context.unless_left(shard.id):
                context.check_root(shard.id)
        except OperatorNeeded as error:
            yield Finding(str(error), shard=shard.name)
    look = _Inspection(context, {shard.id: shard.name for shard in shards}, names)
    for fragment in fragments.values():
        yield from look.at_fragment(fragment)
    for run in runs:
        yield from look.at_run(run, fragments[run.fragment], indexes.get(run.index))


class _Inspection:
    """A check of files, one after another, which keeps nothing but the names of shards and tables."""

    def __init__(self, context: Context, shards: Mapping[int, str], tables: Mapping[int, str]) -> None:
        self._context, self._shards, self._tables = context, shards, tables

    def at_fragment(self, fragment: Fragment) -> Iterator[Finding]:
        damage = self._damage(fragment.shard, fragment.path, fragment.seal, f"{self._label(fragment)})")
        if damage is None:
            return
        slots, rows = fragment.slots, fragment.rows
        if damage.batches is not None:
            lost = [
                (count, SlotSet.span(first, last + 1) & fragment.slots)
                for count, first, last in damage.batches.values()
            ]
            slots = SlotSet.of(span for _, of in lost for span in of)
            rows = sum(count for count, of in lost if of)
        finding = self._finding(damage, fragment, fragment.path)
        commits = (fragment.min_commit, fragment.max_commit)
        yield replace(finding, slots=slots.ranges, rows=rows, of_rows=fragment.rows, commits=commits)

    def at_run(self, run: IndexRun, fragment: Fragment, index: str | None) -> Iterator[Finding]:
        label = f"{self._label(fragment)}, index {index!r})"
        damage = self._damage(fragment.shard, run.path, run.seal, label)
        if damage is None:
            return
        rows = run.rows
        if damage.batches is not None:
            rows = sum(count for count, _ in damage.batches.values())
        finding = self._finding(damage, fragment, run.path)
        yield replace(finding, index=index or "", slots=fragment.slots.ranges, rows=rows, of_rows=run.rows)

    def _damage(self, shard: int, path: str, seal: Seal, label: str) -> FileDamage | None:
        try:
            return find_damage(self._context.disk_of(shard), path, seal, label)
        except OperatorNeeded as error:
            return FileDamage(error, None)

    def _finding(self, damage: FileDamage, fragment: Fragment, path: str) -> Finding:
        table = self._tables.get(fragment.table)
        return Finding(str(damage.error), self._shards[fragment.shard], path, table)

    def _label(self, fragment: Fragment) -> str:
        return f" (table {self._tables.get(fragment.table)!r}, slots {fragment.slots}"
