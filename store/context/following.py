"""Work that follows commits, as an interface for the store."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext

from elasticscan.catalog import Tx
from elasticscan.metadata import StagedFragment

# Called in a commit's transaction with its table's id and its fragments: enters the steps that are due now.
Claim = Callable[[Tx, int, Collection[StagedFragment]], None]


class Upkeep:
    """Work that follows commits; by itself there is none, because keepers do all of it.

    Attributes:
        mode: "auto" or "off".
        problem: why the last of it failed, if it did.
    """

    mode: str = "off"
    problem: str | None = None

    def follow(self) -> AbstractContextManager[Claim]:
        """Around a commit: what is claimed in its transaction is done at the end of the block."""
        return nullcontext(lambda _tx, _table, _staged: None)

    def after_moves(self) -> None:
        """Do the work that follows moves of tablets."""
