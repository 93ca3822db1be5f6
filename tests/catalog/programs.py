"""Random programs on a real log, compared with a plain model of what its tables hold.

Several `Log` objects, each with a clock of its own, share one database, and some of them are behind. Records
are staged from the state that one of them knows, and appended at once or some steps later, by any of them: so
what `checks` refuses is what came in between. A record that is staged from the newest state must be accepted.
Writers are killed before and after they commit, lose their answers, and find their disk full.

The model knows all versions of each key, with the numbers of their commits; files are lists of versions by
their paths. After each step the fold of all records, the state of a checkpoint with its tail, and those of
all logs must be one; and each snapshot that is kept must hold in fragments and memory what the model has, at
the shards where the slots live, no version twice.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from elasticscan.base.errors import (
    AlreadyExists,
    CommitUnknown,
    DiskFull,
    InvalidTopologyChange,
    SnapshotExpired,
    TableChanged,
    WriteConflict,
)
from elasticscan.catalog import tables
from elasticscan.catalog.appending import Append
from elasticscan.catalog.checkpoints import parts_of, state_of
from elasticscan.catalog.entries import LogEntry, check_chain, record_of
from elasticscan.catalog.fold import apply, is_commit
from elasticscan.catalog.log import Log
from elasticscan.catalog.postgres import PostgresHome
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.table_state import TableState
from elasticscan.catalog.topology_history import pack_topology, topology
from elasticscan.catalog.transaction import Tx
from elasticscan.metadata import (
    AddedFragment,
    AddedRun,
    FileChanges,
    FilesCondemned,
    Fragment,
    FragmentsReplaced,
    HorizonRaised,
    IndexDefined,
    IndexEvent,
    IndexInfo,
    MoveSwitched,
    Record,
    RowsCommitted,
    Secret,
    SecretChanged,
    ShardDefined,
    StagedFragment,
    StagedRun,
    StoreAdopted,
    StoreCreated,
    TableDefined,
    TableDropped,
    TableInfo,
    TabletsChanged,
    TagChanged,
    TimeObserved,
    TopologyEntered,
)
from elasticscan.topology import Placement, Shard, SlotSet, Tablet, Topology
from tests.base.manual_clock import ManualClock
from tests.catalog.logs import append, begin

SLOTS, KEYS = 12, 30
REFUSED = (WriteConflict, TableChanged, AlreadyExists, InvalidTopologyChange, SnapshotExpired)
SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])
_ROWS = pa.schema([("_slot", pa.uint16()), *SCHEMA])
KILLED, DONE_AND_KILLED, NOT_DONE, ANSWER_LOST = "killed", "done, and killed", "not done", "answer lost"


class KilledProcess(Exception):
    """Ends what a process does, at one point of it."""


class _Faults:
    """A home whose next transactions that write have faults."""

    faults: tuple[str, ...] = ()

    @contextmanager
    def writing(self, at_once: bool = False) -> Iterator[Any]:
        fault = self._next_fault()
        with super().writing(at_once) as transaction:  # type: ignore[misc]
            yield transaction
            self._fail(fault == KILLED, fault == NOT_DONE)
        self._fail(fault == DONE_AND_KILLED, fault == ANSWER_LOST)

    def _next_fault(self) -> str:
        fault, self.faults = (self.faults[0], self.faults[1:]) if self.faults else ("", ())
        return fault

    def _fail(self, is_killed: bool, is_lost: bool) -> None:
        if is_killed:
            raise KilledProcess
        if is_lost:
            raise CommitUnknown("the line was cut during a commit")

    def fill_disk(self, is_full: bool) -> None:
        """Let the database grow no more, or again."""

    def advance(self, seconds: float) -> None:
        """Move the clock."""


class FileHome(_Faults, SqliteHome):
    @classmethod
    def opened(cls, path: Path, draw: Random) -> FileHome:
        return cls(path, ManualClock(1_700_000_000 + draw.randrange(-100, 100)))

    def fill_disk(self, is_full: bool) -> None:
        with self._pool.connection() as connection:
            connection.execute(f"PRAGMA max_page_count = {1 if is_full else 1 << 30}")

    def advance(self, seconds: float) -> None:
        self.clock.sleep(seconds)


class ServerHome(_Faults, PostgresHome):
    @classmethod
    def opened(cls, address: str, draw: Random) -> ServerHome:
        return cls(address, retry_seconds=0.0)

    def append_inline(self, values: Mapping[str, Any]) -> Any:
        fault = self._next_fault()
        self._fail(fault == KILLED, fault == NOT_DONE)
        answer = super().append_inline(values)
        if answer is None:  # a transaction comes next
            self.faults = (fault,)
        else:
            self._fail(fault == DONE_AND_KILLED, fault == ANSWER_LOST)
        return answer


class Version(NamedTuple):
    """A version of a row; no value where it was deleted. In files, number 0 is that of the file's record."""

    key: int
    number: int
    value: int | None

    @property
    def slot(self) -> int:
        return self.key % SLOTS


