"""The contents of a store, reconstructed from its files alone. Pure: values in, values out.

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

What files cannot tell, `TablePlan.doubts` says: the order of writes that began after the same
commit, and that a write whose process died before it committed looks like any other. When files were
changed tells nothing: a copy or a backup may have given them other times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from elasticscan.metadata import FRAGMENT, INDEX_RUN, IndexInfo, Manifest, Seal, TableInfo
from elasticscan.topology import SlotSet

OVERWRITE, MOVE = "overwrite", "move"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A whole file below one of the roots.

    Attributes:
        root: number of the root, in the order in which they were named.
    """

    root: int
    manifest: Manifest
    seal: Seal


@dataclass(frozen=True, slots=True)
class PlannedPiece:
    """A fragment, the slots that it counts for, and the commits of its rows."""

    file: FoundFile
    slots: SlotSet
    min_commit: int
    max_commit: int


@dataclass(frozen=True, slots=True)
class TablePlan:
    """One table to be made again.

    Attributes:
        name: under which it is made; not its own where another table took that.
        pieces: what its rows are in, oldest first.
        floor: commits before this one were overwritten.
        doubts: what the files could not tell, as sentences.
        definition: as a catalog has it that is believed; None where files alone say what the columns are.
    """

    name: str
    pieces: tuple[PlannedPiece, ...]
    floor: int
    indexes: tuple[IndexInfo, ...]
    doubts: tuple[str, ...]
    definition: TableInfo | None = None

    @property
    def table(self) -> int:
        """The table's id in the damaged store."""
        return self.pieces[0].file.manifest.table


@dataclass(frozen=True, slots=True)
class StorePlan:
    """A whole store to be made again, and the files of other stores, which stay out."""

    store: str
    slots: int
    hash: str
    tables: tuple[TablePlan, ...]
    foreign: tuple[FoundFile, ...]


def plan_repair(
    files: Iterable[FoundFile],
    store: str | None = None,
    indexes: Mapping[int, tuple[IndexInfo, ...]] | None = None,
) -> StorePlan | None:
    """Sort files into tables.

    Args:
        files: all that are whole.
        store: the id of the one that is wanted; by default that of most files.
        indexes: by table, where they are known; by default those that files define.

    Returns:
        None when there is no file of the store.
    """
    whole = list(files)
    counts = Counter(file.manifest.store for file in whole)
    store_id = store or (counts.most_common(1)[0][0] if counts else None)
    own = [file for file in whole if file.manifest.store == store_id]
    if not own or store_id is None:
        return None
    by_table: dict[int, list[FoundFile]] = {}
    for file in own:
        by_table.setdefault(file.manifest.table, []).append(file)
    newest = max(own, key=lambda file: file.manifest.began_at).manifest
    names = _names(by_table)
    plans = (
        _plan_table(
            names[table],
            by_table[table],
            _indexes(by_table[table]) if indexes is None else indexes.get(table, ()),
        )
        for table in sorted(by_table)
    )
    foreign = tuple(file for file in whole if file.manifest.store != store_id)
    tables = tuple(plan for plan in plans if plan.pieces)
    return StorePlan(store_id, newest.store_slots, newest.store_hash, tables, foreign)


