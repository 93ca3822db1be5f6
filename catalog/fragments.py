"""Catalog transactions: fragments, and the runs of secondary indexes that belong to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Table, bindparam
from sqlalchemy.exc import DBAPIError

from elasticscan.base.errors import StoreDamaged, WriteConflict
from elasticscan.catalog.failures import damaged, decoding, is_damage
from elasticscan.catalog.indexes import IndexTx
from elasticscan.catalog.pipeline import Question
from elasticscan.catalog.sealed import SUMS_OF_KINDS, RowQuery, ask_group, ask_sums
from elasticscan.catalog.tables import (
    FRAGMENTS,
    condemned,
    dropped_kind,
    fragments,
    histograms,
    index_runs,
    indexes,
    leases,
    moves,
    statistics,
    tables,
    tags,
    upkeep_done,
    upkeep_steps,
)
from elasticscan.metadata import (
    Fragment,
    FragmentStatistics,
    IndexInfo,
    KeyHistogram,
    StagedFragment,
    StagedRun,
    unpack_histogram,
    unpack_statistics,
)
from elasticscan.topology import SlotSet

T = TypeVar("T")

# The most values that one statement may ask for.
_AT_ONCE = 500

# What the row of a fragment says of its file under the names that the fragment has for it.
_FILE_COLUMNS = ("path", "rows", "bytes", "tombstones", "versioned", "tail", "digest", "superseded_at")

File = tuple[int, str]  # shard, path

# The kinds of groups that a merge changes or counts.
_MERGED = (
    "commits",
    "fragments",
    dropped_kind("fragments"),
    "histograms",
    "index_runs",
    dropped_kind("index_runs"),
    "indexes",
    "leases",
    "overwrites",
    "statistics",
    "tags",
    "upkeep_done",
    "upkeep_steps",
)


class DroppedFile(NamedTuple):
    """A file that nothing refers to any more: of a fragment, or of a run of it."""

    shard: int
    path: str
    fragment: int
    run: int | None
    dropped_at: float


class FragmentTx(IndexTx):
    """Fragments, their statistics, and the runs of secondary indexes."""

    def add_fragments(
        self, table: int, staged: Iterable[StagedFragment], min_commit: int, max_commit: int
    ) -> None:
        """Enter staged files.

        Raises:
            WriteConflict: garbage collection has condemned one of them.
        """
        new_fragments = list(staged)
        gone = self._which_condemned(_files_of(new_fragments))
        if gone:
            raise WriteConflict(
                "garbage was collected with a grace period shorter than this call; nothing was changed: "
                "try again with a longer grace",
                path=min(gone)[1],
            )
        first = self._next("next_fragment", len(new_fragments))
        entered, bodies = [], []
        for number, fragment in enumerate(new_fragments, first):
            own = {name: getattr(fragment, name) for name in _FILE_COLUMNS}
            own |= {"id": number, "table_id": table, "shard_id": fragment.shard}
            slots = {"slots": str(fragment.slots), "slots_written": fragment.slots_written}
            bounds = {"min_commit": min_commit, "max_commit": max_commit}
            entered.append(own | slots | bounds | {"is_unique": fragment.unique})
            if fragment.statistics:
                bodies.append({"fragment_id": number, "body": fragment.statistics})
        self.files_at |= {fragment.shard for fragment in new_fragments}
        self._rows.insert(fragments, *entered)
        self._rows.insert(statistics, *bodies)
        of_fragments = enumerate(new_fragments, first)
        runs = [(number, fragment.shard, run) for number, fragment in of_fragments for run in fragment.runs]
        if runs:
            self._insert_runs(table, runs)

    def fragments(self, table: int | None = None, shard: int | None = None) -> tuple[Fragment, ...]:
        """Return the fragments that serve slots now, oldest first."""
        return tuple(_fragment(row) for row in self._fragment_rows(table, shard))

    def fragment_counts(self, table: int) -> dict[int, int]:
        """Return the numbers of fragments that serve slots of a table, by shard; looks at no fragment."""
        return self._rows.counts(FRAGMENTS, table)

    def commits_of_files(self) -> dict[str, tuple[int, int]]:
        """(min_commit, max_commit) of every fragment by path, dropped ones included."""
        return {row.path: (row.min_commit, row.max_commit) for row in self._rows.all(fragments)}

    def _fragment_rows(self, table: int | None = None, shard: int | None = None) -> list[Any]:
        part = {"table_id": table, "shard_id": shard}
        key = {name: number for name, number in part.items() if number is not None}
        return self._rows.group(fragments, key, order_by=fragments.c.id)

    def strike_slots(self, shard: int, slots: SlotSet) -> None:
        """Take slots that leave a shard from its fragments, which serve them no longer."""
        rows = self._fragment_rows(shard=shard)
        left = {row.id: _slots(row) - slots for row in rows if _slots(row) & slots}
        self._set_slots([row for row in rows if row.id in left], left)

    def note_merge(self, table: int) -> None:
        """Read sums that a merge of a table's fragments asks for again and again, before it changes them."""
        self._rows.note_sums(_MERGED, table)

    def set_fragment_slots(self, slots: Mapping[int, SlotSet]) -> None:
        """Set the slots that fragments serve, by their ids; a fragment without any is dropped."""
        rows = list(self._of(fragments, "id", slots.keys()))
        missing = slots.keys() - {row.id for row in rows}
        if missing:
            raise damaged(f"fragment {min(missing)} is not there")
        self._set_slots(rows, slots)

    def _set_slots(self, rows: Collection[Any], slots: Mapping[int, SlotSet]) -> None:
        changes = [(row, {"slots": str(slots[row.id])}) for row in rows if slots[row.id]]
        self._rows.update(fragments, changes)
        self._drop([row for row in rows if not slots[row.id]])

    def _drop(self, rows: Iterable[Any]) -> None:
        """Drop fragments, and their runs with them: they serve no longer.

        What garbage collection must know of their files is all that stays: plans do not use them any more.
        """
        going = [row for row in rows if row.dropped_at is None]
        at, ids = {"dropped_at": self.times.stamp}, [row.id for row in going]
        self._rows.update(fragments, [(row, at | {"slots": ""}) for row in going])
        runs = [run for run in self._of(index_runs, "fragment_id", ids) if run.dropped_at is None]
        self._rows.update(index_runs, [(run, at) for run in runs])
        self._forget_statistics(ids, [run.id for run in runs])

    def _drop_table_files(self, table: int) -> None:
        self._drop(self._fragment_rows(table=table))

    def _of(self, table: Table, column: str, keys: Collection[Any]) -> Iterator[Any]:
        """Rows whose column has one of some values."""
        values = sorted(keys)
        for at in range(0, len(values), _AT_ONCE):
            some = values[at : at + _AT_ONCE]
            for row in self._rows.ask(_rows_of(table, column), some=some):
                if getattr(row, column) not in some:  # the database's index led to another row
                    raise damaged(f"an index of table {table.name!r} points to other rows")
                yield row

    def dropped_files(self) -> tuple[DroppedFile, ...]:
        """Return the files of fragments and runs that were dropped, and not forgotten yet."""
        gone = self._rows.select(fragments, fragments.c.dropped_at.is_not(None))
        runs = self._rows.select(index_runs, index_runs.c.dropped_at.is_not(None))
        files = [DroppedFile(row.shard_id, row.path, row.id, None, row.dropped_at) for row in gone]
        files += [DroppedFile(r.shard_id, r.path, r.fragment_id, r.id, r.dropped_at) for r in runs]
        return tuple(files)

    def dropped_before(self, table: int, seconds: float, most: int) -> tuple[DroppedFile, ...]:
        """Files of a table that were dropped at least so many seconds ago, with those of their runs."""
        f, upto = fragments.c, self.times.expiry - seconds
        due = (f.table_id == table, f.dropped_at.is_not(None), f.dropped_at <= upto)
        gone = self._rows.select(fragments, *due, order_by=f.dropped_at, limit=most)
        runs = self._of(index_runs, "fragment_id", [row.id for row in gone])
        files = [DroppedFile(row.shard_id, row.path, row.id, None, row.dropped_at) for row in gone]
        files += [DroppedFile(r.shard_id, r.path, r.fragment_id, r.id, r.dropped_at) for r in runs]
        return tuple(files)

    def dropped_bytes(self) -> Counter[int]:
        """Return the bytes of each table's files that were dropped and not forgotten yet."""
        size = Counter[int]()
        for kind in (fragments, index_runs):
            size.update(self._rows.totals(kind, "bytes", "table_id", kind.c.dropped_at.is_not(None)))
        return size

    def forget_dropped(self, files: Iterable[DroppedFile]) -> None:
        """Forget files that are gone from their disks."""
        gone = list(files)
        dropped = {file.fragment for file in gone if file.run is None}
        runs = {run.id: run for run in self._of(index_runs, "fragment_id", dropped)}
        named = {file.run for file in gone if file.run is not None} - runs.keys()
        runs |= {run.id: run for run in self._of(index_runs, "id", named)}
        self._forget_statistics(dropped, runs.keys())
        self._rows.delete(index_runs, runs.values())
        self._rows.delete(fragments, list(self._of(fragments, "id", dropped)))

    def condemn(self, files: Iterable[File]) -> frozenset[File]:
        """Condemn files that are about to go: nothing may refer to them any more. Returns those condemned.

        A file that is known by now is spared. After this transaction no commit can enter the others, so
        they are removed without a lock. The layout grows, by which writers see that files may have gone.
        """
        unreferenced = frozenset(files) - self.known_paths()
        new = unreferenced - self._which_condemned(unreferenced)
        self._rows.insert(condemned, *({"file": _name_of(file)} for file in sorted(new)))
        if unreferenced:
            self.bump_layout(of_fragments=True)
        return unreferenced

    def pardon(self, files: Iterable[File]) -> None:
        """Lift the condemnation of files that are gone from their places."""
        self._rows.delete(condemned, self._condemned_rows(files))

    def condemned(self) -> tuple[File, ...]:
        """All files that are condemned and not pardoned: a collection is under way, or died."""
        return tuple(_file_of(row) for row in self._rows.all(condemned))

    def _which_condemned(self, files: Iterable[File]) -> frozenset[File]:
        return frozenset(_file_of(row) for row in self._condemned_rows(files))

    def _condemned_rows(self, files: Iterable[File]) -> list[Any]:
        query = _rows_of(condemned, "file")
        return [row for names in _names_of(files) for row in self._rows.ask(query, some=names)]

    def known_paths(self) -> frozenset[tuple[int, str]]:
        """(shard, path) of every file that the catalog refers to, dropped ones included.

        A shard that was added again where a removed one had been shares its files: they are
        known under both.
        """
        shards_at: dict[str, list[int]] = {}
        roots = self.shard_roots()
        for shard, root in roots.items():
            shards_at.setdefault(root, []).append(shard)
        paths = set()
        for table in (fragments, index_runs):
            for row in self._rows.all(table):
                if row.shard_id not in roots:
                    raise damaged(f"file {row.path} is at shard {row.shard_id}, which there never was")
                paths |= {(shard, row.path) for shard in shards_at[roots[row.shard_id]]}
        return frozenset(paths)

    # Statistics

    def statistics(self, of: Collection[int]) -> dict[int, FragmentStatistics]:
        """Return what is known of some fragments, by their ids.

        Old or empty ones are missing, and those alongside damage: they save work, and no row depends on them.
        """
        return self._as_far_as_whole(statistics, "fragment_id", of, unpack_statistics)

    def histograms(self, runs: Collection[int]) -> dict[int, KeyHistogram]:
        """Return the histograms of some runs, by their ids; damaged ones are missing, as in `statistics`."""
        return self._as_far_as_whole(histograms, "run_id", runs, unpack_histogram)

    def _as_far_as_whole(
        self, table: Table, column: str, of: Collection[int], unpack: Callable[[bytes], T]
    ) -> dict[int, T]:
        unpacked: dict[int, T] = {}
        try:
            for row in self._of(table, column, of):
                with decoding(f"the {table.name} of {getattr(row, column)}"):
                    unpacked[getattr(row, column)] = unpack(row.body)
        except StoreDamaged:
            pass  # what was unpacked before is sound
        except DBAPIError as error:
            if not self._can_pass(error):
                raise
        return unpacked

    def _forget_statistics(self, of: Collection[int], runs: Collection[int]) -> None:
        """Forget what is known of the values of some fragments and runs, and what of it is damaged."""
        for table, column, keys in ((statistics, "fragment_id", of), (histograms, "run_id", runs)):
            try:
                rows = list(self._of(table, column, keys))
            except (StoreDamaged, DBAPIError) as error:
                if isinstance(error, DBAPIError) and not self._can_pass(error):
                    raise
                self._rows.keep_sound(table)
                rows = list(self._of(table, column, keys))
            self._rows.delete(table, rows)

    def mend_statistics(self) -> bool:
        """Forget statistics and histograms that are damaged; false where none are. No row depends on them."""
        mended = [self._rows.keep_sound(table) for table in (statistics, histograms)]
        return any(mended)

    def _can_pass(self, error: DBAPIError) -> bool:
        """Return whether a transaction can go on after damage in its database; a server has ended it."""
        return self._sql.dialect.name == "sqlite" and is_damage(error, self._sql.engine)

    # Runs of indexes

    def without_runs(self, index: IndexInfo) -> tuple[Fragment, ...]:
        """Return the fragments that serve slots and lack runs of an index."""
        having = {run.fragment for run in self.runs(index.table) if run.index == index.id}
        return tuple(f for f in self.fragments(table=index.table) if f.id not in having)

    def add_runs(self, index: IndexInfo, fragment: int, runs: Iterable[StagedRun]) -> bool:
        """Give a fragment its runs.

        False, and nothing changed, when it is gone or has them already, or the runs were taken for garbage.
        """
        runs = list(runs)
        row = self._rows.one(fragments, missing_is_checked=False, id=fragment)
        if row is None or row.dropped_at is not None:
            return False
        r = index_runs.c
        if self._rows.select(index_runs, r.fragment_id == fragment, r.index_id == index.id, limit=1):
            return False
        if self._which_condemned((row.shard_id, run.path) for run in runs):
            return False
        return self._insert_runs(index.table, [(fragment, row.shard_id, run) for run in runs])


