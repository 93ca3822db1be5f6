"""The contents of a store that is made again. Pure: values in, values out.

A whole catalog says which fragments make up the newest state, which files are gone, and has the rows that
lie in its log alone. Without one the files say what there was.

A file's manifest says whose it is and what was known when it was staged, and that is less than the
catalog knew. The rules by which files of one table become one state again:

- A file that a merge replaced (it lists them) counts no more for the merge's slots, if that is whole; nor
  does a merge all of whose sources another one replaced, too: it was never entered.
- Where a tablet left a shard, its rows stay in files there. They count no more for slots of which a file
  at another shard, of a later epoch, has all rows up to theirs: what was deleted since may be gone there.
  The copy with which the tablet came back, at the same shard, counts like them.
- History, which a merge or a move put into files of its own, is no part of the newest state.
- A write does not know its own commit. It is taken for the one after the newest commit that it knew, which is
  exact when writes came one after another. Copies know the commits of their rows.
- What an overwrite hid stays hidden.

What files cannot tell, `StorePlan.doubts` says. When files were changed tells nothing: a copy or a backup may
have given them other times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from elasticscan.catalog import StoreState
from elasticscan.metadata import FRAGMENT, INDEX_RUN, Fragment, IndexInfo, Manifest, Seal, TableInfo
from elasticscan.topology import SlotSet

OVERWRITE, MOVE = "overwrite", "move"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A whole file below one of the roots.

    Attributes:
        root: number of the root, from 1 on, in the order in which they were named.
    """

    root: int
    manifest: Manifest
    seal: Seal

    @property
    def newest(self) -> int:
        """The newest commit of its rows, as far as it knows."""
        return self.manifest.max_commit or self.manifest.after_commit + 1

    def fragment(self, slots: SlotSet, first: int, last: int) -> Fragment:
        """Return it as the reader of pages takes it, for some slots; its root stands in for its shard."""
        return Fragment(
            id=0,
            table=self.manifest.table,
            shard=self.root,
            path=self.manifest.path,
            slots=slots,
            rows=self.manifest.rows,
            bytes=self.seal.bytes,
            unique=self.manifest.unique,
            tombstones=self.manifest.tombstones,
            versioned=first < last,
            tail=self.seal.tail,
            digest=self.seal.digest,
            min_commit=first,
            max_commit=last,
        )


@dataclass(frozen=True, slots=True)
class TablePlan:
    """One table to be made again.

    Attributes:
        name: under which it is made.
        fragments: what its rows are in, oldest first; their shards are numbers of roots.
        floor: commits before this one were overwritten.
        info: its definition; None where only its files define the columns.
        files: of fragments that define them, the newest definition first.
    """

    name: str
    fragments: tuple[Fragment, ...]
    floor: int
    indexes: tuple[IndexInfo, ...]
    info: TableInfo | None = None
    files: tuple[FoundFile, ...] = ()


@dataclass(slots=True)
class StorePlan:
    """A whole store to be made again.

    Attributes:
        lost: what is known to be gone, as sentences.
        doubts: what could not be known, as sentences.
    """

    slots: int
    hash: str
    tables: list[TablePlan] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def plan_by_catalog(
    state: StoreState, rows: Mapping[int, Sequence[Fragment]], files: Mapping[str, int]
) -> StorePlan:
    """Sort the files that a catalog knows into tables.

    Args:
        state: of the catalog.
        rows: in its log, as fragments by the ids of tables.
        files: the numbers of roots by path.
    """
    plan = StorePlan(state.slots, state.hash)
    for info in state.infos():
        needed = [each for each in state.fragments(info.id) if each.superseded_at is None]
        here = [replace(each, shard=files[each.path]) for each in needed if each.path in files]
        gone = (each for each in needed if each.path not in files)
        plan.lost += (loss(info.name, each, f"its file {each.path} is gone") for each in gone)
        floor = max(state.overwrites(info.id), default=0)  # one by no rows left no file
        fragments = (*here, *rows[info.id])
        plan.tables.append(TablePlan(info.name, fragments, floor, state.indexes(info.id), info))
    return plan


def loss(table: str, fragment: Fragment, why: str, what: str = "") -> str:
    """Describe rows of a fragment that cannot be read: all, or those that `what` names."""
    return (
        f"table {table!r}: {what or f'all {fragment.rows:,} rows in slots {fragment.slots}'}, of commits "
        f"{fragment.min_commit} to {fragment.max_commit} (older versions of them may come back): {why}"
    )


