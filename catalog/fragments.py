"""Catalog transactions: the files of tables, which are fragments and the runs of their secondary indexes.

Files come with a commit, a merge, a move or the build of an index, each of them one record. A file whose
fragment serves no slot any more is *dropped*: no plan uses it, and garbage collection removes it later. Files
that no record names are *condemned* before they are removed; no record may name them from then on.

An index is entered in the first phase of `elasticscan.metadata.indexes` and goes from phase to phase by that
table; `transition_index` is the one writer of its phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from elasticscan.base.errors import AlreadyExists, LimitExceeded, NotFound
from elasticscan.base.suggestions import suggest
from elasticscan.catalog.entries import damaged_log
from elasticscan.catalog.home import Interrupted
from elasticscan.catalog.table_state import InlineCommit, RemovedFile, TableState
from elasticscan.catalog.transaction import StateTx
from elasticscan.metadata import (
    MAX_FILES,
    AddedFragment,
    AddedRun,
    FileChanges,
    FilesCondemned,
    Fragment,
    FragmentsReplaced,
    FragmentStatistics,
    IndexDefined,
    IndexEvent,
    IndexInfo,
    IndexPhase,
    IndexRun,
    KeyHistogram,
    MoveSwitched,
    StagedFragment,
    StagedRun,
    unpack_histogram,
    unpack_statistics,
)
from elasticscan.topology import SlotSet, Tablet

File: TypeAlias = tuple[int, str]  # shard, path
Copy: TypeAlias = tuple[StagedFragment, int, int]  # with bounds of the commits that its rows belong to

_ids = attrgetter("id")


class DroppedFile(NamedTuple):
    """A file of a fragment, or of a run of it, which serves no slot any more."""

    shard: int
    path: str
    table: int
    fragment: int
    dropped_at: float


class FragmentTx(StateTx):
    """Fragments, their statistics, and secondary indexes with their runs."""

    # Fragments

    def fragments(self, table: int | None = None, shard: int | None = None) -> tuple[Fragment, ...]:
        """Return the fragments that serve slots now, oldest first."""
        every = chain.from_iterable(own.fragments.by_id().values() for own in self._tables(table))
        found = (fragment for fragment in every if shard is None or fragment.shard == shard)
        return tuple(found if table is not None else sorted(found, key=_ids))

    def fragment_counts(self, table: int) -> dict[int, int]:
        """Return the numbers of fragments that serve slots of a table, by shard."""
        return dict(Counter(fragment.shard for fragment in self.fragments(table)))

    def commit_files(self, staged: Iterable[StagedFragment]) -> FileChanges:
        """Return what a commit's record says of the files that it brings.

        The record is refused with `WriteConflict` if garbage collection has condemned one of them.
        """
        return FileChanges(tuple(AddedFragment(fragment) for fragment in self._entering(staged)))

    def replace_fragments(
        self, table: int, slots: Mapping[int, SlotSet], added: Iterable[Copy], operation: str
    ) -> None:
        """Enter fragments in the place of others, as one record.

        Args:
            table: of all of them.
            slots: what the others serve from now on, by their ids; one without any is dropped with its runs.
            added: fragments, with runs of all indexes.
            operation: its name in the log.

        Raises:
            WriteConflict: a fragment is not there, or garbage collection has condemned one that is added.
        """
        files = FileChanges(
            self._added(added),
            removed=tuple(sorted(number for number, left in slots.items() if not left)),
            slots=tuple(sorted((number, left) for number, left in slots.items() if left)),
        )
        self._replace(table, operation, files)

    def switch_tablet(self, tablet: Tablet, target: int, files: Mapping[int, Sequence[Copy]]) -> None:
        """Let another shard serve a tablet, with what was copied there, as one record.

        The source's fragments serve its slots no longer. All rows are copied that this transaction sees.

        Args:
            tablet: as it was before.
            target: the shard.
            files: copies there, by table; with runs of all indexes.

        Raises:
            InvalidTopologyChange: the tablet is another one by now, or the target is draining.
            WriteConflict: garbage collection has condemned a copy.
        """
        tables = {table: FileChanges(self._added(copies)) for table, copies in files.items()}
        self.append(MoveSwitched(tablet, target, self.state.number, tables))

    # Rows in the log

    def memory(self, table: int) -> tuple[InlineCommit, ...]:
        """Return the commits of which rows of at least one slot lie in the log alone; oldest first."""
        known = self.state.tables.get(table)
        return () if known is None else known.memory

    def memory_bytes(self) -> dict[int, int]:
        """Return how many bytes the rows of each table take in the log."""
        return {number: table.memory_bytes for number, table in self.state.tables.items()}

    def rows_of(self, table: int, commits: Collection[InlineCommit]) -> dict[int, bytes]:
        """Return the rows of commits from `memory`, by number.

        Raises:
            Interrupted: a flush has moved some to files, and the log has dropped them.
            StoreDamaged: some are not there, or are not what was written.
        """
        found = self.log.rows_of(table, commits, self.execute)
        missing = {commit.number for commit in commits} - found.keys()
        if not missing:
            return found
        now = self.log.follow().tables.get(table)
        if now is None or missing.isdisjoint(commit.number for commit in now.memory):
            raise Interrupted("rows were moved from the log to files while they were read; try again")
        raise damaged_log(f"the rows of record {min(missing)} are missing")

    def flush(
        self, table: int, numbers: Iterable[int], slots: SlotSet, added: Iterable[Copy], operation: str
    ) -> None:
        """Replace the rows that some commits have in the log, of some slots, by fragments, as one record."""
        files = FileChanges(self._added(added), flushed=tuple(sorted(numbers)), flushed_slots=slots)
        self._replace(table, operation, files)

    def _added(self, copies: Iterable[Copy]) -> tuple[AddedFragment, ...]:
        copies = list(copies)
        staged = self._entering(fragment for fragment, _, _ in copies)
        return tuple(AddedFragment(file, *bounds) for file, (_, *bounds) in zip(staged, copies, strict=True))

    def _entering(self, staged: Iterable[StagedFragment]) -> list[StagedFragment]:
        """Return fragments that are about to be entered, without runs of indexes that are gone."""
        live, entering = {index.id for index in self.indexes()}, list[StagedFragment]()
        for fragment in staged:
            self.files_at |= {fragment.shard}
            runs = tuple(run for run in fragment.runs if run.index in live)
            entering.append(fragment if len(runs) == len(fragment.runs) else replace(fragment, runs=runs))
        if sum(1 + len(fragment.runs) for fragment in entering) > MAX_FILES:
            raise LimitExceeded(
                f"one commit brings at most {MAX_FILES:,} files; write in several calls", most=MAX_FILES
            )
        return entering

    def _replace(self, table: int, operation: str, files: FileChanges) -> None:
        before = self.state.tables.get(table)
        if before is None:  # it was dropped, and its files are forgotten
            self.append(FragmentsReplaced(table, operation, 0, files))
        else:
            horizon, served = before.info.oldest_snapshot, before.served_by(files)
            self.append(FragmentsReplaced(table, operation, horizon, files, served))

    def _tables(self, table: int | None) -> Iterable[TableState]:
        tables = self.state.tables
        if table is None:
            return tables.values()
        return [tables[table]] if table in tables else []

    # Dropped files

    def dropped_files(self) -> tuple[DroppedFile, ...]:
        """Return the files of fragments and runs that were dropped, and not forgotten yet."""
        return tuple(_dropped(table, file) for table, file in self._removed())

    def dropped_before(self, table: int, seconds: float, most: int) -> tuple[DroppedFile, ...]:
        """Return files of fragments of a table that were dropped at least so many seconds ago.

        These are the files of `most` fragments at most, those first that were dropped first, and their runs.
        """
        upto, files = self.times.expiry - seconds, self._removed(table)
        over = [file for _, file in files if not file.is_run and file.time / 1e6 <= upto]
        chosen = {file.id for file in sorted(over, key=attrgetter("time"))[:most]}
        return tuple(_dropped(table, file) for _, file in self._removed(table) if file.fragment in chosen)

    def dropped_bytes(self) -> Counter[int]:
        """Return the bytes of each table's files that were dropped and not forgotten yet."""
        size = Counter[int]()
        for table, file in self._removed():
            size[table] += file.bytes
        return size

    def forget_dropped(self, files: Iterable[DroppedFile]) -> None:
        """Forget files that are gone from their disks."""
        gone: dict[int, set[File]] = {}
        for file in files:
            gone.setdefault(file.table, set()).add((file.shard, file.path))
        for table, forgotten in sorted(gone.items()):
            if table in self.state.tables or table in self.state.dropped:
                self._replace(table, "forget", FileChanges(forgotten=tuple(sorted(forgotten))))

    def _removed(self, table: int | None = None) -> Iterator[tuple[int, RemovedFile]]:
        """Yield the dropped files of a table, or of all, each with its table."""
        state = self.state
        removed = {number: own.removed for number, own in state.tables.items()}
        removed |= {number: gone.files for number, gone in state.dropped.items()}
        for number in removed if table is None else (table,):
            yield from ((number, file) for file in removed.get(number, ()))

    # Condemned files

    def condemn(self, files: Iterable[File]) -> frozenset[File]:
        """Condemn files that are about to go: no record may name them from now on. Returns those condemned.

        A file that is known by now is spared. After this transaction no commit can enter the others, so they
        are removed without a lock. The layout grows, by which writers see that files may have gone.
        """
        unreferenced = frozenset(files) - self.known_paths()
        if unreferenced:
            self.append(FilesCondemned(tuple(sorted(unreferenced))))
        return unreferenced

    def pardon(self, files: Iterable[File]) -> None:
        """Lift the condemnation of files that are gone from their places."""
        gone = self.state.condemned.intersection(files)
        if gone:
            self.append(FilesCondemned(tuple(sorted(gone)), lifted=True))

    def condemned(self) -> tuple[File, ...]:
        """Return the files that are condemned and not pardoned: a collection is under way, or died."""
        return tuple(sorted(self.state.condemned))

    def known_paths(self) -> frozenset[File]:
        """(shard, path) of every file that the catalog refers to, dropped ones included.

        A shard that was added again where a removed one had been shares its files: they are known under both.
        """
        shards_at: dict[str, list[int]] = {}
        every = chain(self.state.shards.values(), self.state.removed_shards.values())
        roots = {shard.id: shard.root for shard in every}
        for shard, root in roots.items():
            shards_at.setdefault(root, []).append(shard)
        paths = set[File]()
        for shard, path in self._files():
            if shard not in roots:
                raise damaged_log(f"file {path} is at shard {shard}, which there never was")
            paths.update((same, path) for same in shards_at[roots[shard]])
        return frozenset(paths)

    def _files(self) -> Iterator[File]:
        for table in self.state.tables.values():
            fragments = table.fragments.by_id()
            yield from ((fragment.shard, fragment.path) for fragment in fragments.values())
            yield from ((fragments[run.fragment].shard, run.path) for run in table.runs.by_id().values())
        yield from ((file.shard, file.path) for _, file in self._removed())

    # Statistics

    def statistics(self, table: int, of: Collection[int]) -> dict[int, FragmentStatistics]:
        """Return what is known of some fragments of a table, by their ids.

        Damaged ones are missing: they save work, and no row depends on them.
        """
        return {fragment: unpack_statistics(body) for fragment, body in self._statistics(table, of).items()}

    def histograms(self, table: int, runs: Collection[int]) -> dict[int, KeyHistogram]:
        """Return the histograms of some runs, by their ids; damaged ones are missing, as in `statistics`."""
        return {run: unpack_histogram(body) for run, body in self._statistics(table, runs).items()}

    def _statistics(self, table: int, of: Collection[int]) -> dict[int, bytes]:
        return self.log.statistics_of(table, of) if of else {}

    # Indexes and their runs

    def create_index(self, info: IndexInfo) -> IndexInfo:
        """Enter an index that has no runs yet; commits made from now on bring theirs."""
        assert info.phase is IndexPhase.ENTERED, f"an index begins without runs: {info}"
        if any(index.name == info.name for index in self.indexes(info.table)):
            raise AlreadyExists(f"the table already has an index {info.name!r}", index=info.name)
        entered = replace(info, id=self.state.newest_ids.get("index", 0) + 1)
        self.append(IndexDefined(entered))
        return entered

    def indexes(self, table: int | None = None) -> tuple[IndexInfo, ...]:
        """Return the indexes of a table, or of all, that were not dropped."""
        return tuple(sorted(chain.from_iterable(own.indexes for own in self._tables(table)), key=_ids))

    def index(self, table: int, name: str) -> IndexInfo:
        live = self.indexes(table)
        for index in live:
            if index.name == name:
                return index
        hint = suggest(name, [index.name for index in live]) or "; Table.indexes() lists them"
        raise NotFound(f"the table has no index {name!r}{hint}", index=name, kind="index")

    def transition_index(self, index: IndexInfo, event: IndexEvent) -> IndexInfo:
        """Let something happen to an index, by the table of its phases; its runs are dropped with it.

        Returns it in the phase that it is in now: one that was dropped meanwhile stays so, whatever happens.
        """
        before = next((own for own in self.indexes(index.table) if own.id == index.id), None)
        if before is None:
            return replace(index, phase=IndexPhase.DROPPED)
        after = before.after(event)
        if after != before:
            self.append(IndexDefined(after))
        return after

    def runs(self, table: int | None = None) -> tuple[IndexRun, ...]:
        """Return the runs of a table's fragments that serve slots now, or of all."""
        every = chain.from_iterable(own.runs.by_id().values() for own in self._tables(table))
        return tuple(every if table is not None else sorted(every, key=_ids))

    def without_runs(self, index: IndexInfo) -> tuple[Fragment, ...]:
        """Return the fragments that serve slots and lack runs of an index."""
        having = {run.fragment for run in self.runs(index.table) if run.index == index.id}
        return tuple(f for f in self.fragments(table=index.table) if f.id not in having)

    def add_runs(self, index: IndexInfo, runs: Mapping[int, Sequence[StagedRun]]) -> frozenset[int]:
        """Give fragments their runs of an index, by the fragments' ids, as one record.

        Returns the fragments that took theirs. The others are gone or have them already, or the index is
        gone, or the runs were taken for garbage.
        """
        table, condemned = self.state.tables.get(index.table), self.state.condemned
        if table is None or all(own.id != index.id for own in table.indexes):
            return frozenset()
        having = {run.fragment for run in table.runs.where("fragment", runs.keys()) if run.index == index.id}
        taking = {
            fragment.id: fragment.shard
            for fragment in table.fragments.where("id", runs.keys() - having)
            if condemned.isdisjoint((fragment.shard, run.path) for run in runs[fragment.id])
        }
        if taking:
            added = tuple(AddedRun(fragment, run) for fragment in sorted(taking) for run in runs[fragment])
            self._replace(index.table, "index", FileChanges(runs=added))
            self.files_at |= set(taking.values())
        return frozenset(taking)


def _dropped(table: int, file: RemovedFile) -> DroppedFile:
    return DroppedFile(file.shard, file.path, table, file.fragment, file.time / 1e6)
