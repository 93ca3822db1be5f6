"""A whole cluster and its scans, driven by one seed: the harness of the simulation tests.

`Simulation(seed).run()` raises an AssertionError that names the seed if a scan does not return exactly the
rows of its snapshot, or needs too many pages. The same seed always gives the same schedule.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from elasticscan.protocol import Cursor, Cursors, PageRequest, RowRequest, restrict, slots_of
from elasticscan.protocol.keys import ContinuationKey, Sealer
from elasticscan.protocol.requests import PageRows, Placements, Shards
from elasticscan.reader import read_by_key
from elasticscan.reader.scan import ScanPlan, ScanStats, drive
from elasticscan.reader.sorted_scan import SortKey, drive_sorted
from elasticscan.topology import SlotSet, Tablet, initial_placement
from tests.reader.memory import DESCENDING, DIRECT, INDEX, MemoryCluster

Row = tuple[int, int]

SEALER = Sealer("simulated", {1: bytes(range(32))})
COLUMNS = ("key", "value")
MOST_PAGES = 10_000


@dataclass(slots=True)
class SimulatedScan:
    """A scan: the rows that it returned so far, and the rows that it must have returned at its end."""

    cluster: MemoryCluster
    plan: ScanPlan
    cursors: Cursors
    expected: Counter[Row]
    sort: SortKey | None = None  # for a scan that returns its rows in one order over all shards
    got: list[Row] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)  # (a key, rows returned until then)
    stats: ScanStats = field(default_factory=ScanStats)
    pages: Iterator[PageRows] | None = None
    resumed_at: int = 0  # rows that were returned before this driver began
    done: bool = False

    @classmethod
    def of(
        cls,
        cluster: MemoryCluster,
        rows: dict[int, int],
        page_rows: int,
        part: SlotSet | None = None,
        sort: SortKey | None = None,
    ) -> SimulatedScan:
        """Begin a scan at the newest snapshot over `part` of the slots, all by default."""
        base = cluster.current()
        slots = SlotSet.span(0, base.slot_count) if part is None else part
        cursors = restrict((Cursor(slots),), slots)
        request = PageRequest(1, 0, cursors, cluster.last_commit, COLUMNS, page_rows, 1 << 20)
        wanted = [(key, value) for key, value in rows.items() if key % base.slot_count in slots]
        return cls(cluster, ScanPlan(request, base, slots), cursors, Counter(wanted), sort)

    @property
    def key(self) -> str:
        """The sealed continuation key of the scan now."""
        asked, topology, lease = self.plan.request, 1, "00" * 8
        about = (asked.table, asked.snapshot, topology, self.plan.slots, self.cursors, asked.columns, None)
        return SEALER.seal(ContinuationKey(*about, asked.page_rows, asked.page_bytes, lease), expires_at=1)

    def resumed(self, key: str, returned: int) -> SimulatedScan:
        """A new driver that knows only a key and the rows that were returned before it."""
        opened = SEALER.open(key, now=0)
        return replace(
            self,
            cursors=opened.cursors,
            got=self.got[:returned],
            marks=[],
            stats=ScanStats(),
            pages=None,
            resumed_at=returned,
            done=not opened.cursors,
        )

    def step(self) -> None:
        """Read one page, or find the end."""
        if self.pages is None:
            placements: Placements = self.cluster
            shards: Shards = self.cluster
            plan = replace(self.plan, request=replace(self.plan.request, cursors=self.cursors))
            if self.sort is None:
                self.pages = drive(plan, placements, shards, self.stats)
            else:
                self.pages = drive_sorted(plan, self.sort, placements, shards, self.stats)
        page = next(self.pages, None)
        if page is None:
            self.done = True
            assert not self.cursors, "the scan ended before its cursors did"
            return
        self.cursors = page.after
        self.got += zip(*page.rows.to_pydict().values(), strict=True)
        assert self.stats.pages < MOST_PAGES, "the scan does not come to an end"

    def most_pages_left(self) -> int:
        """The most pages that the scan may still need without further moves.

        A page is full, or it finishes all slots of its shard in this pass. Refused slots wait for the next
        pass. One more step finds the end.
        """
        left = sum(self.expected.values()) - len(self.got)
        shards = self.cluster.current().split_by_shard(slots_of(self.cursors))
        return left // self.plan.request.page_rows + 2 * len(shards) + 2

    def check(self) -> None:
        got = Counter(self.got)
        if self.sort is not None:
            ordered = sorted(self.got, key=lambda row: (row[1], row[0]), reverse=self.sort.descending)
            assert self.got == ordered, "the rows left in another order than that of the index"
        assert got == self.expected, f"lost {self.expected - got}, too many {got - self.expected}"
        if self.sort is None:  # a sorted scan reads rows again after a resume if they waited for others
            assert self.stats.rows == len(self.got) - self.resumed_at, "rows were counted otherwise"


class Simulation:
    """A cluster, the rows written to it, and several scans, all scheduled by one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        slots = self.random.randint(1, 20)
        tablets = self.random.randint(1, min(slots, 8))
        self.shards = list(range(1, self.random.randint(2, 5)))
        placement = initial_placement(slots, tablets, self.shards)
        self.order = self.random.choice([DIRECT, INDEX, DESCENDING])
        self.cluster = MemoryCluster(placement, self.order, self._during)
        # Whether a page is planned with the placement check of the page before; a separate generator.
        apart = random.Random(-1 - seed)
        share = apart.choice([0.0, 0.5, 1.0])
        self.cluster.remembers = lambda: apart.random() < share
        # Whether shards refuse slots, as in a store that others operate; not for sorted scans.
        operated = random.Random(f"operated {seed}")
        refused = operated.choice([0.0, 0.0, 0.3, 0.9]) if self.order is DIRECT else 0.0
        self.cluster.refuses = lambda: operated.random() < refused
        self.keys = self.random.randint(1, 60)
        self.values = self.random.choice([2, 1_000])  # few of them: many ties in an index scan
        self.rows: dict[int, int] = {}
        self.scans: list[SimulatedScan] = []
        self.left: dict[int, int] = {}  # tablet -> the shard that it came from last
        # The probability of changes; some schedules have changes only within pages, some everywhere.
        self.noise_within, self.noise_between = self.random.choice([(0.3, 0.5), (0.05, 0.9), (0.6, 0.0)])
        self.changes_left = self.random.randint(0, 60)

    def run(self) -> None:
        try:
            self._write()
            for _ in range(self.random.randint(0, 3)):
                self._change()
            for _ in range(self.random.randint(1, 4)):
                self._start_scan()
            while self.changes_left > 0 and not all(scan.done for scan in self.scans):
                if self.random.random() < self.noise_between:
                    self._change()
                self._advance(self.random.choice(self.scans))
                if self.random.random() < 0.1:
                    self._get()
            self._finish()
        except BaseException as error:
            error.add_note(
                f"replay with: ELASTICSCAN_SEEDS={self.seed} pytest tests/reader/test_simulation.py"
            )
            raise

    # Scans

    def _start_scan(self) -> None:
        if len(self.scans) == 6:
            return
        count = self.cluster.current().slot_count
        bounds = sorted(self.random.sample(range(count + 1), 2))
        part = SlotSet.span(*bounds) if self.random.random() < 0.2 else None
        page_rows = self.random.choice([1, 1, 2, 3, 7, 100])
        merged = self.order is not DIRECT and self.random.random() < 0.5
        sort = SortKey(("value", "key"), self.order is DESCENDING) if merged else None
        self.scans.append(SimulatedScan.of(self.cluster, self.rows, page_rows, part, sort))

    def _advance(self, scan: SimulatedScan) -> None:
        if scan.done:
            scan.check()
            return
        if self.random.random() < 0.3:
            scan.marks.append((scan.key, len(scan.got)))
        if scan.marks and self.random.random() < 0.1:
            # A scan is resumed from an old key although it is further: it returns the same rows again.
            self.scans.append(scan.resumed(*self.random.choice(scan.marks)))
        elif self.random.random() < 0.2:
            self.scans[self.scans.index(scan)] = scan = scan.resumed(scan.key, len(scan.got))
        if not scan.done:
            scan.step()

    def _get(self) -> None:
        """Read rows by their keys, with any changes of their tablets in between."""
        slots, expected = self.cluster.current().slot_count, dict(self.rows)
        asked = [self.random.randrange(self.keys + 10) for _ in range(self.random.choice([0, 1, 5, 40]))]
        asked.sort(key=lambda key: key % slots)
        of_keys = np.array([key % slots for key in asked], dtype=np.uint16)
        batch = pa.record_batch({"key": pa.array(asked, pa.int64())})
        request = RowRequest(1, 0, self.cluster.last_commit, COLUMNS, of_keys, batch)
        places, batches = read_by_key(request, self.cluster.current(), self.cluster, self.cluster)
        rows = [(row["key"], row["value"]) for batch in batches for row in batch.to_pylist()]
        got = [rows[place] if place >= 0 else (key, None) for key, place in zip(asked, places, strict=True)]
        assert got == [(key, expected.get(key)) for key in asked], "rows by their keys"

    def _finish(self) -> None:
        """Finish every scan without further moves, each within its bound."""
        self.changes_left = 0
        self.cluster.remembers = self.cluster.refuses = lambda: False
        for scan in self.scans:
            for _ in range(scan.most_pages_left()):
                if not scan.done:
                    scan.step()
            assert scan.done, "the scan did not end within its bound although nothing moved any more"
            scan.check()

    # What happens meanwhile

    def _during(self) -> None:
        if self.changes_left > 0 and self.random.random() < self.noise_within:
            self._change()

    def _change(self) -> None:
        self.changes_left -= 1
        self.random.choice(self._CHANGES)(self)

    def _write(self) -> None:
        keys = self.random.sample(range(self.keys), self.random.randint(0, self.keys))
        deleting = self.random.random() < 0.3
        rows = {key: None if deleting else self.random.randrange(self.values) for key in keys}
        self.cluster.write(rows)
        self.rows |= {key: value for key, value in rows.items() if value is not None}
        self.rows = {key: value for key, value in self.rows.items() if rows.get(key, value) is not None}

    def _resting(self) -> list[Tablet]:
        return [t for t in self.cluster.current().tablets if t.id not in self.cluster.moving]

    def _targets(self, tablet: Tablet) -> list[int]:
        return [shard for shard in self.shards if shard != tablet.shard]

    def _begin_move(self) -> None:
        tablets = [tablet for tablet in self._resting() if self._targets(tablet)]
        if tablets:
            tablet = self.random.choice(tablets)
            self.cluster.begin_move(tablet.id, self.random.choice(self._targets(tablet)))

    def _end_move(self) -> None:
        if self.cluster.moving:
            arrives = self.random.random() < 0.7
            end = self.cluster.commit_move if arrives else self.cluster.fail_move
            end(self.random.choice(self.cluster.moving))

    def _move(self) -> None:
        tablets = [tablet for tablet in self._resting() if self._targets(tablet)]
        if tablets:
            tablet = self.random.choice(tablets)
            self.left[tablet.id] = tablet.shard
            self.cluster.move(tablet.id, self.random.choice(self._targets(tablet)))

    def _return(self) -> None:
        """Move a tablet back to its previous shard."""
        for tablet in self._resting():
            back = self.left.get(tablet.id)
            if back is not None and back != tablet.shard:
                self.left[tablet.id] = tablet.shard
                self.cluster.move(tablet.id, back)
                return

    def _ping_pong(self) -> None:
        """Move a tablet to another shard and back immediately."""
        tablets = [tablet for tablet in self._resting() if self._targets(tablet)]
        if tablets:
            tablet = self.random.choice(tablets)
            self.cluster.move(tablet.id, self.random.choice(self._targets(tablet)))
            self.cluster.move(tablet.id, tablet.shard)

    def _split(self) -> None:
        tablets = [tablet for tablet in self._resting() if len(tablet.slots) > 1]
        if tablets:
            self.cluster.split(self.random.choice(tablets).id)

    def _join(self) -> None:
        resting = self._resting()
        pairs = [(a, b) for a, b in pairwise(resting) if a.shard == b.shard and a.end == b.start]
        if pairs:
            left, right = self.random.choice(pairs)
            self.cluster.join(left.id, right.id)

    def _empty_shard(self) -> None:
        """Move all tablets away from a shard, as in a contraction."""
        shard = self.random.choice(self.shards)
        for tablet in self._resting():
            if tablet.shard == shard and self._targets(tablet):
                self.cluster.move(tablet.id, self.random.choice(self._targets(tablet)))

    def _add_shard(self) -> None:
        if len(self.shards) < 8:
            self.shards.append(max(self.shards) + 1)

    _CHANGES: tuple[Callable[[Simulation], None], ...] = (
        _write,
        _write,
        _start_scan,
        _begin_move,
        _begin_move,
        _end_move,
        _end_move,
        _move,
        _return,
        _ping_pong,
        _split,
        _join,
        _empty_shard,
        _add_shard,
    )


def run_simulations(seeds: range) -> None:
    for seed in seeds:
        Simulation(seed).run()
