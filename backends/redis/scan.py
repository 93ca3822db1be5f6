"""Scans of a table in a cluster: placements from the views of nodes, pages from masters."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from redis.exceptions import TryAgainError

from elasticscan.backends.redis.cluster_map import is_same_cluster
from elasticscan.backends.redis.connections import UNREACHABLE, Connections
from elasticscan.backends.redis.pages import NO_NAMES, SlotProgress, read_page, slot_set
from elasticscan.backends.redis.values import KeySpace
from elasticscan.base.errors import Busy, ShardUnavailable, TableChanged
from elasticscan.filters import Predicate
from elasticscan.protocol import ContinuationKey, PageRequest, PageRows, slots_of
from elasticscan.reader import ScanPlan, ScanStats, drive
from elasticscan.store import PagedScan
from elasticscan.topology import Placement, SlotSet

if TYPE_CHECKING:
    from elasticscan.backends.redis.store import ClusterTable

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
_TORN_CHECKS = 4
_FEWEST_REFUSALS = 5  # before the time limit begins
_GUARANTEE = "each key that exists throughout exactly once, any other at most once; no snapshot"


class ClusterShards:
    """The placements and shards of one scan: implements `Placements` and `ShardReader`."""

    def __init__(
        self, connections: Connections, space: KeySpace, members: Collection[str] | None = None
    ) -> None:
        """Read keys; `members` are the nodes at the beginning of the scan, None for a new scan."""
        self._connections, self._space, self._map = connections, space, connections.map
        self._members = self._map.members if members is None else members
        self.progress = SlotProgress()
        self._pause = _SHORTEST_PAUSE
        self._late: dict[int, float] = {}  # the time of each slot's fifth refusal in a row

    def read(self) -> Placement:
        """Read the placement from a node."""
        self._map = self._connections.read_map()
        if not is_same_cluster(self._map.members, self._members):
            raise TableChanged("the cluster was replaced by another one; begin another scan")
        return self._map.placement

    def current(self) -> Placement:
        """Return the placement that planned the page; servers refuse moved slots within the page."""
        return self._map.placement

    def recent(self, looked: Placement | None) -> Placement:
        """Read the placement at the beginning of each pass through the remaining slots."""
        if looked is None:
            if self.progress.refusals:  # all remaining slots were refused in the last pass
                time.sleep(self._pause)
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            with suppress(ShardUnavailable):  # if no node answers, the next pages are refused and wait
                self.read()
        return self._map.placement

    def layout_of(self, _: Placement) -> None:
        return None

    def read_page(self, request: PageRequest) -> PageRows:
        address = self._map.addresses.get(request.shard)
        if address is None:
            return self._refused(request, TryAgainError("no node serves it"))
        try:
            page = read_page(request, self._space, self.progress, self._connections.exchange, address)
        except UNREACHABLE as error:
            return self._refused(request, error)
        self._check_time()
        if page.rows.num_rows:
            self._pause = _SHORTEST_PAUSE
        return page

    def _refused(self, request: PageRequest, error: Exception) -> PageRows:
        """Return a page that refuses all requested slots."""
        asked, self.progress.rest = slots_of(request.cursors), NO_NAMES
        for start, end in asked:
            for slot in range(start, end):
                self.progress.refuse(slot, error)
        self._check_time()
        rows = pa.RecordBatch.from_pylist([], schema=self._space.schema(request.columns))
        return PageRows(rows, pa.array([], pa.uint16()), (), refused=asked)

    def _check_time(self) -> None:
        """Raise `Busy` if a slot has been refused for longer than `slot_timeout`.

        The time begins with the fifth refusal in a row: passes, and so refusals, may be far apart if other
        slots or the caller take long.
        """
        now, seconds = time.monotonic(), self._connections.options.slot_timeout
        refusals = self.progress.refusals
        often = [slot for slot, (times, _) in refusals.items() if times >= _FEWEST_REFUSALS]
        self._late = {slot: self._late.get(slot, now) for slot in often}
        late = [slot for slot, since in self._late.items() if now - since > seconds]
        if late:
            raise Busy(
                f"slots {slot_set(late)} could not be read for {seconds:,.0f} s "
                f"({refusals[late[0]][1]!r:.200}); run redis-cli --cluster check",
                kind="slots",
            )

    def torn_slots(self, slots: SlotSet) -> SlotSet:
        """Return the torn slots, which have keys at masters that do not serve them.

        A failover during a move may leave such keys, which no client can read. A slot is torn if it is not
        being moved and has such keys in several checks in a row.
        """
        for number in range(_TORN_CHECKS):
            time.sleep(_LONGEST_PAUSE if number else 0)
            cluster = self._connections.read_map()
            astray = set[int]()
            for shard, address in cluster.addresses.items():
                others = slots - cluster.placement.at(shard)
                astray.update(self._connections.count_keys(address, others))
            resting = []
            for slot in astray:
                owner = cluster.addresses.get(cluster.placement.tablet_of(slot).shard)
                probe = (b"EXISTS", self._space.probe(slot))
                if owner is not None and self._connections.try_exchange(owner, [probe]) == [0]:
                    resting.append(slot)
            slots = slot_set(resting)
            if not slots:
                break
        return slots


class ClusterScan(PagedScan):
    """A scan that returns each key that exists throughout exactly once, in pages."""

    def __init__(self, table: ClusterTable, state: ContinuationKey, members: Collection[str]) -> None:
        """Begin or resume a scan; `members` are the nodes of the cluster when the scan began."""
        super().__init__(table.name, state)
        self.table, self._members = table, members
        self._predicate = None if state.filter is None else Predicate.parse(state.filter, table.schema)
        self.stats = ScanStats()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([self.table.schema.field(name) for name in self.standing.columns])

    def parts(self, slots: Sequence[SlotSet]) -> list[str]:
        """Return a key of this scan for each set of slots, one for each task."""
        return [self._seal(self.standing.restrict_to(part)) for part in slots]

    def explain(self) -> dict[str, Any]:
        """Return the columns, filter, slots and the guarantee of this scan."""
        return {
            "table": self._name,
            "guarantee": _GUARANTEE,
            "columns": list(self.standing.columns),
            "filter": self.standing.filter,
            "slots": len(self.standing.slots),
            "actual": {"pages": self.stats.pages, "rows_scanned": self.stats.rows},
        }

    def _seal(self, state: ContinuationKey) -> str:
        return self.table.store.sealer.seal(state)

    def _read(self, columns: tuple[str, ...]) -> Iterator[tuple[pa.RecordBatch, ContinuationKey]]:
        """Yield rows with the state of the scan after them. Before the last page, check for torn slots."""
        state, predicate, table = self.standing, self._predicate, self.table
        if not state.cursors:
            return
        columns = columns or table.primary_key
        needed = tuple(dict.fromkeys((*columns, *sorted(predicate.columns if predicate else ()))))
        shards = ClusterShards(table.store.connections, table.keys_for(predicate), self._members)
        request = PageRequest(0, 0, state.cursors, 0, needed, state.page_rows, state.page_bytes)
        for page in drive(ScanPlan(request, shards.read(), state.slots), shards, shards, self.stats):
            if not page.after and table.options.fail_on_torn_slots:
                torn = shards.torn_slots(state.slots)
                if torn:
                    raise ShardUnavailable(
                        f"slots {torn} have keys at masters that do not serve them; run redis-cli --cluster "
                        "fix, or read with failOnTornSlots=false",
                        slots=str(torn),
                    )
            rows = page.rows if predicate is None else page.rows.filter(predicate.mask(page.rows))
            yield rows.select(list(columns)), replace(state, cursors=page.after)
