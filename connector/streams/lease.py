"""Leases of streams with a name: unread commits are kept while it runs and for a week after."""

from __future__ import annotations

import logging
import math

from elasticscan.base.errors import StartAgain, TryAgain
from elasticscan.store import Store

RENEW_SECONDS = 60  # how often the catalog is written to
MOVED_SECONDS = 5  # the same after progress of the stream, which `status` shows

_log = logging.getLogger(__name__)


class StreamLease:
    """Holds the changes after a commit for one stream. Without a name it holds nothing.

    A lease only moves forward. It is some seconds behind the stream, and never ahead of it, so it never
    lets go of changes that the stream still needs.
    """

    def __init__(self, name: str | None, table: int) -> None:
        self._name, self._table = name, table
        self._at: int | None = None
        self._told: int | None = None
        self._told_at = -math.inf

    def reach(self, commit: int) -> None:
        """Note that no commit up to this one is needed any more; `keep` tells the catalog."""
        self._at = commit if self._at is None else max(self._at, commit)

    def keep(self, store: Store, at_once: bool = False) -> None:
        """Renew the lease, unless that was done a short while ago and not `at_once`."""
        if self._name is None or self._at is None:
            return
        now = store.context.clock.now()
        pause = RENEW_SECONDS if self._at == self._told else MOVED_SECONDS
        if not at_once and self._told_at <= now < self._told_at + pause:  # and the clock was not set back
            return
        self._told, self._told_at = self._at, now
        try:
            store.backend.changes.hold(self._table, self._name, self._at)
        except (TryAgain, StartAgain) as error:  # it is renewed long before it ends
            _log.warning("the lease of stream %r could not be renewed: %s", self._name, error)
