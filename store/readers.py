"""Readers of a store's files, which are kept open for a while."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from elasticscan.metadata import Fragment, IndexInfo, IndexRun, TableInfo
from elasticscan.storage import BatchCache, Disk, FragmentReader, OpenFragment, RunReader
from elasticscan.store.lookups import LruCache


class Readers:
    """Opens fragments and index runs, at the disk of their shard."""

    def __init__(self, disk_of: Callable[[int], Disk]) -> None:
        self._disk_of, self._batches = disk_of, BatchCache()
        self._fragments: LruCache[Hashable, FragmentReader] = LruCache()
        self._runs: LruCache[tuple[int, str], RunReader] = LruCache()

    def opener(self, table: TableInfo) -> OpenFragment:
        """A function that opens fragments of a table for some columns."""

        def open_fragment(fragment: Fragment, columns: tuple[str, ...]) -> FragmentReader:
            def make() -> FragmentReader:
                disk, path = self._disk_of(fragment.shard), fragment.path
                label = f" (table {table.name!r}, slots {fragment.slots})"
                return FragmentReader(disk, path, columns, fragment.seal, table, self._batches, label)

            key = (fragment.shard, fragment.path, columns, table.definition, table.names_of)
            return self._fragments.get(key, make)

        return open_fragment

    def open_run(self, table: TableInfo, index: IndexInfo, shard: int, run: IndexRun) -> RunReader:
        """A reader of an index run."""
        disk = self._disk_of(shard)
        label = f" of index {index.name!r}, which can be dropped and made again (table {table.name!r}),"
        return self._runs.get(
            (shard, run.path), lambda: RunReader(disk, table, index, run, self._batches, label)
        )