@lru_cache(maxsize=16)
def _rows_of(table: Table, column: str) -> RowQuery:
    """Return the rows whose column has one of `some` values."""
    return RowQuery(table, table.c[column].in_(bindparam("some", expanding=True)))


def ask_condemned(staged: Iterable[StagedFragment]) -> list[Question]:
    """Return the questions that `FragmentTx.add_fragments` asks."""
    query = _rows_of(condemned, "file").statement(raw=False)
    return [(query, {"some": names}) for names in _names_of(_files_of(staged))]


def ask_fragments(table: int, shards: Iterable[int]) -> list[Question]:
    """Return the questions for a table, its fragments at some shards, and what keeps their versions."""
    of_table = {"table_id": table}
    questions = [ask_sums(_MERGED, table), ask_group(tables, {"id": table}, None, "dropped_at")]
    questions += [ask_group(leases, of_table, None), ask_group(tags, of_table, None)]
    questions += [ask_group(indexes, of_table, "id")]
    return questions + [
        ask_group(fragments, of_table | {"shard_id": at}, "id", "dropped_at") for at in shards
    ]


def ask_for_merge(
    table: int,
    shards: Iterable[int],
    going: Sequence[Iterable[int]],
    staged: Iterable[StagedFragment],
    targets: Iterable[str] = (),
) -> list[Question]:
    """Return the questions of a merge's transaction: a server may be asked with its beginning.

    Args:
        table: whose fragments are merged.
        shards: where they are.
        going: ids of fragments that each merge takes, the first one first: they are likely to serve nothing
            any more. Once it has changed rows, others ask for theirs again.
        staged: what takes their places.
        targets: of steps of upkeep that end with it.
    """
    questions = [*ask_fragments(table, shards), ask_group(moves, {}, "started_at")]
    questions += [(SUMS_OF_KINDS, {"kinds": ["moves"]})]
    first, *others = map(sorted, going)
    columns = [(fragments, "id"), (index_runs, "fragment_id"), (statistics, "fragment_id")]
    for of, column, ids in [*((*by, first) for by in columns), *((*columns[1], ids) for ids in others)]:
        some = (ids[at : at + _AT_ONCE] for at in range(0, len(ids), _AT_ONCE))
        questions += [(_rows_of(of, column).statement(raw=False), {"some": each}) for each in some]
    for fragment in staged:
        questions += ask_condemned([fragment])
    for of in (upkeep_done, upkeep_steps):
        questions += [ask_group(of, {"target": target}, None) for target in targets]
    return questions


