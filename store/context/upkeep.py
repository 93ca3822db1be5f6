"""Work that follows commits, as an interface for the store."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from elasticscan.catalog import Tx
from elasticscan.metadata import StagedFragment


class Upkeep:
    """Work that follows commits; by itself there is none, because keepers do all of it.

    Attributes:
        mode: "auto" or "off".
        problem: why the last of it failed, if it did.
    """

    mode: str = "off"
    problem: str | None = None

    def pending(self, tx: Tx, table: int, staged: Collection[StagedFragment]) -> Sequence[tuple[int, int]]:
        """Return the sites, (table, shard), where a commit of some fragments leaves something to be done."""
        return ()

    def after_commit(self, pending: Sequence[tuple[int, int]], committed_bytes: int) -> None:
        """Do the work that is pending after a commit, as far as it is bounded."""

    def after_moves(self) -> None:
        """Do the work that follows moves of tablets."""
