"""The plan of a repair: which files have the newest rows of each table. Pure: values in, values out.

An intact catalog names the fragments of the newest state and the missing files, and has the rows that are
only in its log. Without a catalog, the manifests of the files decide.

A manifest names the file's owner and what the writer knew when it staged the file, which is less than the
catalog knew. The state of a table follows from the manifests by these rules:

- A merge lists the files that it replaced. If the merged file is intact, the replaced files do not count for
  its slots. A merge does not count either if another merge replaced all its sources: it was never committed.
- When a tablet leaves a shard, its rows stay in files there. They do not count for slots of which a file at
  another shard has a later epoch and all rows up to theirs: newer deletions may be missing in the old files.
  If the tablet came back, the file that the move copied there has the same effect.
- History, which a merge or a move wrote to separate files, is not part of the newest state.
- A write does not know its commit number. It is assumed to be the one after the newest commit that the writer
  knew, which is exact if no writes overlapped. Copies know the commits of their rows.
- Rows from before an overwrite stay hidden.

`StorePlan.doubts` lists what the files do not prove. Modification times are not used: a copy or a backup may
have changed them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from elasticscan.catalog import StoreState
from elasticscan.metadata import FRAGMENT, INDEX_RUN, Fragment, IndexInfo, Manifest, Seal, TableInfo
from elasticscan.topology import SlotSet

OVERWRITE, MOVE = "overwrite", "move"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """An intact file; `root` is the number of its root, from 1, in the order of the roots."""

    root: int
    manifest: Manifest
    seal: Seal

    @property
    def newest(self) -> int:
        """The newest commit of its rows; assumed for a write, see the module."""
        return self.manifest.max_commit or self.manifest.after_commit + 1

    def fragment(self, slots: SlotSet, first: int, last: int) -> Fragment:
        """Return the file as a fragment, for the reader of pages; the number of its root is the shard."""
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
    """The plan of one table.

    Attributes:
        fragments: the fragments with its rows, oldest first; their shards are numbers of roots.
        floor: the newest overwrite; rows of earlier commits do not count.
        info: its definition; None if only its files define the columns.
        files: the files that define the columns, the newest definition first.
    """

    name: str
    fragments: tuple[Fragment, ...]
    floor: int
    indexes: tuple[IndexInfo, ...]
    info: TableInfo | None = None
    files: tuple[FoundFile, ...] = ()


@dataclass(slots=True)
class StorePlan:
    """The plan of the new store.

    Attributes:
        lost: data that is certainly lost, as sentences.
        doubts: facts that the files do not prove, as sentences.
    """

    slots: int
    hash: str
    tables: list[TablePlan] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def plan_by_catalog(
    state: StoreState, rows: Mapping[int, Sequence[Fragment]], files: Mapping[str, int]
) -> StorePlan:
    """Plan the tables of a catalog; `rows` are those in its log, `files` the number of the root by path."""
    plan = StorePlan(state.slots, state.hash)
    for info in state.infos():
        needed = [each for each in state.fragments(info.id) if each.superseded_at is None]
        present = [replace(each, shard=files[each.path]) for each in needed if each.path in files]
        missing = (each for each in needed if each.path not in files)
        plan.lost += (loss(info.name, each, f"its file {each.path} is gone") for each in missing)
        floor = max(state.overwrites(info.id), default=0)  # an overwrite by no rows has no file
        fragments = (*present, *rows[info.id])
        plan.tables.append(TablePlan(info.name, fragments, floor, state.indexes(info.id), info))
    return plan


def loss(table: str, fragment: Fragment, why: str, what: str = "") -> str:
    """Describe rows of a fragment that cannot be read: all, or the part that `what` names."""
    return (
        f"table {table!r}: {what or f'all {fragment.rows:,} rows in slots {fragment.slots}'}, of commits "
        f"{fragment.min_commit} to {fragment.max_commit} (older versions of them may come back): {why}"
    )


def plan_by_files(files: Sequence[FoundFile], unreadable: Mapping[str, str]) -> StorePlan | None:
    """Plan the tables of the store to which most files belong; None if there are no files.

    `unreadable` has the reasons why other files cannot be read, by path.
    """
    if not files:
        return None
    store = Counter(file.manifest.store for file in files).most_common(1)[0][0]
    of_store = [file for file in files if file.manifest.store == store]
    of_store.sort(key=attrgetter("manifest.began_at"))
    by_table: dict[int, list[FoundFile]] = {}
    for file in of_store:
        by_table.setdefault(file.manifest.table, []).append(file)
    names = {table: parts[0].manifest.table_name for table, parts in by_table.items()}
    # If several tables had the same name, all but the newest were dropped.
    last = {names[table]: by_table[table] for table in sorted(by_table)}
    plan = StorePlan(of_store[-1].manifest.store_slots, of_store[-1].manifest.store_hash)
    plan.tables = [table for name, parts in last.items() if (table := _plan_table(name, parts)).fragments]
    known = max((fragment.max_commit for table in plan.tables for fragment in table.fragments), default=0)
    plan.doubts = [
        "files that are gone altogether are not noticed",
        "tables and indexes that were dropped shortly before may have come back",
        "writes count as committed, also a last one whose process died, and in the order in which they began",
        "rows that an overwrite by no rows, or by few that lay in the log, replaced may have come back",
        f"files know rows up to commit {known}: rows that were not flushed from the log are lost with it",
    ]
    if len(of_store) < len(files):
        plan.doubts.append(f"{len(files) - len(of_store)} files are of another store and were left out")
    of_table = {f"t{table}": repr(name) for table, name in names.items()}
    plan.lost = [
        f"table {of_table.get(path.split('/')[0], path)}: a file whose footer cannot be read, so its rows "
        f"and slots are not known: {why}"
        for path, why in sorted(unreadable.items())
    ]
    return plan


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
    # The newest file of the newest definition also has the newest compression.
    defining = sorted((file for _, file in pieces), key=_definition_age, reverse=True)
    return TablePlan(name, tuple(f for f, _ in pieces), floor, _indexes(files), files=tuple(defining))


def _definition_age(file: FoundFile) -> tuple[int, int, float]:
    return file.manifest.definition, file.manifest.after_commit, file.manifest.began_at


def _never_entered(merges: Sequence[FoundFile]) -> list[FoundFile]:
    """Return merges whose sources another merge replaced, too: it was committed in place of this one."""

    def is_later(other: Manifest, merge: Manifest) -> bool:
        if merge.write == other.write or not merge.slots <= other.slots:
            return False  # the files of one merge have the same sources
        sources, others = {*merge.replaces}, {*other.replaces}
        began, other_began = (merge.began_at, merge.path), (other.began_at, other.path)
        return sources < others or (sources == others and began < other_began)

    return [merge for merge in merges if any(is_later(other.manifest, merge.manifest) for other in merges)]


def _living_slots(file: FoundFile, entered: Iterable[FoundFile]) -> SlotSet:
    """Return the slots for which a file counts: not those merged, or moved with all rows to another file."""
    slots = file.manifest.slots
    for other in entered:
        if file.manifest.path in other.manifest.replaces:
            slots -= other.manifest.slots
        # A move writes to a shard without the tablet: an older file there is from before the tablet left.
        has_moved = other.root != file.root or other.manifest.operation == MOVE
        if other.manifest.complete and has_moved and file.newest <= other.manifest.max_commit:
            slots -= _later(other.manifest, file.manifest) & other.manifest.slots
    return slots


def _later(manifest: Manifest, than: Manifest) -> SlotSet:
    """Return the slots whose epoch was later for the first file than for the second one."""
    return SlotSet.of(
        (max(start, first), min(end, last))
        for start, end, epoch in manifest.epochs
        for first, last, before in than.epochs
        if epoch > before
    )


def _indexes(files: Iterable[FoundFile]) -> tuple[IndexInfo, ...]:
    """Return the definitions in the index runs; if several have the same name, the one built last."""
    by_name: dict[str, IndexInfo] = {}
    for file in files:
        if file.manifest.kind == INDEX_RUN and file.manifest.index is not None:
            name, kind, columns, include, _ = file.manifest.index
            by_name[name] = IndexInfo(0, 0, name, kind, tuple(columns), tuple(include))
    return tuple(by_name[name] for name in sorted(by_name))