def plan_by_files(files: Sequence[FoundFile], unreadable: Mapping[str, str]) -> StorePlan | None:
    """Sort the files of the store that has most of them into tables; None without any.

    Args:
        unreadable: why other files cannot be read, by path.
    """
    if not files:
        return None
    store = Counter(file.manifest.store for file in files).most_common(1)[0][0]
    own = sorted((file for file in files if file.manifest.store == store), key=_began_at)
    by_table: dict[int, list[FoundFile]] = {}
    for file in own:
        by_table.setdefault(file.manifest.table, []).append(file)
    names = {table: its[0].manifest.table_name for table, its in by_table.items()}
    # Of several tables that had one name the newest was not dropped.
    last = {names[table]: by_table[table] for table in sorted(by_table)}
    plan = StorePlan(own[-1].manifest.store_slots, own[-1].manifest.store_hash)
    plan.tables = [table for name, its in last.items() if (table := _plan_table(name, its)).fragments]
    known = max((fragment.max_commit for table in plan.tables for fragment in table.fragments), default=0)
    plan.doubts = [
        "files that are gone altogether are not noticed",
        "tables and indexes that were dropped shortly before may have come back",
        "writes count as committed, also a last one whose process died, and in the order in which they began",
        "rows that an overwrite by no rows, or by few that lay in the log, replaced may have come back",
        f"files know rows up to commit {known}: rows that were not flushed from the log are lost with it",
    ]
    if len(own) < len(files):
        plan.doubts.append(f"{len(files) - len(own)} files are of another store and were left out")
    of_table = {f"t{table}": repr(name) for table, name in names.items()}
    plan.lost = [
        f"table {of_table.get(path.split('/')[0], path)}: a file whose footer cannot be read, so its rows "
        f"and slots are not known: {why}"
        for path, why in sorted(unreadable.items())
    ]
    return plan


def _began_at(file: FoundFile) -> float:
    return file.manifest.began_at


def _plan_table(name: str, files: Sequence[FoundFile]) -> TablePlan:
    fragments = [file for file in files if file.manifest.kind == FRAGMENT]
    late = {id(merge) for merge in _never_entered([file for file in fragments if file.manifest.replaces])}
    entered = [file for file in fragments if id(file) not in late]
    floor, pieces = 0, list[tuple[Fragment, FoundFile]]()
    for file in entered:
        slots = _living_slots(file, entered)
        if file.manifest.superseded_at is None and slots:
            first = file.manifest.min_commit if file.manifest.max_commit else file.newest
            pieces.append((file.fragment(slots, first, file.newest), file))
            floor = max(floor, first if file.manifest.operation == OVERWRITE else 0)
    pieces.sort(key=lambda piece: piece[0].min_commit)
    # Of one definition, too, the newest file says how the table is compressed by now.
    defining = sorted((file for _, file in pieces), key=_definition_age, reverse=True)
    return TablePlan(name, tuple(f for f, _ in pieces), floor, _indexes(files), files=tuple(defining))


def _definition_age(file: FoundFile) -> tuple[int, int, float]:
    return file.manifest.definition, file.manifest.after_commit, file.manifest.began_at


def _never_entered(merges: Sequence[FoundFile]) -> list[FoundFile]:
    """Return merges whose sources another merge replaced too: that one came first, or this was a stage."""

    def is_later(other: FoundFile, merge: FoundFile) -> bool:
        mine, its = merge.manifest, other.manifest
        if mine.write == its.write or not mine.slots <= its.slots:
            return False  # what one merge wrote has the same sources
        own, theirs = {*mine.replaces}, {*its.replaces}
        return own < theirs or (own == theirs and (mine.began_at, mine.path) < (its.began_at, its.path))

    return [merge for merge in merges if any(is_later(other, merge) for other in merges)]


def _living_slots(file: FoundFile, entered: Iterable[FoundFile]) -> SlotSet:
    """Return the slots of a file without merged ones, or ones moved to where a file has all rows."""
    slots = file.manifest.slots
    for other in entered:
        if file.manifest.path in other.manifest.replaces:
            slots -= other.manifest.slots
        # A move wrote it where the tablet had not been; if the tablet was there once, it had left meanwhile.
        has_moved = other.root != file.root or other.manifest.operation == MOVE
        if other.manifest.complete and has_moved and file.newest <= other.manifest.max_commit:
            slots -= _later(other.manifest, file.manifest) & other.manifest.slots
    return slots


def _later(manifest: Manifest, than: Manifest) -> SlotSet:
    """Return the slots that one file saw in a later epoch than another did."""
    return SlotSet.of(
        (max(start, first), min(end, last))
        for start, end, epoch in manifest.epochs
        for first, last, before in than.epochs
        if epoch > before
    )


def _indexes(files: Iterable[FoundFile]) -> tuple[IndexInfo, ...]:
    """Return the definitions that runs carry; of several under one name, the one that was built last."""
    by_name: dict[str, IndexInfo] = {}
    for file in files:
        if file.manifest.kind == INDEX_RUN and file.manifest.index is not None:
            name, kind, columns, include, _ = file.manifest.index
            by_name[name] = IndexInfo(0, 0, name, kind, tuple(columns), tuple(include))
    return tuple(by_name[name] for name in sorted(by_name))
