"""The world of a program: a store open in two processes, its expected answers, and steps of others.

Steps are functions of a world, registered by `@step` under their own names. They draw only from the world's
generator. At each point where another process could act, the store calls `let_others_in`, which makes steps
of other processes, nested up to three deep.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticscan.base.errors import ElasticScanError, SnapshotExpired, TryAgain
from elasticscan.base.limits import LEASE_SECONDS, SILENT_SECONDS
from elasticscan.metadata import IndexInfo
from elasticscan.storage import Disk, open_disk
from elasticscan.store import Page, Scan, Store
from elasticscan.store.copies.backup import BackedUp
from elasticscan.store.moves.balancing import Balance
from elasticscan.store.moves.owners import machine
from elasticscan.store.upkeep.after_commit import AfterCommit
from elasticscan.store.upkeep.planning import Policy
from elasticscan.topology import Move
from tests.base.manual_clock import ManualClock
from tests.simulation.oracle import Key, Row, Rows, TableOracle
from tests.simulation.tables import ALL_WEIGHTS, DOMAINS, TABLES, VALUES, Style

if TYPE_CHECKING:
    from tests.simulation.faults import Damage, Fault
    from tests.storage.faulty_disk import FaultyDisk

# Later than the time of any file, so that garbage collection without grace removes every file that it may.
START = 4_000_000_000.0
DEAD_OWNER = f"{machine()}:{(1 << 22) + 1}:0:0"  # no process can have this id


class Killed(BaseException):
    """The process died at this point; no code catches this error by its name."""


@dataclass(slots=True)
class ReadScan:
    """A scan of the program: the rows that it returned, and the rows that it must have returned at its end.

    Attributes:
        what: a description of the scan.
        ordered: the expected rows in their order, if the scan has an order.
        most_pages: how many more pages it may need after the last move.
        read_only: its pages never write to the catalog while its lease is fresh.
        marks: (a key, rows returned until then).
    """

    what: str
    expected: Counter[Row]
    ordered: list[Row] | None
    most_pages: int
    scan: Scan
    lease: str
    index: int | None
    opened_at: float
    read_only: bool
    pages: Iterator[Page]
    got: list[Row]
    marks: list[tuple[str, int]] = field(default_factory=list)

    def check(self, ended: bool) -> None:
        """Check that the returned rows are right and in order, and complete if the scan has ended."""
        lost, more = self.expected - Counter(self.got), Counter(self.got) - self.expected
        assert not more and not (ended and lost), f"{self.what}: lost {lost}, too many {more}"
        if self.ordered is not None:
            assert self.got == self.ordered[: len(self.got)], f"rows in a wrong order: {self.what}"


@dataclass(slots=True)
class Fate:
    """The end of a keeper after a number of points at its depth of nesting."""

    what: str
    points: int
    depth: int


def some_policy(chance: random.Random) -> Policy:
    """An upkeep policy whose bounds a few rows exceed, and which can be met with files of a few kilobytes."""
    return Policy(
        slot_fragments=chance.choice([3, 3, 4, 6]),
        history_fragments=chance.choice([3, 5]),
        small_bytes=chance.choice([1, 3_000, 1 << 20]),
        step_bytes=chance.choice([3_000, 30_000, 1 << 20]),
        tidy_share=chance.choice([0.1, 3.0]),
        balance=Balance(
            split_bytes=chance.choice([9_000, 40_000]),
            join_bytes=chance.choice([500, 4_000]),
            fewest_tablets=chance.choice([2, 6]),
            share=0.25,
            bytes=chance.choice([8_000, 50_000]),
        ),
    )


class World:
    """A store while a program runs.

    Attributes:
        stores: the store as opened by this process and by another one; empty if it cannot be opened.
        tables: the expected answers of each table.
        scans: the scans in progress.
        disks: by the name of their root, if they may have faults.
        live: digests of the files that the catalog referred to, by (name of the root, path).
        older_catalog: files of the catalog before all steps.
        lease_ends: when each scan's lease ends.
        under_way: moves whose movers live.
        style: the style of the program.
        builders: for each index build in progress, innermost last, the runs until its builder dies, or None.
        dropped: ids of dropped indexes.
        keepers: the keepers at work, innermost last.
        noise: the probability of others' steps at a point; `noise_left` limits their number.
        damage: the result of a `fault`. After it each step ends well or with a typed error.
        trace: the steps so far, nested ones indented.
    """

    def __init__(
        self,
        opened: Callable[[], Store],
        clock: ManualClock,
        rng: random.Random,
        style: Style,
    ) -> None:
        self.opened, self.clock, self.random = opened, clock, rng
        self.stores = [opened(), opened()]
        self.tables = {name: TableOracle(self.store.table(name), START) for name in TABLES}
        self.scans: list[ReadScan] = []
        self.lease_ends: dict[str, float] = {}
        self.under_way: list[Move] = []
        self.builders: list[int | None] = []
        self.dropped: set[int] = set()
        self.keepers: list[Fate] = []
        self.versions = 0  # rows written in all
        self.collections = self.new_shards = self.tags_made = self.backups_made = 0
        self.backups: list[tuple[BackedUp, Path]] = []  # existing backups, with their places
        self.backing_up = False
        self.damage: Damage | None = None
        self.fault: Fault | None = None
        self.live: dict[tuple[str, str], int] = {}
        self.older_catalog: dict[str, bytes] = {}
        self.disks: dict[str, FaultyDisk] = {}
        self.disk_of: Callable[[str], Disk] = open_disk
        self.place = Path()  # of the store's files
        self.trace, self.outcomes = ["begin"], Counter[str]()
        self.depth = 0
        self.writers_wait = False  # inside the switch of a move: the catalog is locked
        # A separate generator, so that compression does not change a seed's other draws.
        self.forms = copy(rng)
        for name in TABLES:
            self.pack_otherwise(name)
        self.keys = dict.fromkeys(TABLES, rng.choice([5, 40, 150]))
        self.long_texts = False
        self.page_rows, self.page_bytes = [1, 1, 2, 3, 10, 65_536], [1, 50, 400, 16 << 20, 16 << 20]
        self.style, self.weights = style, {"write": 10} | style.weights
        self.noise, self.noise_left = 0.4, 50
        if style.is_mixture:
            self.weights = {name: n * rng.choice([0, 1, 1, 5]) for name, n in self.weights.items()}
            self.weights["write"] = ALL_WEIGHTS["write"]
        noise = rng.choice([0.0, 0.1, 0.4])
        if style.is_mixture:
            self.noise, self.noise_left = noise, 25
        # How many of the scans through a sorted index are merged, and how many scans take no index.
        self.merged, self.direct = rng.choice([0.3, 0.7]), 0.35
        if style.is_merged:
            self.merged, self.direct = 1.0, 0.1
        if style.is_kept:
            self.policy, self.most_at_once = some_policy(rng), rng.choice([3, 5, 32])
            for store in self.stores:
                if rng.random() < 0.5:
                    store.context.upkeep = AfterCommit(store.context, self.policy)

    @property
    def store(self) -> Store:
        """The store of this process."""
        return self.stores[0]

    @property
    def some_store(self) -> Store:
        """The store of this process, or of the other one."""
        return self.random.choice(self.stores)

    def end(self) -> None:
        """End both processes."""
        for store in self.stores:
            store.close()
        self.stores = []

    # Steps, and who is let in between

    def make(self, name: str) -> None:
        """Make a step."""
        if not self.stores and name not in ("reopen", "repair"):
            name = "reopen"
        self.examine(name, lambda: STEPS[name](self))

    def examine(self, name: str, act: Callable[[], object]) -> None:
        """Run an operation that may end with a typed error if the store is damaged."""
        self.trace.append(f"{'    ' * self.depth}{name}")
        at = len(self.trace) - 1
        try:
            act()
        except ElasticScanError as error:
            if self.damage is None:
                raise
            if not str(error).startswith("[ES_"):
                raise AssertionError(f"an error without a code: {error!r}") from error
            self.trace[at] += f" ({error.code})"
            self.outcomes[f"{name}: {error.code}"] += 1
        else:
            self.outcomes[name] += 1

    def say(self, what: object) -> None:
        """Add a description of the current step to the trace."""
        self.trace[-1] += f": {what}"

    def some_step(self) -> str:
        """Let time pass, and draw the next step."""
        self.clock.advance(self.random.choice([0, 1, 1, 10, 10, 100]))
        return self.random.choices(list(self.weights), list(self.weights.values()))[0]

    def let_others_in(self, noise: float | None = None) -> None:
        """Make steps of others with some probability; then the current keeper may die."""
        self._make_steps_of_others(noise)
        fate = self.keepers[-1] if self.keepers else None
        if fate is None or fate.depth != self.depth or fate.what == "ends":
            return
        fate.points -= 1
        if fate.points == 0 and fate.what == "dies":
            raise Killed
        if fate.points == 0:
            self.clock.advance(SILENT_SECONDS + 1)
            self._make_steps_of_others(1.0)

    def _make_steps_of_others(self, noise: float | None) -> None:
        chance = self.noise if noise is None else noise
        deepest = 4 if self.backing_up else 3  # most backups are begun at the deepest level of other steps
        if self.noise_left <= 0 or self.depth >= deepest or self.random.random() >= chance:
            return
        self.depth += 1
        self.noise_left -= 1
        try:
            for _ in range(self.random.randint(1, 3)):
                self.make("read_only_page" if self.writers_wait else self.some_step())
        finally:
            self.depth -= 1

    def die_if_it_is_time(self) -> None:
        """Kill an index's builder if its number of runs is reached."""
        life = self.builders[-1] if self.builders else None
        if life is not None:
            if life <= 1:
                raise Killed
            self.builders[-1] = life - 1

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Prevent steps of others during a block."""
        noise, self.noise_left = self.noise_left, 0
        try:
            yield
        finally:
            self.noise_left = noise

    def attempt(self, operation: Callable[[], int], is_leased: bool = False) -> int | None:
        """Run an operation that may be refused only if garbage collection removed its files meanwhile.

        An operation on an older snapshot has a lease on it, and may also be refused after the lease ended.
        """
        collections, began = self.collections, self.clock.now()
        try:
            return operation()
        except SnapshotExpired:
            if not is_leased:
                raise
            assert self.clock.now() > began + LEASE_SECONDS, "what it needs has a lease, and expired"
            return None
        except TryAgain as error:
            if self.damage is not None:
                raise
            # A write by condition is refused if others have written before each of its attempts.
            if "keys" not in error.fields and self.collections == collections:
                raise AssertionError("refused for no reason") from error
            return None

    # What steps draw

    def some_table(self) -> TableOracle:
        return self.tables[self.random.choice(list(TABLES))]

    def some_value(self, table: TableOracle, column: str) -> Any:
        return self.random.choice([None, *DOMAINS[table.name][column]])

    def some_rows(self, table: TableOracle) -> Rows:
        keys = self.keys[table.name]
        chosen = self.random.sample(range(keys), self.random.randint(1, min(keys, 40)))
        return self.rows_of_keys(table, chosen)

    def rows_of_keys(self, table: TableOracle, chosen: Sequence[int]) -> Rows:
        self.versions += len(chosen)
        value = self.random.randrange(1_000)
        kinds = [table.schema.field(name).type for name in table.added]
        rows: dict[Key, Row] = {}
        for key in chosen:
            k = self.some_value(table, "k")
            more = [self.random.choice([None, *VALUES[kind]]) for kind in kinds]
            if table.name == "one":
                d, s = self.some_value(table, "d"), self.some_value(table, "s")
                if self.long_texts and self.random.random() < 0.7:
                    s = f"{self.random.getrandbits(640):0160x}"
                rows[key,] = (key, k, d, s, value, *more)
            else:  # few values of the shard key, so that slots hold many rows each
                rows[key % 4, f"k{key}"] = (key % 4, f"k{key}", k, value if key % 3 else None, *more)
        return rows

    def index(self, table: TableOracle, name: str) -> IndexInfo | None:
        return next((i for i in self.store.table(table.name).indexes() if i.name == name), None)

    def newest_commit(self) -> int:
        return self.store.context.catalog.newest().state.versions[1]

    def oldest_kept(self, table: TableOracle) -> int:
        return self.store.table(table.name).definition.oldest_snapshot

    def pack_otherwise(self, name: str) -> None:
        """Set the compression of a table's next files; existing files keep theirs."""
        self.store.table(name).set_compression(self.forms.choice(["none", "lz4", "zstd"]))

    def note(self, table: TableOracle, number: int, rows: Rows, touched: Iterable[Key]) -> None:
        """Add a commit to the oracle. After the catalog lost commits, a new one replaces them."""
        while self.fault is not None and self.fault.catalog and table.newest >= number:
            table.given_up.append(table.history.pop()[2])
        table.note(number, self.clock.now(), rows, touched)


Act = Callable[[World], None]
STEPS: dict[str, Act] = {}


def step(act: Act) -> Act:
    """Register a step under its name."""
    STEPS[act.__name__] = act
    return act
