"""One reader of a store for all viewers.

    viewer ─┐
    viewer ─┼── newest documents ◀── a refresh each second at most ◀── the store
    viewer ─┘

Viewers get the newest documents, not each: one that is slow leaves some out, and nothing piles up. The reader
works while there are viewers; after the last has gone it closes the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from elasticscan.base.errors import ElasticScanError
from elasticscan.base.json_text import json_text
from elasticscan.base.redaction import shown
from elasticscan.store import Store

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
SHARE_OF_TIME = 0.1  # upper bound of the time for refreshes
HEARTBEAT_SECONDS, STOP_SECONDS = 10.0, 0.25
TOPOLOGIES = 60

# Kinds of documents.
STORE, STATUS, SLOT_MAP, PROBLEM = "store", "status", "slot-map", "problem"


class Looker(Protocol):
    """A source of documents, by kind; called in one thread alone."""

    def look(self) -> Mapping[str, str]: ...

    def close(self) -> None: ...


class StoreLooker:
    """A reader of a store, which it opens at the first refresh, and again after one that failed."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._store: Store | None = None
        self._drawn: tuple[object, str] = (None, "")

    def look(self) -> Mapping[str, str]:
        """Return the current documents; where the store cannot be read, the problem alone."""
        try:
            self._store = self._store or Store.open(self._uri)
            documents = {
                STORE: json_text({"uri": shown(self._store.uri)}),
                STATUS: json_text(self._store.status()),
                SLOT_MAP: self._slot_map(self._store),
            }
        except (ElasticScanError, OSError) as error:
            self.close()
            reported = error if isinstance(error, ElasticScanError) else ElasticScanError(str(error))
            return {PROBLEM: json_text({"code": reported.code, "message": reported.message})}
        return {**documents, PROBLEM: "null"}

    def _slot_map(self, store: Store) -> str:
        """Return the map's document, drawn again if it changed; of topologies only the newest ever does."""
        slot_map = store.slot_map(TOPOLOGIES)
        first, last = slot_map.topologies[0], slot_map.topologies[-1]
        state = (store.context.info.store_id, first.number, last, slot_map.shards)
        if self._drawn[0] != state:
            self._drawn = state, json_text(slot_map.stripes())
        return self._drawn[1]

    def close(self) -> None:
        """Close the store until the next refresh."""
        store, self._store = self._store, None
        if store is not None:
            with suppress(ElasticScanError, OSError):
                store.close()


class Broadcast:
    """The newest documents, for any number of viewers."""

    def __init__(
        self,
        looker: Looker,
        stopped: Callable[[], bool] = lambda: False,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._looker, self._stopped, self._pause_seconds = looker, stopped, pause_seconds
        self._thread = ThreadPoolExecutor(1, "elasticscan-ui")
        self._documents: dict[str, tuple[int, str]] = {}  # by kind: the refresh that changed it, and its text
        self._looks = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.viewers = 0

    async def follow(self) -> AsyncIterator[tuple[str, str] | None]:
        """Yield each document that is new to this viewer, as its kind and text; None as a heartbeat."""
        seen: dict[str, int] = {}
        self.viewers += 1
        try:
            if self._task is None:
                self._task = asyncio.create_task(self._work())
            while not self._stopped():
                changed = self._changed
                for kind, (number, text) in tuple(self._documents.items()):
                    if seen.get(kind) != number:
                        seen[kind] = number
                        yield kind, text
                if not await self._waits(changed):
                    yield None
        finally:
            self.viewers -= 1

    async def _waits(self, changed: asyncio.Event) -> bool:
        """Wait for a change or the end; return False after a heartbeat without either."""
        until = time.monotonic() + HEARTBEAT_SECONDS
        while not changed.is_set() and not self._stopped():
            if time.monotonic() >= until:
                return False
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), STOP_SECONDS)
        return True

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self.viewers and not self._stopped():
            while self.viewers and not self._stopped():
                began = time.monotonic()
                self._note(await loop.run_in_executor(self._thread, self._looker.look))
                took = time.monotonic() - began
                pause = min(max(self._pause_seconds, took / SHARE_OF_TIME - took), LONGEST_PAUSE_SECONDS)
                await self._rest(pause)
            # These documents are stale by the time of the next viewer.
            self._documents.clear()
            await loop.run_in_executor(self._thread, self._looker.close)
        self._task = None

    async def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.viewers and not self._stopped() and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, STOP_SECONDS))

    def _note(self, documents: Mapping[str, str]) -> None:
        self._looks += 1
        new = {
            kind: (self._looks, text)
            for kind, text in documents.items()
            if self._documents.get(kind, (0, None))[1] != text
        }
        self._documents |= new
        if new:
            self._changed.set()
            self._changed = asyncio.Event()
