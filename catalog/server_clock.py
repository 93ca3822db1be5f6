"""The time of a catalog's server, for all who share it.

What ends with time (leases, retention, heartbeats) ends for every process by the same clock: where there is a
server, by its own. A machine whose clock is an hour ahead would else end what other scans read, since
an hour is no jump that a store disbelieves.

The server is asked when a connection to it is made; from then on the machine's monotonic clock counts, which
nobody sets. So no page and no commit waits for the time. A clock that was handed in counts itself.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Engine, event

from elasticscan.base.clock import Clock, SystemClock
from elasticscan.catalog.connections import is_postgres


class ServerClock(SystemClock):
    """A server's time, as of the newest connection made to it; the machine's before the first."""

    def __init__(self) -> None:
        self._ahead: float | None = None  # of the monotonic clock

    def now(self) -> float:
        ahead = self._ahead
        return super().now() if ahead is None else time.monotonic() + ahead

    def note(self, message: float, asked_at: float, answered_at: float) -> None:
        """Follow the server's answer, between two readings of the monotonic clock.

        The answer is as old as its way back, at most as the whole wait: it counts as given in the middle.
        """
        self._ahead = message - (asked_at + answered_at) / 2


def clock_of(engine: Engine, clock: Clock) -> Clock:
    """Return the clock by which things end in a catalog: its server's, in place of the machine's."""
    if type(clock) is not SystemClock or not is_postgres(engine):
        return clock
    servers = ServerClock()

    @event.listens_for(engine, "connect")
    def _ask(connection: Any, _record: Any) -> None:
        # Outside of a transaction, which the pool would find open.
        before, connection.autocommit = connection.autocommit, True
        with connection.cursor() as cursor:
            asked_at = time.monotonic()
            cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
            (message,) = cursor.fetchone()
            servers.note(message, asked_at, time.monotonic())
        connection.autocommit = before

    return servers
