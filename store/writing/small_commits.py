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
        """Check that indexes can take the rows: after the commit, a flush could not refuse them.

        Returns whether there were any that were not checked before.

        Raises:
            InvalidKey: a row's key is too long for an index.
        """
        # One may name columns that this definition lacks; then `fits` sends the rows to files.
        names = set(self.staged.table.schema.names)
        unchecked = [
            index
            for index in indexes
            if index.id not in self._checked and names.issuperset((*index.columns, *index.include))
        ]
        for index in unchecked:
            check_entries(self.staged.table, index, self.staged.content)
            self._checked.add(index.id)
        return bool(unchecked)

    def fits(self, tx: Tx, table: TableInfo, indexes: Iterable[IndexInfo]) -> bool:
        """Return whether a transaction may put the rows into the log."""
        now = tx.state.info(table.id) or table
        if now.definition != self.staged.table.definition or not has_room(tx, table.id, len(self.rows)):
            return False
        return all(index.id in self._checked for index in indexes)


def has_room(tx: Tx, table: int, more: int) -> bool:
    """Return whether a table, and the store, may have so many more bytes of rows in the log."""
    size = {number: table.memory_bytes for number, table in tx.state.tables.items()}
    fits = size.get(table, 0) + more <= MEMORY_TABLE_BYTES
    return fits and sum(size.values()) + more <= MEMORY_STORE_BYTES


@retry_interrupted
def memory_bytes(context: Context, table: TableInfo, layout: int) -> int:
    """Return how large a write may be to be staged in memory; 0 if the log has no room.

    `layout` is that of a look of just now: whoever commits decides.
    """
    return limits.INLINE_BYTES if has_room(context.catalog.at(layout), table.id, 0) else 0


def joined_in_memory(staged: Sequence[StagedFragment]) -> list[StagedFragment]:
    """Return what was staged, with parts in memory that have the same columns as one."""
    files = [part for part in staged if not isinstance(part, StagedInMemory)]
    of_definitions: dict[int, list[StagedInMemory]] = {}
    for part in staged:
        if isinstance(part, StagedInMemory):
            of_definitions.setdefault(part.table.definition, []).append(part)
    return [*files, *(some[0] if len(some) == 1 else joined(some) for some in of_definitions.values())]


def small_commit(staged: Sequence[StagedFragment]) -> SmallCommit | None:
    """Return what was staged as a small commit; None if it has to be written to files."""
    match staged:
        case [StagedInMemory() as one] if len(rows := pack_rows(one.content)) <= limits.INLINE_BYTES:
            return SmallCommit(one, rows)
    return None
