"""Cache of readers of a store's files, which stay open for a while."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from elasticscan.metadata import MEMORY, Fragment, IndexInfo, IndexRun, TableInfo
from elasticscan.storage import SMALL_FILE_BYTES, BatchCache, Disk, FragmentReader, OpenFragment, RunReader
from elasticscan.store.context.lookups import LruCache

# The memory of a reader is that of its objects, of each column, and of the file if that is held in memory. A
# scan opens all fragments of a table in turn: if the cache holds fewer than all, it never has a hit.
MOST_KEPT_BYTES, READER_BYTES, COLUMN_BYTES = 64 << 20, 18_000, 750
MOST_PREFETCHED = 16_384


class Readers:
    """Opens fragments and index runs, at the disk of their shard."""

    def __init__(self, disk_of: Callable[[int], Disk]) -> None:
        self._disk_of = disk_of
        self.release()

    def release(self) -> None:
        """Close all files and drop their cached batches; a running scan opens them again."""
        self._batches = BatchCache()
        self._fragments: LruCache[Hashable, FragmentReader] = LruCache(MOST_KEPT_BYTES)
        self._prefetched: set[tuple[int, str]] = set()  # files that were fetched before
        self._runs: LruCache[tuple[int, str], RunReader] = LruCache(MOST_KEPT_BYTES)

    def opener(self, table: TableInfo) -> OpenFragment:
        """Return a function that opens a fragment of a table to read some of its columns."""
        return lambda fragment, columns: self._open(table, fragment, columns)

    def prefetch(self, fragments: Sequence[Fragment]) -> None:
        """Fetch the footers of remote fragments in parallel, before they are opened."""
        new = [fragment for fragment in fragments if (fragment.shard, fragment.path) not in self._prefetched]
        if len(new) < 2:
            return
        if len(self._prefetched) > MOST_PREFETCHED:
            self._prefetched.clear()
        self._prefetched.update((fragment.shard, fragment.path) for fragment in new)
        for shard in {fragment.shard for fragment in new}:
            self._disk_of(shard).prefetch([fragment.path for fragment in new if fragment.shard == shard])

    def _open(self, table: TableInfo, fragment: Fragment, columns: tuple[str, ...]) -> FragmentReader:
        def make() -> FragmentReader:
            disk, path = self._disk_of(fragment.shard), fragment.path
            label = f" (table {table.name!r}, slots {fragment.slots})"
            return FragmentReader(disk, path, columns, fragment.seal, table, self._batches, label)

        key = (fragment.shard, fragment.path, columns, table.definition, table.names_of)
        is_held = fragment.shard == MEMORY or fragment.bytes <= SMALL_FILE_BYTES
        return self._fragments.get(key, make, _weight(fragment.bytes, len(table.schema), is_held))

    def compression_of(self, fragment: Fragment) -> str | None:
        """Return the compression of a fragment's file. Raises as `SealedFile`."""
        disk = self._disk_of(fragment.shard)
        return self._batches.open(disk, fragment.path, fragment.seal).manifest.compression

    def open_run(self, table: TableInfo, index: IndexInfo, shard: int, run: IndexRun) -> RunReader:
        """Return a reader of an index run."""
        disk = self._disk_of(shard)
        label = f" of index {index.name!r}, which can be dropped and made again (table {table.name!r}),"
        return self._runs.get(
            (shard, run.path),
            lambda: RunReader(disk, table, index, run, self._batches, label),
            _weight(run.seal.bytes, len(index.columns), run.seal.bytes <= SMALL_FILE_BYTES),
        )


def _weight(file_bytes: int, columns: int, is_held: bool) -> int:
    """Return the approximate memory of a reader: with the whole file, or with the keys of its batches."""
    return READER_BYTES + COLUMN_BYTES * columns + (file_bytes if is_held else file_bytes >> 10)
