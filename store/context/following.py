"""Work that follows commits, as an interface for the store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from elasticscan.catalog import Tx
from elasticscan.metadata import StagedFragment

# Called in a commit's transaction with its table's id and its fragments: enters the steps that are due now.
Claim = Callable[[Tx, int, Collection[StagedFragment]], None]


class Upkeep(Protocol):
    """Work that follows commits.

    Attributes:
        mode: "auto" or "off".
        problem: why the last of it failed, if it did.
    """

    mode: str
    problem: str | None

    def follow(self) -> AbstractContextManager[Claim]:
        """Around a commit: what is claimed in its transaction is done at the end of the block."""

    def after_moves(self) -> None:
        """Do the work that follows moves of tablets."""


class NoUpkeep:
    """Nothing follows a commit: keepers do all of it."""

    mode = "off"
    problem: str | None = None

    @contextmanager
    def follow(self) -> Iterator[Claim]:
        yield lambda _tx, _table, _staged: None

    def after_moves(self) -> None:
        """Do nothing."""