def visible(versions: Iterable[Version], overwrites: Iterable[int], snapshot: int) -> dict[int, Version]:
    """The rows of a snapshot, by key."""
    first = max((number for number in overwrites if number <= snapshot), default=0)
    newest: dict[int, Version] = {}
    for version in versions:
        if first <= version.number <= snapshot:
            newest[version.key] = max(version, newest.get(version.key, version), key=lambda v: v.number)
    return {key: version for key, version in newest.items() if version.value is not None}


def needed(versions: Iterable[Version], table: TableState) -> list[Version]:
    """The versions that snapshots from the horizon on can read, as a flush or a compaction keeps them."""
    horizon = table.info.oldest_snapshot
    first = max((number for number in table.overwrites if number <= horizon), default=0)
    kept: list[Version] = []
    for _, group in itertools.groupby(sorted(versions), key=lambda version: version.key):
        some = [version for version in group if version.number >= first]
        old = [version for version in some if version.number <= horizon]
        kept += [*old[-1:], *(version for version in some if version.number > horizon)]
    return kept


def pack(versions: Iterable[Version]) -> bytes:
    rows = [{"_slot": v.slot, "key": v.key, "value": v.value} for v in versions]
    return pa.RecordBatch.from_pylist(rows, schema=_ROWS).serialize().to_pybytes()  # type: ignore[no-any-return]


def unpack(packed: bytes, number: int) -> list[Version]:
    rows = pa.ipc.read_record_batch(pa.py_buffer(packed), _ROWS).to_pylist()
    return [Version(row["key"], number, row["value"]) for row in rows]


def picture(state: StoreState) -> tuple[Any, ...]:
    """All of a state, in a form that is the same for equal states."""
    files = {
        number: (table.fragments.by_id(), table.runs.by_id())
        for number, table in sorted(state.tables.items())
    }
    return state.number, state.digest, parts_of(state)["store"], files


def slots_of(versions: Iterable[Version]) -> SlotSet:
    return SlotSet.of((v.slot, v.slot + 1) for v in versions)


@dataclass
class Model:
    """All that was committed to a table."""

    horizon: int
    versions: list[Version] = field(default_factory=list)
    overwrites: list[int] = field(default_factory=list)
    tags: dict[str, int] = field(default_factory=dict)
    newest: int = 0
    files: set[str] = field(default_factory=set)  # paths that records brought


@dataclass(frozen=True)
class Staged:
    """A record on its way, the number of the state that it was made from, and its rows."""

    append: Append
    made_at: int
    versions: tuple[Version, ...] = ()
    topology: Topology | None = None

    @property
    def kind(self) -> str:
        return getattr(self.append.record, "operation", type(self.append.record).__name__)


Step = Callable[[StoreState, Log], Append | tuple[Append, tuple[Version, ...] | Topology] | None]


