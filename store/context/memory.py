"""Memory fragments of tables: rows of small commits in the log, in the form in which this process reads them.

For each definition with which rows were written there are at most two fragments: a large one, and a small one
of the newest commits, which is rebuilt after each commit. When the small one has more than an eighth of the
rows of the large one, both are merged. So the work per commit is small, and a scan reads few fragments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import pyarrow as pa

from elasticscan.catalog import InlineCommit, Tx
from elasticscan.metadata import FragmentStatistics, IndexInfo, IndexRun, TableInfo, unpack_statistics
from elasticscan.storage import (
    SLOT,
    MemoryFile,
    MemoryFragment,
    memory_fragment,
    memory_runs,
    numbered,
    schema_in_log,
    unpack_rows,
)
from elasticscan.topology import SlotSet

_FEW_ROWS = 256  # fewer rows are never merged into the large fragment
_IDS: Final = count(-1, -1)  # negative: the ids of fragments in files are positive


@dataclass(frozen=True, slots=True)
class _Commits:
    """Consecutive commits, and their rows as one fragment per definition."""

    commits: tuple[InlineCommit, ...]
    fragments: Mapping[int, MemoryFragment]

    @property
    def count(self) -> int:
        return sum(fragment.rows for fragment in self.fragments.values())

    @property
    def parts(self) -> list[tuple[int, pa.RecordBatch]]:
        return [(definition, fragment.content) for definition, fragment in self.fragments.items()]


_NOTHING: Final = _Commits((), {})


@dataclass(slots=True)
class TableMemory:
    """The rows of a table in the log, for one state of the catalog.

    Attributes:
        commits: the commits that wrote the rows.
        table: the table in that state.
    """

    table: TableInfo
    commits: tuple[InlineCommit, ...] = ()
    _old: _Commits = _NOTHING
    _new: _Commits = _NOTHING
    _runs: dict[tuple[int, int], tuple[list[IndexRun], list[MemoryFile]]] = field(default_factory=dict)

    @property
    def fragments(self) -> tuple[MemoryFragment, ...]:
        return (*self._old.fragments.values(), *self._new.fragments.values())

    def statistics(self) -> dict[int, FragmentStatistics]:
        """Return column statistics of the fragments, by fragment id."""
        return {fragment.id: unpack_statistics(fragment.statistics) for fragment in self.fragments}

    def runs(self, fragment: MemoryFragment, index: IndexInfo) -> list[IndexRun]:
        """Return a fragment's entries in an index. They are built at the first call."""
        known = self._runs.get((fragment.id, index.id))
        if known is None:
            # Another thread may have built them meanwhile: then its files are used, and these are dropped.
            made = memory_runs(self.table, index, fragment)
            known = self._runs.setdefault((fragment.id, index.id), made)
        return known[0]

    def as_of(self, tx: Tx) -> TableMemory:
        """Return the memory for the state of a transaction; reuses the fragments of unchanged commits."""
        commits, old, new = tx.state.memory(self.table.id), self._old, self._new
        if commits[: len(old.commits)] != old.commits:
            old = new = _NOTHING
        rest = commits[len(old.commits) :]
        if rest[: len(new.commits)] != new.commits:
            new = _NOTHING
        new = _with_more(tx, self.table, new, rest[len(new.commits) :])
        if new.count > max(_FEW_ROWS, old.count // 8):
            commits_of_both = (*old.commits, *new.commits)
            old, new = _together(self.table, commits_of_both, [*old.parts, *new.parts]), _NOTHING
        ids = {fragment.id for part in (old, new) for fragment in part.fragments.values()}
        runs = {key: made for key, made in list(self._runs.items()) if key[0] in ids}
        return TableMemory(self.table, commits, old, new, runs)


def _with_more(tx: Tx, table: TableInfo, before: _Commits, commits: Sequence[InlineCommit]) -> _Commits:
    """Return commits with further ones appended, whose rows are read from the log."""
    if not commits:
        return before
    packed, parts = tx.rows_of(table.id, commits), before.parts
    schemas: dict[tuple[int, bool], pa.Schema] = {}
    for commit in commits:
        form = commit.definition, commit.tombstones > 0
        schema = schemas.get(form) or schemas.setdefault(form, schema_in_log(table.at(form[0]), form[1]))
        rows = unpack_rows(table.name, schema, packed[commit.number])
        mask = commit.slots.mask(rows.column(SLOT).to_numpy())
        rows = rows if mask.all() else rows.filter(pa.array(mask))
        if rows.num_rows:
            parts.append((commit.definition, numbered(rows, commit.number)))
    return _together(table, (*before.commits, *commits), parts)


def _together(
    table: TableInfo, commits: tuple[InlineCommit, ...], parts: Sequence[tuple[int, pa.RecordBatch]]
) -> _Commits:
    """Return commits with their rows, merged into one sorted fragment per definition."""
    fragments = dict[int, MemoryFragment]()
    for definition in sorted({definition for definition, _ in parts}):
        rows = [part for number, part in parts if number == definition]
        slots = SlotSet.union(commit.slots for commit in commits if commit.definition == definition)
        fragments[definition] = memory_fragment(table.at(definition), rows, next(_IDS), slots)
    return _Commits(commits, fragments)
