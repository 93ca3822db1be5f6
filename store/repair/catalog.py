"""The catalog of a store that is being repaired, where all of it can be read.

Files cannot tell that another one is gone. The catalog can, and it knows which fragments make up the newest
state, and the rows that lie in its log alone. It is used only when it is whole, of the same store, and not
older than the files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from elasticscan.base.clock import SystemClock
from elasticscan.base.errors import ElasticScanError
from elasticscan.base.redaction import shown
from elasticscan.catalog import Catalog, StoreInfo, retry_interrupted
from elasticscan.metadata import MEMORY, Fragment
from elasticscan.store.context.memory import Memories
from elasticscan.store.repair.plan import FoundFile, StorePlan, TablePlan
from elasticscan.store.roots import Location


@dataclass(frozen=True, slots=True)
class KnownStore:
    """The contents of a whole catalog.

    Attributes:
        newest: its newest commit.
        roots: of its shards, by their names.
        shards: names, by id.
        tables: with the fragments that serve slots, in files and in the log; their shards are ids.
        commits: bounds of the commits of each fragment in a file, dropped ones included, by path; no path is
            ever given twice.
        paths: of all files that it knows, dropped ones included.
    """

    info: StoreInfo
    newest: int
    roots: Mapping[str, str]
    shards: Mapping[int, str]
    tables: tuple[TablePlan, ...]
    commits: Mapping[str, tuple[int, int]]
    paths: frozenset[str]

    def why_not_believed(self, files: Sequence[FoundFile], marks: Iterable[int]) -> str | None:
        """Return the reason why this is not the catalog of these files; None when it is.

        Args:
            marks: commits that are known at the shards.
        """
        own = [file.manifest for file in files if file.manifest.store == self.info.store_id]
        if files and not own:
            return "it is of another store than the files"
        seen = max([0, *marks, *(max(manifest.after_commit, manifest.max_commit) for manifest in own)])
        if seen > self.newest:
            return f"it is older than the files: they know commit {seen}, it ends with {self.newest}"
        return None

    def plan(
        self, files: Sequence[FoundFile], unreadable: Mapping[str, str], trashed: Collection[str]
    ) -> StorePlan:
        """Return the newest state, as far as its files are whole.

        Args:
            files, unreadable: the whole files, and why others cannot be read, by path.
            trashed: paths that files in the trash had before.
        """
        whole = {file.manifest.path: file for file in files if file.manifest.path in self.paths}
        live = {fragment.path for table in self.tables for fragment in table.fragments}
        dropped = [file for path, file in whole.items() if path not in live and path in self.commits]
        tables, lost, doubts = list[TablePlan](), list[str](), list[str]()
        for table in self.tables:
            fragments = list[Fragment]()
            for fragment in table.fragments:
                if fragment.shard == MEMORY:
                    fragments.append(fragment)
                elif fragment.path in whole:
                    fragments.append(replace(fragment, shard=whole[fragment.path].root))
                else:
                    why = f"its file {fragment.path} of shard {self.shards[fragment.shard]!r} is gone"
                    if fragment.path in trashed:
                        why += "; it lies in the trash: let `gc` put it back, and repair again"
                    lost.append(all_of(table.name, fragment, unreadable.get(fragment.path, why)))
                    fragments += self._older(fragment, dropped)
            tables.append(replace(table, fragments=tuple(fragments)))
        unknown = sum(file.manifest.path not in self.paths for file in files)
        if unknown:
            doubts.append(
                f"{unknown} files that the catalog does not know were left out, as of another store or of "
                "writes that were never committed; if it is an older copy, repair a copy of the shards alone"
            )
        return StorePlan(self.info.slots, self.info.hash, tuple(tables), tuple(lost), tuple(doubts))

    def _older(self, gone: Fragment, dropped: Iterable[FoundFile]) -> Iterator[Fragment]:
        """Yield dropped fragments with rows of one that is gone, or older versions of them."""
        for file in dropped:
            first, last = self.commits[file.manifest.path]
            slots = file.manifest.slots & gone.slots
            is_within = (
                file.manifest.table == gone.table and gone.min_commit <= first <= last <= gone.max_commit
            )
            if is_within and slots and file.manifest.superseded_at is None:
                yield file.fragment(slots, first, last)


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
        location.check_not_empty()
        catalog = Catalog(location.catalog_url, SystemClock(), shown(uri), read_only=True)
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
        for info in tx.tables():
            live = [f for f in tx.fragments(info.id) if f.superseded_at is None and f.slots]
            fragments = (*live, *memories.of(tx, info).fragments)
            floor = max(tx.overwrites(info.id), default=0)  # one by no rows left no file
            tables.append(TablePlan(info.name, fragments, floor, tx.indexes(info.id), info))
        return KnownStore(
            tx.info(),
            tx.identity().last_commit,
            {shard.name: location.root(shard.root) for shard in tx.shards()},
            {shard.id: shard.name for shard in tx.shards(removed=True)},
            tuple(tables),
            tx.commits_of_files(),
            frozenset(path for _, path in tx.known_paths()),
        )
