"""The catalog of a store that is being repaired, where all of it can be read.

Files cannot tell that another one is gone. The catalog can, and it knows which fragments make up the newest
state, and the rows that lie in its log alone. It is used only when it is whole, of the same store, and not
older than the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from elasticscan.base.clock import SystemClock
from elasticscan.base.errors import ElasticScanError
from elasticscan.base.redaction import shown
from elasticscan.catalog import Catalog, StoreInfo, open_catalog, retry_interrupted
from elasticscan.metadata import MEMORY, Fragment
from elasticscan.storage import Disk, newest_commit_of
from elasticscan.store.context.memory import Memories
from elasticscan.store.repair.plan import StorePlan, TablePlan
from elasticscan.store.roots import Location


@dataclass(frozen=True, slots=True)
class KnownStore:
    """The contents of a whole catalog.

    Attributes:
        newest: its newest commit.
        roots: of its shards, by their names.
        tables: with the fragments that serve slots, in files and in the log; their shards are ids.
        paths: of all files that it knows, dropped ones included; no path is ever given twice.
    """

    info: StoreInfo
    newest: int
    roots: Mapping[str, str]
    tables: tuple[TablePlan, ...]
    paths: frozenset[str]

    def plan(
        self, files: Mapping[str, int], disks: Mapping[int, Disk], marks: Iterable[int]
    ) -> StorePlan | str:
        """Return the newest state, or the reason why this is not the catalog of these files.

        Args:
            files: the numbers of the roots where files are, by path.
            disks: of the roots, by number.
            marks: commits that are known at the roots.
        """
        unknown = files.keys() - self.paths
        if files and len(unknown) == len(files):
            return "it knows none of the files"
        found = newest_commit_of(self.info.store_id, ((disks[files[path]], path) for path in unknown))
        seen = max([found, *marks])
        if seen > self.newest:
            return f"it is older than the files: they know commit {seen}, it ends with {self.newest}"
        tables, lost, doubts = list[TablePlan](), list[str](), list[str]()
        for table in self.tables:
            fragments = list[Fragment]()
            for fragment in table.fragments:
                if fragment.shard == MEMORY:
                    fragments.append(fragment)
                elif fragment.path in files:
                    fragments.append(replace(fragment, shard=files[fragment.path]))
                else:
                    lost.append(all_of(table.name, fragment, f"its file {fragment.path} is gone"))
            tables.append(replace(table, fragments=tuple(fragments)))
        if unknown:
            doubts.append(
                f"{len(unknown)} files that the catalog does not know were left out, as of another store or "
                "of writes that were never committed; if it is an older copy, repair the shards alone"
            )
        return StorePlan(self.info.slots, self.info.hash, tuple(tables), tuple(lost), tuple(doubts))


def all_of(table: str, fragment: Fragment, why: str) -> str:
    """Describe a fragment of which no row can be read."""
    return loss(table, fragment, f"all {fragment.rows:,} rows in slots {fragment.slots}", why)


def loss(table: str, fragment: Fragment, what: str, why: str) -> str:
    """Describe rows of a fragment that cannot be read."""
    return (
        f"table {table!r}: {what}, of commits {fragment.min_commit} to {fragment.max_commit} "
        f"(older versions of them may come back): {why}"
    )


def ask_catalog(uri: str | Path) -> KnownStore | str:
    """Return the contents of a store's catalog, or the reason why it cannot be read. Changes nothing."""
    location = Location.of(uri)
    try:
        if not location.exists():
            return "there is none"
        catalog = open_catalog(location.catalog_url, SystemClock(), shown(uri), read_only=True)
        try:
            catalog.check_whole()
            return _read(catalog, location)
        finally:
            catalog.close()
    except ElasticScanError as error:
        return error.message


@retry_interrupted
def _read(catalog: Catalog, location: Location) -> KnownStore:
    memories = Memories()
    with catalog.reading() as tx:
        tables = []
        for info in tx.state.infos():
            live = [f for f in tx.state.fragments(info.id) if f.superseded_at is None and f.slots]
            fragments = (*live, *memories.of(tx, info).fragments)
            floor = max(tx.state.overwrites(info.id), default=0)  # one by no rows left no file
            tables.append(TablePlan(info.name, fragments, floor, tx.state.indexes(info.id), info))
        return KnownStore(
            tx.info(),
            tx.identity().last_commit,
            {shard.name: location.root(shard.root) for shard in tx.state.shards.values()},
            tuple(tables),
            frozenset(path for _, path in tx.state.known_paths()),
        )
