"""Catalog transactions, part two: fragments, and the secondary indexes whose runs belong to them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, delete, insert, select, union, update

from elasticscan.base.errors import AlreadyExists, IndexNotFound, WriteConflict
from elasticscan.catalog.placement import PlacementTx, decoding
from elasticscan.catalog.tables import condemned, fragments, index_runs, indexes, shards, statistics
from elasticscan.topology import (
    Fragment,
    FragmentStatistics,
    IndexInfo,
    IndexRun,
    KeyHistogram,
    SlotSet,
    StagedFragment,
    StagedRun,
    unpack_histogram,
    unpack_statistics,
)

Item = TypeVar("Item")

_MOST_AT_ONCE = 500  # values in one condition; databases have limits of some thousands


class DroppedFile(NamedTuple):
    """A file that nothing refers to any more: of a fragment, or of a run of it."""

    shard: int
    path: str
    fragment: int
    run: int | None
    dropped_at: float


def _parts(items: Iterable[Item]) -> Iterator[list[Item]]:
    found = list(items)
    for start in range(0, len(found), _MOST_AT_ONCE):
        yield found[start : start + _MOST_AT_ONCE]


class FragmentTx(PlacementTx):
    """Fragments, their statistics, and the runs of secondary indexes."""

    def add_fragments(
        self, table: int, staged: Iterable[StagedFragment], min_commit: int, max_commit: int
    ) -> None:
        """Enter staged files.

        Raises:
            WriteConflict: garbage collection has condemned one of them.
        """
        staged = list(staged)
        files = {(f.shard, path) for f in staged for path in (f.path, *(run.path for run in f.runs))}
        gone = files & self._condemned(path for _, path in files)
        if gone:
            raise WriteConflict(
                "garbage was collected with a grace period shorter than this took, and took files that it "
                "needed; nothing was changed, try again",
                path=min(gone)[1],
            )
        for fragment in staged:
            inserted = self._sql.execute(
                insert(fragments).values(
                    table_id=table,
                    shard_id=fragment.shard,
                    path=fragment.path,
                    slots=str(fragment.slots),
                    slots_written=len(fragment.slots),
                    rows=fragment.rows,
                    bytes=fragment.bytes,
                    is_unique=fragment.unique,
                    tombstones=fragment.tombstones,
                    versioned=fragment.versioned,
                    tail=fragment.tail,
                    digest=fragment.digest,
                    min_commit=min_commit,
                    max_commit=max_commit,
                )
            ).inserted_primary_key
            assert inserted is not None
            if fragment.statistics:
                body = {"fragment_id": inserted[0], "body": fragment.statistics}
                self._sql.execute(insert(statistics).values(**body))
            if fragment.runs:
                self._insert_runs(inserted[0], fragment.runs)

    def fragments(self, table: int | None = None, shard: int | None = None) -> tuple[Fragment, ...]:
        """The fragments that serve slots now, oldest first."""
        f = fragments.c
        query = select(fragments).where(f.dropped_at.is_(None))
        if table is not None:
            query = query.where(f.table_id == table)
        if shard is not None:
            query = query.where(f.shard_id == shard)
        return tuple(_fragment(row) for row in self._sql.execute(query.order_by(f.id)))

    def strike_slots(self, shard: int, slots: SlotSet) -> None:
        """Slots that leave a shard: its fragments speak for them no longer."""
        for fragment in self.fragments(shard=shard):
            left = fragment.slots - slots
            if left != fragment.slots:
                self.set_fragment_slots(fragment.id, left)

    def set_fragment_slots(self, fragment_id: int, slots: SlotSet) -> None:
        """What a fragment speaks for from now on; one that speaks for nothing is dropped."""
        if slots:
            this = fragments.c.id == fragment_id
            self._sql.execute(update(fragments).where(this).values(slots=str(slots)))
        else:
            self._drop_where(fragments.c.id == fragment_id)

    def _drop_where(self, condition: ColumnElement[bool]) -> None:
        query = update(fragments).where(condition, fragments.c.dropped_at.is_(None))
        self._sql.execute(query.values(dropped_at=self.now))

    def dropped_files(self) -> tuple[DroppedFile, ...]:
        """The files of fragments and runs that were dropped, and not forgotten yet."""
        f, r = fragments.c, index_runs.c
        gone = select(f.id, f.shard_id, f.path, f.dropped_at).where(f.dropped_at.is_not(None))
        runs = select(r.id, f.id, f.shard_id, r.path, f.dropped_at, r.dropped_at).join(
            fragments, f.id == r.fragment_id
        )
        of_runs = self._sql.execute(runs.where(f.dropped_at.is_not(None) | r.dropped_at.is_not(None)))
        found = [
            DroppedFile(shard, path, fragment, None, at)
            for fragment, shard, path, at in self._sql.execute(gone)
        ]
        for run, fragment, shard, path, *times in of_runs:
            at = min(time for time in times if time is not None)
            found.append(DroppedFile(shard, path, fragment, run, at))
        return tuple(found)

    def forget_dropped(self, files: Iterable[DroppedFile]) -> None:
        """The catalog no longer knows files that are not there any more."""
        found = list(files)
        for part in _parts({file.run for file in found if file.run is not None}):
            self._sql.execute(delete(index_runs).where(index_runs.c.id.in_(part)))
        for part in _parts({file.fragment for file in found if file.run is None}):
            self._sql.execute(delete(index_runs).where(index_runs.c.fragment_id.in_(part)))
            self._sql.execute(delete(statistics).where(statistics.c.fragment_id.in_(part)))
            self._sql.execute(delete(fragments).where(fragments.c.id.in_(part)))

    def condemn(self, files: Iterable[tuple[int, str]]) -> frozenset[tuple[int, str]]:
        """Files that nothing may refer to any more, because they are about to go; those that it may not.

        A file that is known by now is spared. After this transaction no commit can enter the others, so
        they are removed without a lock.
        """
        wanted = frozenset(files) - self.known_paths()
        new = wanted - self._condemned(path for _, path in wanted)
        if new:
            rows = [{"shard_id": shard, "path": path} for shard, path in new]
            self._sql.execute(insert(condemned), rows)
        return wanted

    def pardon(self, files: Iterable[tuple[int, str]]) -> None:
        """Condemned files that are gone from where they were."""
        for shard, path in files:
            this = (condemned.c.shard_id == shard, condemned.c.path == path)
            self._sql.execute(delete(condemned).where(*this))

    def condemned(self) -> tuple[tuple[int, str], ...]:
        """All files that are condemned and not pardoned: a collection is under way, or died."""
        rows = self._sql.execute(select(condemned.c.shard_id, condemned.c.path))
        return tuple((row.shard_id, row.path) for row in rows)

    def _condemned(self, paths: Iterable[str]) -> frozenset[tuple[int, str]]:
        found = []
        for part in _parts(set(paths)):
            query = select(condemned.c.shard_id, condemned.c.path).where(condemned.c.path.in_(part))
            found += [(row.shard_id, row.path) for row in self._sql.execute(query)]
        return frozenset(found)

    def known_paths(self) -> frozenset[tuple[int, str]]:
        """(shard, path) of every file that the catalog refers to, dropped ones included.

        A shard that was added again where a removed one had been shares its files: they are
        known under both.
        """
        theirs, same_root = shards.alias(), shards.alias()

        def known(query: Any) -> Any:
            at_root = query.join(theirs, theirs.c.id == fragments.c.shard_id)
            return at_root.join(same_root, same_root.c.root == theirs.c.root)

        rows = known(select(same_root.c.id, fragments.c.path).select_from(fragments))
        runs = select(same_root.c.id, index_runs.c.path).select_from(index_runs)
        runs = known(runs.join(fragments, fragments.c.id == index_runs.c.fragment_id))
        return frozenset((row.id, row.path) for row in self._sql.execute(union(rows, runs)))

    # Statistics

    def statistics(self, table: int) -> dict[int, FragmentStatistics]:
        """What is known of a table's fragments, by their ids; old or empty ones are missing."""
        f = fragments.c
        query = select(statistics).join(fragments, f.id == statistics.c.fragment_id)
        found = {}
        for row in self._sql.execute(query.where(f.table_id == table, f.dropped_at.is_(None))):
            with decoding(f"the statistics of fragment {row.fragment_id}"):
                found[row.fragment_id] = unpack_statistics(row.body)
        return found

    # Indexes

    def create_index(self, info: IndexInfo) -> IndexInfo:
        """Enter an index that has no runs yet; commits made from now on bring theirs."""
        if any(index.name == info.name for index in self.indexes(info.table)):
            raise AlreadyExists(f"the table already has an index {info.name!r}", index=info.name)
        row = {"table_id": info.table, "name": info.name, "kind": info.kind, "created_at": self.now}
        lists = {"columns": json.dumps(info.columns), "include": json.dumps(info.include)}
        self._sql.execute(insert(indexes).values(**row, **lists, ready=False))
        self.bump_layout()
        return self.index(info.table, info.name)

    def indexes(self, table: int | None = None) -> tuple[IndexInfo, ...]:
        query = select(indexes).where(indexes.c.dropped_at.is_(None)).order_by(indexes.c.id)
        if table is not None:
            query = query.where(indexes.c.table_id == table)
        return tuple(_index(row) for row in self._sql.execute(query))

    def index(self, table: int, name: str) -> IndexInfo:
        known = self.indexes(table)
        for index in known:
            if index.name == name:
                return index
        names = ", ".join(index.name for index in known) or "none"
        raise IndexNotFound(f"the table has no index {name!r}; it has {names}", index=name)

    def set_index_ready(self, index: int) -> None:
        """Scans may use the index from now on."""
        self._sql.execute(update(indexes).where(indexes.c.id == index).values(ready=True))
        self.bump_layout()

    def drop_indexes(self, table: int, name: str | None = None) -> None:
        """Drop one index of a table, or all of them."""
        for index in self.indexes(table) if name is None else [self.index(table, name)]:
            self._sql.execute(update(indexes).where(indexes.c.id == index.id).values(dropped_at=self.now))
            theirs = update(index_runs).where(index_runs.c.index_id == index.id)
            self._sql.execute(theirs.values(dropped_at=self.now))
        self.bump_layout()

    def runs(self, table: int) -> tuple[IndexRun, ...]:
        """The runs of a table's fragments that serve slots now."""
        r, f = index_runs.c, fragments.c
        query = select(r.id, r.index_id, r.fragment_id, r.path, r.rows, r.bytes, r.tail, r.digest)
        query = query.join(fragments, f.id == r.fragment_id)
        query = query.where(f.table_id == table, f.dropped_at.is_(None), r.dropped_at.is_(None))
        return tuple(IndexRun(*row) for row in self._sql.execute(query.order_by(r.id)))

    def histograms(self, table: int) -> dict[int, list[KeyHistogram]]:
        """The histograms of all runs of a table, by the index's id."""
        r, f = index_runs.c, fragments.c
        query = select(r.index_id, r.histogram).join(fragments, f.id == r.fragment_id)
        query = query.where(f.table_id == table, f.dropped_at.is_(None), r.dropped_at.is_(None))
        found: dict[int, list[KeyHistogram]] = {}
        for row in self._sql.execute(query):
            with decoding(f"a histogram of index {row.index_id}"):
                found.setdefault(row.index_id, []).append(unpack_histogram(row.histogram))
        return found

    def without_runs(self, index: IndexInfo) -> tuple[Fragment, ...]:
        """The fragments that serve slots and lack runs of an index."""
        having = {run.fragment for run in self.runs(index.table) if run.index == index.id}
        return tuple(f for f in self.fragments(table=index.table) if f.id not in having)

    def add_runs(self, index: IndexInfo, fragment: int, runs: Iterable[StagedRun]) -> bool:
        """Give a fragment its runs.

        False, and nothing changed, when it is gone or has them already, or the runs were taken for garbage.
        """
        runs = list(runs)
        live = select(fragments.c.id).where(fragments.c.id == fragment, fragments.c.dropped_at.is_(None))
        r = index_runs.c
        having = select(r.id).where(r.fragment_id == fragment, r.index_id == index.id)
        if not self._sql.execute(live).first() or self._sql.execute(having).first():
            return False
        if self._condemned(run.path for run in runs):
            return False
        return self._insert_runs(fragment, runs)

    def _insert_runs(self, fragment: int, runs: Iterable[StagedRun]) -> bool:
        """Runs of an index that was dropped meanwhile stay out; false if any did."""
        known = set(self._sql.execute(select(indexes.c.id).where(indexes.c.dropped_at.is_(None))).scalars())
        wanted = list(runs)
        for run in wanted:
            if run.index not in known:
                continue
            self._sql.execute(
                insert(index_runs).values(
                    index_id=run.index,
                    fragment_id=fragment,
                    path=run.path,
                    rows=run.rows,
                    bytes=run.bytes,
                    tail=run.tail,
                    digest=run.digest,
                    histogram=run.histogram,
                )
            )
        return all(run.index in known for run in wanted)


def _index(row: Any) -> IndexInfo:
    with decoding(f"index {row.name!r}"):
        columns, include = tuple(json.loads(row.columns)), tuple(json.loads(row.include))
    return IndexInfo(row.id, row.table_id, row.name, row.kind, columns, include, bool(row.ready))


def _fragment(row: Any) -> Fragment:
    return Fragment(
        id=row.id,
        table=row.table_id,
        shard=row.shard_id,
        path=row.path,
        slots=_slots(row),
        rows=row.rows,
        bytes=row.bytes,
        unique=bool(row.is_unique),
        tombstones=row.tombstones,
        versioned=bool(row.versioned),
        tail=row.tail,
        digest=row.digest,
        min_commit=row.min_commit,
        max_commit=row.max_commit,
        slots_written=row.slots_written,
    )


def _slots(row: Any) -> SlotSet:
    with decoding(f"the list of slots of fragment {row.id}"):
        return SlotSet.parse(row.slots)