def _files_of(staged: Iterable[StagedFragment]) -> set[File]:
    return {(f.shard, path) for f in staged for path in (f.path, *(run.path for run in f.runs))}


def _names_of(files: Iterable[File]) -> Iterator[list[str]]:
    names = sorted({_name_of(file) for file in files})
    return (names[at : at + _AT_ONCE] for at in range(0, len(names), _AT_ONCE))


def _name_of(file: File) -> str:
    return f"{file[0]}/{file[1]}"


def _file_of(row: Any) -> File:
    shard, _, path = row.file.partition("/")
    with decoding("the list of condemned files"):
        return int(shard), path


@lru_cache(maxsize=1024)
def _fragment(row: Any) -> Fragment:
    return Fragment(
        id=row.id,
        table=row.table_id,
        shard=row.shard_id,
        slots=_slots(row),
        unique=bool(row.is_unique),
        min_commit=row.min_commit,
        max_commit=row.max_commit,
        slots_written=row.slots_written,
        **{name: getattr(row, name) for name in _FILE_COLUMNS},
    )


def _slots(row: Any) -> SlotSet:
    with decoding(f"the list of slots of fragment {row.id}"):
        return _parse_slots(row.slots)


# Fragments at one shard have nearly all the same slots, thousands of ranges where there are as many tablets.
_parse_slots = lru_cache(maxsize=64)(SlotSet.parse)