class Program:
    """One random program over one log."""

    def __init__(self, place: Path | str, seed: int, style: str | None = None) -> None:
        self.draw, self.weights = Random(seed), WEIGHTS | STYLES[style]
        self.models: dict[int, Model] = {}
        self.dropped: dict[int, Model] = {}
        self.forgotten = set[str]()
        self.files: dict[tuple[int, str], list[Version]] = {}
        self.statistics: dict[tuple[int, str], bytes] = {}
        self.apps: dict[tuple[int, str, int], int] = {}
        self.history: list[tuple[LogEntry, Record]] = []
        self.values: list[bytes] = []
        self.topologies: dict[int, Topology] = {}
        self.condemned = set[tuple[int, str]]()
        self.newest_commit = 0
        self.names = itertools.count()
        self.pending: list[Staged] = []
        shards = (Shard(1, "a", "/a"), Shard(2, "b", "/b"))
        tablets = (Tablet(1, 0, 4, 1, 1), Tablet(2, 4, 8, 2, 1), Tablet(3, 8, SLOTS, 1, 1))
        home: Any = FileHome if isinstance(place, Path) else ServerHome
        home.create(place).close()
        self._opened = lambda: Log(home.opened(place, self.draw))
        created = StoreCreated("store", SLOTS, "murmur3", 60.0, shards, tablets)
        self.topologies[1] = Topology(1, Placement.of(tablets), ((1, "a"), (2, "b")), 0.0, "created")
        self.observer = begin(home.opened(place, self.draw), created)
        self.logs = [self._opened() for _ in range(3)]
        self.catch_up()
        self.state = self.fold()
        self.append(Staged(self._create_table(self.state, self.logs[0]), 0), 0)

    @property
    def newest(self) -> int:
        """The number of the newest record."""
        return self.history[-1][0].number

    def run(self, steps: int) -> None:
        try:
            for _ in range(steps):
                self.step()
                self.check()
            for log in self.logs:
                log.follow()
            self.check()
        finally:
            for log in (*self.logs, self.observer):
                log.home.close()

    # Steps

    def step(self) -> None:
        at = self.draw.randrange(len(self.logs))
        match self.draw.choices(
            ("append", "pending", "log", "checkpoint", "drop", "clock"), (60, 14, 8, 5, 4, 3)
        )[0]:
            case "append":
                self.stage(at)
            case "pending" if self.pending:
                self.append(self.pending.pop(self.draw.randrange(len(self.pending))), at)
            case "log":
                self._reopen(at)
            case "checkpoint":
                self._checkpoint(at)
            case "drop":
                upto = self.draw.choice((self.history[-1][0].time, self.draw.choice(self.history)[0].time))
                self.observer.drop_payloads(upto + 1)
            case "clock":
                self.logs[at].home.advance(self.draw.choice((1.0, 5_000.0, 300_000.0)))

    def _reopen(self, at: int) -> None:
        self.logs[at].home.close()
        self.logs[at] = self._opened()

    def _checkpoint(self, at: int) -> None:
        log = self.logs[at]
        if self.draw.random() < 0.3:
            log.home.faults = ("",) * self.draw.randrange(6) + (self.draw.choice((KILLED, DONE_AND_KILLED)),)
            with suppress(KilledProcess):
                log.write_checkpoint()
            self._reopen(at)
        elif not log.write_checkpoint():  # of one that was killed, whose lease must end first
            log.home.advance(3_600)
            log.write_checkpoint()

    def stage(self, at: int) -> None:
        log = self.logs[at]
        if self.draw.random() < 0.6:
            log.follow()
        made = None
        while made is None:
            name = self.draw.choices([*self.weights], [*self.weights.values()])[0]
            step: Step = getattr(self, f"_{name}")
            made = step(log.state, log)
        append, more = made if isinstance(made, tuple) else (made, ())
        staged = Staged(append, log.state.number)
        kind = "topology" if isinstance(more, Topology) else "versions"
        staged = replace(staged, **{kind: more})
        if self.draw.random() < 0.3:
            self.pending.append(staged)
        else:
            self.append(staged, self.draw.randrange(len(self.logs)))

    def append(self, staged: Staged, at: int) -> None:
        log, fault = self.logs[at], ""
        is_fresh = staged.made_at == self.newest
        if self.draw.random() < 0.12:
            fault = self.draw.choice((KILLED, DONE_AND_KILLED, NOT_DONE, ANSWER_LOST, "full"))
        log.home.faults = (fault,)
        log.home.fill_disk(fault == "full")
        outcome, number = "accepted", None
        try:
            number = append(log, staged.append)
        except REFUSED:
            assert not is_fresh, f"a {staged.kind} from the newest state was refused"
            outcome = "refused"
        except KilledProcess:
            outcome = fault
        except (DiskFull, CommitUnknown):
            assert fault == "full"
            outcome = "full"
        log.home.fill_disk(False)
        log.home.faults = ()
        if outcome in (KILLED, DONE_AND_KILLED):
            self._reopen(at)
        came = self.catch_up()
        if came:
            assert len(came) == 1, "one append is one record"
            assert outcome in ("accepted", DONE_AND_KILLED), outcome
            assert number in (None, came[0].number)
            self._note(staged, came[0])
        elif outcome == "accepted":
            app = staged.append.app
            assert app is not None, "an append that is acknowledged is in the log"
            assert number == self.apps[staged.append.record.table, *app]

    def _note(self, staged: Staged, entry: LogEntry) -> None:
        """Do in the model what a record that was accepted says."""
        record, number = staged.append.record, entry.number
        if is_commit(record):
            self.newest_commit = number
        there = self.fold(self.state, upto=number - 1).tables
        if isinstance(record, TableDefined) and not record.reserved:
            own = record.table.id
            names = {table.info.name for other, table in there.items() if other != own}
            assert record.table.name not in names, "a name is taken twice"
            if record.made_from == 0:
                self.models[own] = Model(number, newest=number)
            else:
                assert record.made_from == there[own].info.definition, "it replaces another definition"
        elif isinstance(record, FilesCondemned):
            self.condemned = (
                self.condemned - {*record.files} if record.lifted else self.condemned | {*record.files}
            )
        elif isinstance(record, TopologyEntered):
            assert staged.topology is not None
            self.topologies[record.topology] = staged.topology
        elif isinstance(record, TableDropped):
            self.dropped[record.table] = self.models.pop(record.table)
        elif isinstance(record, HorizonRaised):
            model = self.models[record.table]
            assert model.horizon < record.horizon
            assert all(snapshot >= record.horizon for snapshot in model.tags.values())
            model.horizon = record.horizon
        elif isinstance(record, TagChanged):
            tags = self.models[record.table].tags
            tags.pop(record.name, None)
            if record.snapshot is not None:
                assert record.snapshot >= self.models[record.table].horizon, "a tag of what is gone"
                tags[record.name] = record.snapshot
        elif isinstance(record, RowsCommitted):
            model = self.models[record.table]
            assert record.definition == there[record.table].info.definition, "its columns are others by now"
            assert not record.based_on or model.newest <= record.based_on, "it has read rows that changed"
            model.versions += [version._replace(number=number) for version in staged.versions]
            model.newest = number
            if record.overwrites:
                model.overwrites.append(number)
            if staged.append.app is not None:
                key = (record.table, *staged.append.app)
                assert key not in self.apps, "an application's commit is made once"
                self.apps[key] = number
        for table, changes in changes_in(record).items():
            self.forgotten |= {path for _, path in changes.forgotten}
            model = self.models[table] if table in self.models else self.dropped[table]
            model.files |= {added.run.path for added in changes.runs}
            for added in changes.added:
                model.files |= {added.file.path, *(run.path for run in added.file.runs)}
                assert (added.file.shard, added.file.path) not in self.condemned

    # What programs append

    def _table_of(self, state: StoreState) -> TableState | None:
        return self.draw.choice([*state.tables.values()]) if state.tables else None

    def _create_table(self, state: StoreState, log: Log) -> Append | None:
        if len(state.tables) > 2:
            return None
        info = TableInfo(
            state.newest_ids.get("table", 0) + 1,
            self.draw.choice("tuvw"),
            SCHEMA,
            ("key",),
            ("key",),
            None,
            0,
            0,
        )
        taken = {table.info.name for table in state.tables.values()}
        if info.name in taken:
            return None
        return Append(TableDefined(info, 0, "create", reserved=self.draw.random() < 0.2))

    def _change_table(self, state: StoreState, log: Log) -> Append | None:
        if (table := self._table_of(state)) is None:
            return None
        changed = replace(table.info, definition=table.info.definition + 1)
        return Append(TableDefined(changed, table.info.definition))

    def _drop_table(self, state: StoreState, log: Log) -> Append | None:
        return None if (table := self._table_of(state)) is None else Append(TableDropped(table.info.id))

    def _versions(self) -> list[Version]:
        keys = self.draw.sample(range(KEYS), self.draw.randrange(1, 7))
        return [Version(k, 0, self.draw.choice((None, *range(100, 1_000)))) for k in sorted(keys)]

    def _commit(self, state: StoreState, inline: bool) -> tuple[Append, tuple[Version, ...]] | None:
        if (table := self._table_of(state)) is None:
            return None
        versions = self._versions()
        record = RowsCommitted(
            table.info.id,
            "write inline" if inline else "write files",
            table.info.definition,
            len(versions),
            100,
            tombstones=sum(version.value is None for version in versions),
            slots=slots_of(versions) if inline else SlotSet(),
            overwrites=self.draw.random() < 0.15,
            based_on=state.number if self.draw.random() < 0.3 else 0,
        )
        app = ("app", self.draw.randrange(20)) if self.draw.random() < 0.2 else None
        if inline:
            return Append(record, pack(versions), app), tuple(versions)
        added = [
            AddedFragment(self._file(table, shard, state.placement.at(shard), some))
            for shard, some in by_shard(state.placement, versions).items()
        ]
        return Append(replace(record, files=FileChanges(tuple(added))), None, app), tuple(versions)

    def _commit_inline(self, state: StoreState, log: Log) -> tuple[Append, tuple[Version, ...]] | None:
        return self._commit(state, inline=True)

    def _commit_files(self, state: StoreState, log: Log) -> tuple[Append, tuple[Version, ...]] | None:
        return self._commit(state, inline=False)

    def _file(self, table: TableState, shard: int, slots: SlotSet, versions: list[Version]) -> StagedFragment:
        """Stage a file with some versions; numbers of 0 are its record's."""
        path = f"{next(self.names)}.arrow"
        self.files[shard, path] = versions
        self.statistics[shard, path] = self.draw.choice((b"", path.encode()))
        return StagedFragment(
            shard, path, slots, len(versions), 10, False, 0, versions[0].number > 0, 1, 1,
            statistics=self.statistics[shard, path],
            runs=tuple(self._run(index, path) for index in table.indexes),
        )  # fmt: skip

    def _run(self, index: IndexInfo, path: str) -> StagedRun:
        return StagedRun(index.id, f"{path}.{index.id}.{next(self.names)}", 1, 10, 1, 1, b"h")

    def _added(self, table: TableState, shard: int, slots: SlotSet, some: list[Version]) -> AddedFragment:
        numbers = [version.number for version in some]
        return AddedFragment(self._file(table, shard, slots, some), min(numbers), max(numbers))

    def _flush(self, state: StoreState, log: Log) -> Append | None:
        table = self._table_of(state)
        if table is None or not table.memory:
            return None
        shards = self.draw.choice(([self.draw.choice(state.placement.shards)], state.placement.shards))
        within = SlotSet.union(state.placement.at(shard) for shard in shards)
        commits = table.memory[: self.draw.choice((1, 3, 1_000))]
        commits = tuple(commit for commit in commits if commit.slots & within)
        rows = log.rows_of(table.info.id, commits)
        if not commits or len(rows) < len(commits):  # flushed since, and dropped
            return None
        flushed = SlotSet.union(commit.slots & within for commit in commits)
        versions = [
            version
            for commit in commits
            for version in unpack(rows[commit.number], commit.number)
            if version.slot in commit.slots and version.slot in flushed
        ]
        added = [
            self._added(table, shard, slots_of(some), some)
            for shard, some in by_shard(state.placement, needed(versions, table)).items()
        ]
        numbers = tuple(commit.number for commit in commits)
        changes = FileChanges(tuple(added), flushed=numbers, flushed_slots=flushed)
        return self._replaced(table, "flush", changes)

    def _replaced(self, table: TableState, operation: str, changes: FileChanges) -> Append:
        horizon, served = table.info.oldest_snapshot, table.served_by(changes)
        return Append(FragmentsReplaced(table.info.id, operation, horizon, changes, served))

    def _in(self, fragment: Fragment, slots: SlotSet) -> list[Version]:
        """The versions that a fragment serves, of some slots, with their numbers."""
        return [
            version._replace(number=version.number or fragment.min_commit)
            for version in self.files[fragment.shard, fragment.path]
            if version.slot in slots and version.slot in fragment.slots
        ]

    def _compact(self, state: StoreState, log: Log) -> Append | None:
        if (table := self._table_of(state)) is None:
            return None
        shard = self.draw.choice(state.placement.shards)
        there = fragments_at(table, shard)
        slots = self.draw.choice((state.placement.at(shard), self.draw.choice(state.placement.tablets).slots))
        there = [fragment for fragment in there if fragment.slots & slots]
        taken = there if self.draw.random() < 0.5 else there[: self.draw.randrange(1, 4)]
        if not taken:
            return None
        versions = needed(itertools.chain.from_iterable(self._in(each, slots) for each in taken), table)
        if taken is there and not table.memory:  # so nothing else can have what a tombstone deletes
            horizon = table.info.oldest_snapshot
            newer = {version.key for version in versions if version.number > horizon}
            versions = [v for v in versions if v.value is not None or v.number > horizon or v.key in newer]
        served = SlotSet.union(fragment.slots & slots for fragment in taken)
        changes = FileChanges(
            (self._added(table, shard, served, versions),) if versions else (),
            removed=tuple(each.id for each in taken if each.slots <= slots),
            slots=tuple((each.id, each.slots - slots) for each in taken if not each.slots <= slots),
        )
        return self._replaced(table, "compact", changes)

    def _move(self, state: StoreState, log: Log) -> Append | None:
        tablet = self.draw.choice(state.placement.tablets)
        targets = [s.id for s in state.shards.values() if s.id != tablet.shard and not s.draining]
        if not targets:
            return None
        target, changed = self.draw.choice(targets), {}
        for number, table in state.tables.items():
            there = fragments_at(table, tablet.shard)
            versions = needed((v for each in there for v in self._in(each, tablet.slots)), table)
            if versions:
                changed[number] = FileChanges((self._added(table, target, tablet.slots, versions),))
        return Append(MoveSwitched(tablet, target, state.number, changed))

    def _split_or_join(self, state: StoreState, log: Log) -> Append | None:
        at = self.draw.randrange(len(state.placement.tablets))
        one, new = state.placement.tablets[at], state.newest_ids["tablet"] + 1
        following = state.placement.tablets[at + 1 : at + 2]
        if following and following[0].shard == one.shard and self.draw.random() < 0.6:
            epoch = max(one.epoch, following[0].epoch) + 1
            joined = replace(one, end=following[0].end, epoch=epoch)
            return Append(TabletsChanged((one, *following), (joined,)))
        if one.end - one.start < 2:
            return None
        middle = self.draw.randrange(one.start + 1, one.end)
        parts = (
            replace(one, end=middle, epoch=one.epoch + 1),
            Tablet(new, middle, one.end, one.shard, one.epoch + 1),
        )
        return Append(TabletsChanged((one,), parts))

    def _change_shard(self, state: StoreState, log: Log) -> Append | None:
        shard = self.draw.choice([*state.shards.values()])
        if len(state.shards) < 3:
            number = state.newest_ids["shard"] + 1
            return Append(ShardDefined(Shard(number, f"s{number}", f"/{number}")))
        if not state.placement.at(shard.id):
            return Append(ShardDefined(shard, removed=True))
        return Append(ShardDefined(replace(shard, draining=not shard.draining)))

    def _raise_horizon(self, state: StoreState, log: Log) -> Append | None:
        if (table := self._table_of(state)) is None:
            return None
        most = min([state.number, *(tag.snapshot for tag in table.tags)])
        if most <= table.info.oldest_snapshot:
            return None
        return Append(HorizonRaised(table.info.id, self.draw.randint(table.info.oldest_snapshot + 1, most)))

    def _tag(self, state: StoreState, log: Log) -> Append | None:
        if (table := self._table_of(state)) is None:
            return None
        snapshot = self.draw.choice((None, self.draw.randint(table.info.oldest_snapshot, state.number)))
        return Append(TagChanged(table.info.id, self.draw.choice("xy"), snapshot))

    def _index(self, state: StoreState, log: Log) -> Append | None:
        """Take an index, new or under way, one step further."""
        if (table := self._table_of(state)) is None:
            return None
        index = next(iter(table.indexes), None)
        if index is None or (len(table.indexes) < 2 and self.draw.random() < 0.2):
            number = state.newest_ids.get("index", 0) + 1
            return Append(
                IndexDefined(IndexInfo(number, table.info.id, f"i{number}", "sorted", ("value",), ()))
            )
        index = self.draw.choice(table.indexes)
        having = {run.fragment for run in table.runs.where("index", {index.id})}
        lacking = [fragment for number, fragment in table.fragments.by_id().items() if number not in having]
        if lacking:
            runs = (
                AddedRun(fragment.id, self._run(index, fragment.path))
                for fragment in lacking[: self.draw.choice((1, 9))]
            )
            return self._replaced(table, "build", FileChanges(runs=tuple(runs)))
        return Append(IndexDefined(index.after(IndexEvent.COMPLETED)))

    def _drop_index(self, state: StoreState, log: Log) -> Append | None:
        table = self._table_of(state)
        if table is None or not table.indexes:
            return None
        return Append(IndexDefined(self.draw.choice(table.indexes).after(IndexEvent.DROPPED)))

    def _forget(self, state: StoreState, log: Log) -> Append | None:
        """Forget files that garbage collection has deleted."""
        removed = {
            number: (table.removed, table.info.oldest_snapshot) for number, table in state.tables.items()
        }
        removed |= {number: (table.files, 0) for number, table in state.dropped.items()}
        if not removed:
            return None
        number, (files, horizon) = self.draw.choice([*removed.items()])
        going = self.draw.sample(files, self.draw.randint(0, len(files)))
        gone = FileChanges(forgotten=tuple((file.shard, file.path) for file in going))
        return Append(FragmentsReplaced(number, "forget", horizon, gone))

    def _secret(self, state: StoreState, log: Log) -> Append | None:
        number = self.draw.randrange(3)
        secret = Secret(number, "keys", self.draw.randbytes(8), 1.5)
        return Append(SecretChanged(number, self.draw.choice((None, secret))))

    def _condemn(self, state: StoreState, log: Log) -> Append | None:
        """Condemn files that no record names, or what is condemned no more."""
        if state.condemned and self.draw.random() < 0.5:
            return Append(FilesCondemned(tuple(sorted(state.condemned)), lifted=True))
        known = {path for model in (*self.models.values(), *self.dropped.values()) for path in model.files}
        garbage = sorted(file for file in self.files if file[1] not in known)
        return Append(FilesCondemned(tuple(garbage[-3:]))) if garbage else None

    def _adopt(self, state: StoreState, log: Log) -> Append | None:
        beyond = self.draw.choice((None, state.number + self.draw.randrange(5)))
        return Append(StoreAdopted(self.draw.randbytes(4).hex()), beyond=beyond)

    def _enter_topology(self, state: StoreState, log: Log) -> tuple[Append, Topology]:
        newest, is_published = state.topology
        number = newest + int(is_published)
        shards = tuple(state.shards.values())
        entered = topology_of(number, shards, state.placement, self.draw.random() < 0.6)
        record = TopologyEntered(number, entered.published)
        return Append(record, topology=(number, pack_topology(entered))), entered

    def _observe_time(self, state: StoreState, log: Log) -> Append | None:
        return Append(TimeObserved())

    # What must hold

    def catch_up(self) -> list[LogEntry]:
        """Read the entries that came, beside the logs: values are dropped later on."""
        came = self.observer.entries(self.newest + 1 if self.history else 0, 1 << 60)
        for entry in came:
            asked = {"number": entry.number, "table": entry.row.table, "part": "value"}
            ((value,),) = self.observer.home.execute(tables.PART, asked)
            self.history.append((entry, record_of(entry, value)))
            self.values.append(value)
        return came

    def fold(self, first: StoreState | None = None, upto: int | None = None) -> StoreState:
        """The state after records up to a number, from an earlier one or from nothing."""
        state = first
        for entry, record in self.history:
            is_known = first is not None and entry.number <= first.number
            if not is_known and (upto is None or entry.number <= upto):
                state = apply(state, entry, record)
        assert state is not None
        return state

    def check(self) -> None:
        check_chain(self.state.digest, [e for e, _ in self.history if e.number > self.state.number])
        times = [entry.time for entry, _ in self.history]
        assert all(before < after for before, after in itertools.pairwise(times))
        self.state = state = self.fold(self.state)
        expected, (at, _) = picture(state), self.draw.choice(self.history)
        if self.draw.random() < 0.3:
            part = self.fold(upto=at.number)
            parts = parts_of(part)
            assert picture(self.fold(state_of(parts.__getitem__))) == expected
            assert picture(Log(self.observer.home).follow()) == expected
            newest = self.draw.choice([*self.topologies])
            assert topology(Tx(self.observer, state, 0.0), newest) == self.topologies[newest]
        if self.draw.random() < 0.1:
            self.observer.check_whole()
        assert state.commit == self.newest_commit
        assert state.condemned == self.condemned
        for log in self.draw.sample(self.logs, self.draw.randrange(3)):
            assert picture(log.follow()) == expected
        assert state.tables.keys() == self.models.keys()
        for number, model in self.models.items():
            self._check_table(state, state.tables[number], model)
        for number, model in self.dropped.items():
            assert model.files - self.forgotten == {file.path for file in state.dropped[number].files}

    def _check_table(self, state: StoreState, table: TableState, model: Model) -> None:
        info, versions = table.info, list[Version]()
        assert (info.oldest_snapshot, table.newest) == (model.horizon, model.newest)
        assert {tag.name: tag.snapshot for tag in table.tags} == model.tags
        fragments = list(table.fragments.by_id().values())
        for fragment in fragments:
            assert fragment.slots, "a fragment serves slots"
            assert fragment.slots <= state.placement.at(fragment.shard), (
                "fragments lie where their slots live"
            )
            some = self._in(fragment, fragment.slots)
            assert all(fragment.min_commit <= version.number <= fragment.max_commit for version in some)
            versions += some
        rows = self.observer.rows_of(info.id, table.memory)
        for commit in table.memory:
            versions += [v for v in unpack(rows[commit.number], commit.number) if v.slot in commit.slots]
        twice = [v for v, count in Counter((v.key, v.number) for v in versions).items() if count > 1]
        assert not twice, f"versions (key, number) that are read twice: {twice}"
        numbers = {model.horizon, state.number, *(v.number for v in model.versions), *model.overwrites}
        for snapshot in sorted(number for number in numbers if number >= model.horizon):
            expected = visible(model.versions, model.overwrites, snapshot)
            assert visible(versions, table.overwrites, snapshot) == expected, f"snapshot {snapshot}"
        self._check_files(table, model, fragments)

    def _check_files(self, table: TableState, model: Model, fragments: list[Fragment]) -> None:
        by_id, indexes = {f.id: f for f in fragments}, {index.id: index for index in table.indexes}
        runs = Counter((run.index, run.fragment) for run in table.runs.by_id().values())
        assert all(index in indexes and fragment in by_id for index, fragment in runs), "runs of what is gone"
        assert not runs or max(runs.values()) == 1, "a fragment has one run of an index"
        for index in indexes.values():
            assert not index.ready or all((index.id, f) in runs for f in by_id), "a ready index is whole"
        serving = {file.path for file in (*fragments, *table.runs.by_id().values())}
        removed = {file.path for file in table.removed}
        assert not serving & removed
        assert model.files == serving | removed | (self.forgotten & model.files), (
            "files serve, or can be collected"
        )
        found = self.observer.statistics_of(table.info.id, by_id.keys())
        expected = {number: body for number, f in by_id.items() if (body := self.statistics[f.shard, f.path])}
        assert found == expected


