"""Work that follows commits, as an interface for the store."""

from __future__ import annotations

from collections.abc import Collection

from elasticscan.catalog import StoreState
from elasticscan.metadata import StagedFragment


class Upkeep:
    """Work that follows commits; by itself there is none, because keepers do all of it.

    Attributes:
        mode: "auto" or "off".
        problem: why the last of it failed, if it did.
    """

    mode: str = "off"
    problem: str | None = None

    def after_commit(self, state: StoreState | None, table: int, staged: Collection[StagedFragment]) -> None:
        """Do what a commit of fragments to a table leaves to be done, as far as it is bounded.

        `state` is as of the commit; None where that was appended without a transaction.
        """

    def after_moves(self) -> None:
        """Do the work that follows moves of tablets."""
