"""An open store in several processes: a forked child opens it again."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

Opened = TypeVar("Opened")


class PerProcess(Generic[Opened]):
    """The open stores behind one handle: one for each process that uses it.

    Connections, locks and caches of the parent are of no use to a forked child, so the first use of a handle
    there opens the store again.
    """

    def __init__(self, opened: Opened, reopen: Callable[[], Opened]) -> None:
        self._reopen, self._opened = reopen, {os.getpid(): opened}

    def get(self) -> Opened:
        """Return this process's open store; open it first if needed."""
        return self._opened.get(os.getpid()) or self._opened.setdefault(os.getpid(), self._reopen())

    def get_if_open(self) -> Opened | None:
        """Return the one of this process; None where it was not used here."""
        return self._opened.get(os.getpid())