def _names(by_table: Mapping[int, Sequence[FoundFile]]) -> dict[int, str]:
    """A name for each table. Of several that had one name, the newest keeps it."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    for table in sorted(by_table, reverse=True):
        name = by_table[table][0].manifest.table_name
        names[table] = name if name not in taken else f"{name[:50]}_{table}"
        taken.add(names[table])
    return names


def _plan_table(name: str, files: Sequence[FoundFile], indexes: tuple[IndexInfo, ...]) -> TablePlan:
    fragments = [file for file in files if file.manifest.kind == FRAGMENT]
    merges = [file for file in fragments if file.manifest.replaces]
    late = _never_entered(merges)
    merges = [file for file in merges if (file.root, file.manifest.path) not in late]
    left = [file for file in fragments if (file.root, file.manifest.path) not in late]
    complete = [file for file in left if file.manifest.complete]
    left = [file for file in left if file.manifest.superseded_at is None]
    pieces = [_piece(file, _living_slots(file, complete, merges)) for file in left]
    pieces = sorted((p for p in pieces if p.slots), key=lambda p: (p.min_commit, p.file.manifest.began_at))
    floor = max((p.min_commit for p in pieces if p.file.manifest.operation == OVERWRITE), default=0)
    doubts = [*_same_name(name, files), *_order_doubts(name, pieces), *_last_writes(name, pieces)]
    return TablePlan(name, tuple(pieces), floor, indexes, tuple(doubts))


def _never_entered(merges: Sequence[FoundFile]) -> set[tuple[int, str]]:
    """The merges all of whose sources another one replaced, too: that one came first, or this was a stage."""
    sources = {id(m): {(m.root, path) for path in m.manifest.replaces} for m in merges}

    def is_later(other: FoundFile, merge: FoundFile) -> bool:
        own, theirs = sources[id(merge)], sources[id(other)]
        if merge.manifest.write == other.manifest.write or not merge.manifest.slots <= other.manifest.slots:
            return False  # what one merge wrote has the same sources
        ages = [(file.manifest.began_at, file.manifest.path) for file in (merge, other)]
        return own < theirs or (own == theirs and ages[0] < ages[1])

    return {(merge.root, merge.manifest.path) for merge in merges if any(is_later(m, merge) for m in merges)}


def _piece(file: FoundFile, slots: SlotSet) -> PlannedPiece:
    manifest = file.manifest
    if manifest.max_commit:
        return PlannedPiece(file, slots, manifest.min_commit, manifest.max_commit)
    commit = _newest(manifest)
    return PlannedPiece(file, slots, commit, commit)


def _newest(manifest: Manifest) -> int:
    """The newest commit of a file's rows, as far as it knows."""
    return manifest.max_commit or manifest.after_commit + 1


def _living_slots(file: FoundFile, complete: Iterable[FoundFile], merges: Iterable[FoundFile]) -> SlotSet:
    """The slots of a file, without those that were merged, or moved on to where a file has all rows."""
    slots = file.manifest.slots
    for merge in merges:
        if merge.root == file.root and file.manifest.path in merge.manifest.replaces:
            slots -= merge.manifest.slots
    for other in complete:
        # A move wrote it where the tablet had not been; if the tablet was there once, it had left meanwhile.
        has_moved = other.root != file.root or other.manifest.operation == MOVE
        if has_moved and _newest(file.manifest) <= other.manifest.max_commit:
            slots -= _later(other.manifest, file.manifest) & other.manifest.slots
    return slots


def _later(manifest: Manifest, than: Manifest) -> SlotSet:
    """The slots that one file saw in a later epoch than another did."""
    return SlotSet.of(
        (max(start, first), min(end, last))
        for start, end, epoch in manifest.epochs
        for first, last, before in than.epochs
        if epoch > before
    )


def _indexes(files: Iterable[FoundFile]) -> tuple[IndexInfo, ...]:
    """The definitions that runs carry; of several under one name, the one that was built last."""
    by_name: dict[str, IndexInfo] = {}
    runs = [file.manifest for file in files if file.manifest.kind == INDEX_RUN]
    for manifest in sorted(runs, key=lambda m: m.began_at):
        if manifest.index is not None:
            name, kind, columns, include, _ = manifest.index
            by_name[name] = IndexInfo(0, 0, name, kind, tuple(columns), tuple(include))
    return tuple(by_name[name] for name in sorted(by_name))


def _same_name(name: str, files: Sequence[FoundFile]) -> list[str]:
    own = files[0].manifest.table_name
    if own == name:
        return []
    return [f"table {own!r} was dropped and made again; the older one comes back as {name!r}"]


def _order_doubts(name: str, pieces: Sequence[PlannedPiece]) -> list[str]:
    """Doubts about writes that began after the same commit: no file says which was committed first."""
    began: dict[str, tuple[float, int]] = {}
    for piece in pieces:
        manifest = piece.file.manifest
        if not manifest.max_commit:
            began[manifest.write] = (manifest.began_at, piece.min_commit)
    ordered = sorted(began, key=began.__getitem__)
    beside = sum(began[later][1] <= began[earlier][1] for earlier, later in pairwise(ordered))
    if not beside:
        return []
    doubt = (
        f"{beside} writes ran alongside others, or were never committed; of rows that two of them wrote, the "
    )
    return [f"table {name!r}: {doubt}one that began later was taken"]


def _last_writes(name: str, pieces: Sequence[PlannedPiece]) -> list[str]:
    """Doubts about last writes: no file was staged after them, so none proves their commit."""
    committed = max((piece.file.manifest.after_commit for piece in pieces), default=0)
    last = {
        p.file.manifest.write for p in pieces if not p.file.manifest.max_commit and p.min_commit > committed
    }
    if not last:
        return []
    return [f"table {name!r}: its last write was taken as committed; if its process died before, it was not"]
