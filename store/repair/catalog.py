"""The catalog of a store that is being repaired, where all of it can be read.

Files cannot tell that another one is gone. The catalog can, and it knows the commits of writes, which
tables were dropped, and which files were never committed. It is used only when it is whole, of the same
store, and not older than the files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from elasticscan.base.clock import SystemClock
from elasticscan.base.errors import ElasticScanError
from elasticscan.base.redaction import shown
from elasticscan.catalog import Catalog
from elasticscan.metadata import Fragment, IndexInfo, TableInfo
from elasticscan.storage import Disk
from elasticscan.store.repair.plan import FoundFile, TablePlan
from elasticscan.store.roots import Location
from elasticscan.store.roots.markers import read_mark


@dataclass(frozen=True, slots=True)
class KnownStore:
    """The contents of a whole catalog.

    Attributes:
        newest: its newest commit.
        roots: of its shards, by their names.
        tables: not dropped, by id.
        live: fragments of these that serve slots, by path; no path is ever given twice.
        shards: names, by id.
        commits: bounds of each fragment's commits, dropped ones included, by path.
        paths: of all files that it knows, dropped ones included.
        floors: the newest commit of each table that replaced all rows, by table; one by no rows left no file.
    """

    store: str
    newest: int
    roots: Mapping[str, str]
    tables: Mapping[int, TableInfo]
    live: Mapping[str, Fragment]
    shards: Mapping[int, str]
    commits: Mapping[str, tuple[int, int]]
    paths: frozenset[str]
    indexes: Mapping[int, tuple[IndexInfo, ...]]
    floors: Mapping[int, int]

    def lost(self, whole: Collection[str], unreadable: Mapping[str, str]) -> Iterator[str]:
        """Describe the fragments that have no whole file."""
        for path, fragment in sorted(self.live.items(), key=lambda item: item[1].id):
            if path not in whole:
                gone = f"its file {path} of shard {self.shards.get(fragment.shard)!r} is gone"
                yield (
                    f"table {self.tables[fragment.table].name!r}: all {fragment.rows:,} rows in "
                    f"slots {fragment.slots}, of commits {fragment.min_commit} to {fragment.max_commit} "
                    f"(older versions of them may come back): {unreadable.get(path, gone)}"
                )

    def complete(self, plan: TablePlan) -> TablePlan:
        """Return the plan with what files do not tell: the definition, and an overwrite by no rows."""
        floor = max(plan.floor, self.floors.get(plan.table, 0))
        return replace(plan, definition=self.tables.get(plan.table), floor=floor)

    def why_not_believed(self, files: Iterable[FoundFile], disks: Iterable[Disk]) -> str | None:
        """Return the reason why this is not the catalog of these files; None when it is."""
        own = [file.manifest for file in files if file.manifest.store == self.store]
        if not own:
            return "it is of another store than the files"
        seen = [max(manifest.after_commit, manifest.max_commit) for manifest in own]
        seen += [mark.commit for mark in map(read_mark, disks) if mark is not None]
        if max(seen) > self.newest:
            return f"it is older than the files: they know commit {max(seen)}, it ends with {self.newest}"
        return None

    def sift(self, files: Iterable[FoundFile], doubts: list[str]) -> Iterator[FoundFile]:
        """Yield the files of tables that are there and of committed writes, with the commits of these."""
        late = 0
        for file in files:
            manifest = file.manifest
            if manifest.store != self.store:
                yield file
            elif manifest.table in self.tables and manifest.path in self.paths:
                commits = self.commits.get(manifest.path)
                if commits is not None and not manifest.max_commit:
                    manifest = replace(manifest, min_commit=commits[0], max_commit=commits[1])
                yield replace(file, manifest=manifest)
            else:
                late += manifest.path not in self.paths and manifest.after_commit >= self.newest
        if late:
            doubts.append(
                f"{late} files of writes that the catalog does not know, begun after its newest commit, were "
                "taken as never committed; if the catalog is an older copy, repair a copy of the shards alone"
            )


def ask_catalog(uri: str | Path) -> KnownStore | str:
    """Return the contents of a store's catalog, or the reason why it cannot be read. Changes nothing."""
    location = Location.of(uri)
    try:
        if not location.exists():
            return "there is none"
        location.check_not_empty()
        catalog = Catalog(location.catalog_url, SystemClock(), shown(uri), read_only=True)
        try:
            return _read(catalog, location)
        finally:
            catalog.close()
    except ElasticScanError as error:
        return error.message


def _read(catalog: Catalog, location: Location) -> KnownStore:
    catalog.check_whole()
    with catalog.reading() as tx:
        me, every = tx.identity(), tx.shards(removed=True)
        tables = {table.id: table for table in tx.tables()}
        indexes: dict[int, tuple[IndexInfo, ...]] = {}
        for index in tx.indexes():
            indexes[index.table] = (*indexes.get(index.table, ()), index)
        return KnownStore(
            me.store_id,
            me.last_commit,
            {shard.name: location.root(shard.root) for shard in tx.shards()},
            tables,
            {fragment.path: fragment for fragment in tx.fragments() if fragment.table in tables},
            {shard.id: shard.name for shard in every},
            tx.commits_of_files(),
            frozenset(path for _, path in tx.known_paths()),
            indexes,
            {table: max(tx.overwrites(table), default=0) for table in tables},
        )