WEIGHTS = {
    "commit_inline": 30, "commit_files": 14, "flush": 20, "compact": 20, "move": 10, "split_or_join": 3,
    "change_shard": 3, "create_table": 2, "change_table": 1, "drop_table": 1, "raise_horizon": 6, "tag": 3,
    "index": 8, "drop_index": 1, "forget": 2, "secret": 1, "observe_time": 1, "condemn": 1, "adopt": 1,
    "enter_topology": 4,
}  # fmt: skip

INDEXES, TAGS, GARBAGE, DEFINITIONS = "indexes", "tags", "garbage", "definitions"
STYLES: dict[str | None, dict[str, int]] = {
    None: {},
    INDEXES: {"index": 60, "commit_files": 40},
    TAGS: {"tag": 40, "raise_horizon": 40},
    GARBAGE: {"condemn": 40, "commit_files": 60, "compact": 40},
    DEFINITIONS: {"create_table": 40, "change_table": 40, "drop_table": 20, "commit_files": 40},
}


def by_shard(placement: Placement, versions: Collection[Version]) -> dict[int, list[Version]]:
    parts: dict[int, list[Version]] = {}
    for version in versions:
        parts.setdefault(placement.tablet_of(version.slot).shard, []).append(version)
    return parts


def fragments_at(table: TableState, shard: int) -> list[Fragment]:
    return table.fragments.where("shard", {shard})


def topology_of(number: int, shards: Collection[Shard], placement: Placement, published: bool) -> Topology:
    names = tuple((shard.id, shard.name) for shard in shards)
    return Topology(number, placement, names, float(number), "changed", published)


def changes_in(record: Record) -> dict[int, FileChanges]:
    """The changes of files that a record makes, by table."""
    if isinstance(record, MoveSwitched):
        return dict(record.tables)
    return {record.table: record.files} if isinstance(record, (RowsCommitted, FragmentsReplaced)) else {}
