"""Small commits: their rows go into the log itself, and no file is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from elasticscan.base import limits
from elasticscan.base.limits import MEMORY_STORE_BYTES, MEMORY_TABLE_BYTES
from elasticscan.catalog import Tx, retry_interrupted
from elasticscan.metadata import IndexInfo, StagedFragment, TableInfo
from elasticscan.storage import StagedInMemory, check_entries, joined, pack_rows
from elasticscan.store.context import Context


@dataclass(slots=True)
class SmallCommit:
    """The rows of a commit that the log is to keep.

    Attributes:
        staged: these rows in memory.
        rows: as the log keeps them.
    """

    staged: StagedInMemory
    rows: bytes
    _checked: set[int] = field(default_factory=set)  # indexes that can take the rows

    def check_indexes(self, indexes: Iterable[IndexInfo]) -> bool:
        """Check that the rows can be in indexes, which a flush would find out too late.

        Returns whether there were any that were not checked before.

        Raises:
            InvalidKey: a row's key is too long for an index.
        """
        names = set(self.staged.table.schema.names)  # of another definition, they may be others
        unchecked = [index for index in indexes if index.id not in self._checked]
        unchecked = [index for index in unchecked if names.issuperset((*index.columns, *index.include))]
        for index in unchecked:
            check_entries(self.staged.table, index, self.staged.content)
            self._checked.add(index.id)
        return bool(unchecked)

    def fits(self, tx: Tx, table: TableInfo, indexes: Iterable[IndexInfo]) -> bool:
        """Return whether the log can keep the rows, as the transaction sees it that commits them."""
        now = tx.table_by_id(table.id) or table
        if now.definition != self.staged.table.definition or not has_room(tx, table.id, len(self.rows)):
            return False
        return all(index.id in self._checked for index in indexes)


def has_room(tx: Tx, table: int, more: int) -> bool:
    """Return whether a table, and the store, may have so many more bytes of rows in the log."""
    of_table, of_store = tx.memory_bytes(table)
    return of_table + more <= MEMORY_TABLE_BYTES and of_store + more <= MEMORY_STORE_BYTES


@retry_interrupted
def memory_bytes(context: Context, table: TableInfo) -> int:
    """Return how many bytes of rows may be staged in memory, for a small commit."""
    with context.catalog.reading() as tx:
        return limits.INLINE_BYTES if has_room(tx, table.id, 0) else 0


def small_commit(staged: Sequence[StagedFragment]) -> SmallCommit | None:
    """Return what was staged as a small commit; None if it has to be written to files."""
    parts = [part for part in staged if isinstance(part, StagedInMemory)]
    if not parts or len(parts) < len(staged) or sum(part.bytes for part in parts) > limits.INLINE_BYTES:
        return None
    if any(part.table.definition != parts[0].table.definition for part in parts):
        return None
    one = parts[0] if len(parts) == 1 else joined(parts)
    rows = pack_rows(one.content)
    return SmallCommit(one, rows) if len(rows) <= limits.INLINE_BYTES else None
