"""Random programs on a real log, compared with a plain model of the rows of its tables.

Several `Catalog` objects, each with its own clock, share a database, and some know an older state. Records
are staged from the state that one of them knows, and appended immediately or some steps later, by any of
them: `checks` may refuse only records with a conflict in between. Records that take rows from files or the
log are staged from the newest state, as under the log's lock. A record of the newest state must be accepted.
Faults are steps that affect the next append: a writer is killed before or after its commit, loses the answer,
or finds the disk full.

The model has all versions of each key, with the numbers of their commits; files are lists of versions by
their paths. After each step the fold of all records, the state of a checkpoint with its tail, and the states
of all logs must be equal. Each readable snapshot must have the model's rows in fragments and memory, at the
shards where the slots are, and no version twice. Commits, topologies, leases and horizons must equal the
model's.

`python -m tests.simulation --log SEED` prints the fewest steps that still fail.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partialmethod
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    AlreadyExists,
    Busy,
    CommitUnknown,
    ContinuationKeyError,
    DiskFull,
    InvalidCall,
    NotFound,
    SnapshotExpired,
    StartAgain,
)
from elasticscan.base.limits import STREAM_LEASE_SECONDS, TRUSTED_JUMP_SECONDS
from elasticscan.catalog import (
    Catalog,
    Tx,
    base_topology,
    forget_topologies,
    newest_topology,
    oldest_topology,
    tables,
    topology_at,
)
from elasticscan.catalog.codec import pack_value, unpack_value
from elasticscan.catalog.database import micros
from elasticscan.catalog.entries import Append, LogEntry, check_chain, record_of
from elasticscan.catalog.failures import retry
from elasticscan.catalog.fold import apply, is_commit
from elasticscan.catalog.leases import ENDLESS
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.table_state import TableState
from elasticscan.catalog.topology_history import pack_topology, slot_map
from elasticscan.metadata import (
    AddedRun,
    FileChanges,
    FilesCondemned,
    Fragment,
    FragmentsReplaced,
    HorizonRaised,
    IndexDefined,
    IndexInfo,
    IndexPhase,
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
    file_changes,
)
from elasticscan.store.context.leases import Hold, take_lease
from elasticscan.store.upkeep.compaction import horizon_of
from elasticscan.topology import Placement, Shard, SlotSet, Tablet, Topology
from tests.base.severed_line import SeveredLine
from tests.catalog.logs import (
    ANSWER_LOST,
    DONE_AND_KILLED,
    KILLED,
    NOT_DONE,
    FileHome,
    KilledProcess,
    ServerHome,
    append,
    begin,
    entries,
)
from tests.simulation.engine import Engine, Step

SLOTS, KEYS = 12, 30
REFUSED = (Busy, StartAgain, AlreadyExists, InvalidCall, NotFound)
SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])
INFO = TableInfo(1, "t", SCHEMA, ("key",), ("key",), None, 0, 0)
_ROWS = pa.schema([("_slot", pa.uint16()), *SCHEMA])
FULL, OTHER_ROWS = "full", "other rows"
FAULTS = (KILLED, DONE_AND_KILLED, NOT_DONE, ANSWER_LOST, FULL)


class Version(NamedTuple):
    """A version of a row; None if deleted. In files, number 0 means the number of the file's record."""

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
    """The versions that snapshots from the horizon on can read; a flush or a compaction keeps these."""
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


def picture(state: StoreState) -> bytes:
    """A complete state as a value that is the same for equal states."""
    return pack_value(state)


def slots_of(versions: Iterable[Version]) -> SlotSet:
    return SlotSet.of((v.slot, v.slot + 1) for v in versions)


@dataclass
class Model:
    """All commits to a table."""

    horizon: int
    created: int
    versions: list[Version] = field(default_factory=list)
    overwrites: list[int] = field(default_factory=list)
    tags: dict[str, int] = field(default_factory=dict)
    newest: int = 0
    files: set[str] = field(default_factory=set)  # paths that records brought


class Made(NamedTuple):
    """A record to be appended, and the values that it adds."""

    append: Append
    versions: tuple[Version, ...] = ()
    topology: Topology | None = None
    content: str | None = None  # of an application's version


class GivenUp(Exception):
    """Raised to roll a transaction back."""


class World:
    """One random program over one log."""

    def __init__(
        self, place: Path | str, seed: int, style: str | None = None, line: SeveredLine | None = None
    ) -> None:
        self.line = line  # to the server
        self.draw = self.random = Random(seed)  # the engine's name for it
        self.weights = WEIGHTS | STYLES[style]
        self.trace, self.outcomes = ["begin"], Counter[str]()
        self.is_done = True  # whether the current step changed anything
        self.fault = ""  # the fault of the next attempt
        self.models: dict[int, Model] = {}
        self.dropped: dict[int, Model] = {}
        self.forgotten = set[str]()
        self.files: dict[tuple[int, str], list[Version]] = {}
        self.statistics: dict[tuple[int, str], bytes] = {}
        self.apps: dict[tuple[int, str, int], tuple[int, str | None]] = {}
        self.history: list[tuple[LogEntry, Record]] = []
        self.values: list[bytes] = []
        self.topologies: dict[int, tuple[Topology, int]] = {}  # with the times of their records
        self.oldest_topology = 1
        # With their ends; one ends with its owner.
        self.leases = {"endless": (Hold(0, 0, "scan"), ENDLESS)}
        self.condemned = set[tuple[int, str]]()
        self.secrets: dict[int, Secret | None] = {}
        self.newest_commit = 0
        self.names = itertools.count()
        self.pending: list[tuple[Made, int]] = []  # with the numbers of the states that they were made from
        shards = (Shard(1, "a", "/a"), Shard(2, "b", "/b"))
        tablets = (Tablet(1, 0, 4, 1, 1), Tablet(2, 4, 8, 2, 1), Tablet(3, 8, SLOTS, 1, 1))
        home: Any = FileHome if isinstance(place, Path) else ServerHome
        self._opened: Callable[[], Any] = lambda: Catalog(home.opened(place, self.random))
        created = StoreCreated("store", "murmur3", 60.0, shards, tablets)
        self.observer = begin(home.opened(place, self.random), created)
        self.logs: list[Any] = [self._opened() for _ in range(3)]
        with self.observer.appending() as tx:
            tx.put_lease("endless", self.leases["endless"][0])
        (entry,) = self.catch_up()
        first = Topology(1, Placement.of(tablets), ((1, "a"), (2, "b")), 0.0, "created")
        self.topologies[1] = first, entry.time
        self.state = self.fold()
        first_table = self._made("create_table", self.state, self.observer)
        assert first_table is not None
        self._append(first_table, 0, 0)

    @property
    def newest(self) -> int:
        """The number of the newest record."""
        return self.history[-1][0].number

    def close(self) -> None:
        for log in (*self.logs, self.observer):
            log.home.close()

    # Steps

    def drawn(self, count: int) -> Iterator[Step]:
        """Draw steps, each after the one before was played, until `count` of them changed anything."""
        while count:
            (name,) = self.draw.choices([*self.weights], [*self.weights.values()])
            yield Step(name, self.draw.getstate())
            count -= self.is_done and name != "break_next"
        yield Step("end", self.draw.getstate())

    def live(self, upto: int) -> None:
        """Make steps up to a number of the log, without checks."""
        while self.newest < upto:
            for step in itertools.islice(self.drawn(1), 1):
                self._make(step.name)
            self.state = self.fold(self.state)

    def make(self, name: str) -> None:
        """Make a step, and check everything."""
        self._make(name)
        if self.is_done:
            self.check()

    def _make(self, name: str) -> None:
        self.trace.append(name)
        self.is_done, at = True, self.draw.randrange(len(self.logs))
        if name == "end":
            for log in self.logs:
                log.follow()
        elif name in STEPS:
            getattr(self, name)(at)
        else:
            self._stage(name, at)

    def say(self, what: object) -> None:
        self.trace[-1] += f": {what}"

    def pend(self, at: int) -> None:
        """Append a record that was made earlier."""
        self.is_done = bool(self.pending)
        if self.pending:
            self._append(*self.pending.pop(self.draw.randrange(len(self.pending))), at)

    def reopen(self, at: int) -> None:
        self.logs[at].home.close()
        self.logs[at] = self._opened()

    def checkpoint(self, at: int) -> None:
        log = self.logs[at]
        if self.draw.random() < 0.3:
            fault = self.draw.choice((KILLED, DONE_AND_KILLED))
            log.home.faults = ("",) * self.draw.randrange(6) + (fault,)
            with suppress(KilledProcess):
                log.write_checkpoint()
            self.reopen(at)
        else:
            log.write_checkpoint()

    def drop(self, at: int) -> None:
        """Drop the records that checkpoints cover, if these are old enough."""
        upto = self.draw.choice((self.history[-1][0].time, self.draw.choice(self.history)[0].time)) + 1
        newest = max((n for (n,) in self.observer.home.execute("SELECT number FROM checkpoint")), default=-1)
        times = {entry.number: entry.time for entry, _ in self.history}
        dropped = self.observer.drop_payloads(upto / 1e6)
        assert not dropped or times[newest] < upto, "the newest checkpoint is too young"

    def clock(self, at: int) -> None:
        self.logs[at].home.advance(self.draw.choice((1.0, 5_000.0, 300_000.0)))

    def break_next(self, at: int) -> None:
        """Set a fault of the next append, or of the next change of a lease."""
        self.fault = self.draw.choice(FAULTS)

    def forget_topologies(self, at: int) -> None:
        (newest, is_published), oldest = self.state.topology, self.oldest_topology
        self.oldest_topology = self.draw.randint(oldest, max(oldest, newest - (not is_published)))
        with self.logs[at].appending() as tx:
            forget_topologies(tx, self.oldest_topology)

    def lease(self, at: int) -> None:
        """Take, renew or end a lease; the model knows the effect even if the answer is lost."""
        log, seconds, name = (self.logs[at], self.draw.choice((60.0, 4_000.0, 1e8)), self.draw.choice("lmn"))
        table = self.draw.choice([*self.state.tables.values()]) if self.state.tables else None
        how = self.draw.choice(("take", "take", "renew", "renew", "remove", "end")) if table else "end"
        snapshot = self.draw.randrange(self.state.commit + 2)
        left = dict[str, tuple[Hold, int]]()

        def work() -> None:
            with log.appending() as tx:
                left.clear()
                left.update(self.leases)
                until = micros(tx.times.stamp + seconds)
                if how == "take":
                    assert table is not None
                    left[name] = Hold(table.info.id, snapshot, "scan"), until
                    take_lease(tx, name, table.info, snapshot, "scan", seconds)
                elif how == "renew":
                    held = tx.lease(Hold, name)
                    assert (held and (held.value, held.until)) == left.get(name)
                    if held and held.until / 1e6 >= tx.times.stamp:
                        left[name] = held.value, until
                        tx.put_lease(name, held.value, seconds)
                elif how == "remove":
                    left.pop(name, None)
                    tx.remove_lease(Hold, name)
                else:
                    self._end_leases(tx, left)

        outcome, _ = self._attempt(at, lambda: retry(log.home, work))
        self.say(f"{how} {name} at {snapshot}")
        if outcome in ("done", DONE_AND_KILLED):
            assert how != "take" or self._is_gone(table, snapshot) is None, "a lease of what is gone"
            self.leases = left
        elif outcome == "refused":
            assert how == "take" and self._is_gone(table, snapshot)

    def _end_leases(self, tx: Tx, left: dict[str, tuple[Hold, int]]) -> None:
        """When the time is certain, remove expired leases, and shorten those that end far too late."""
        over = [name for name, (_, until) in left.items() if until < micros(tx.times.expiry)]
        most = micros(tx.now + STREAM_LEASE_SECONDS + TRUSTED_JUMP_SECONDS)
        assert tx.end_expired_leases() == len(over)
        for name in over:
            del left[name]
        for name, (hold, until) in left.items() if tx.times.agreed else ():
            left[name] = hold, until if until == ENDLESS else min(until, most)

    def _is_gone(self, table: TableState | None, snapshot: int) -> type[Exception] | None:
        """The error that a read of a snapshot must raise; None if it can be read."""
        assert table is not None
        model = self.models[table.info.id]
        if not model.created <= snapshot <= self.state.commit:
            return NotFound
        return SnapshotExpired if snapshot < model.horizon else None

    def transact(self, at: int) -> None:
        """Append several records in one transaction, or none of them."""
        log, made, gives_up = self.logs[at], list[Made](), self.draw.random() < 0.5
        with suppress(GivenUp), log.appending() as tx:
            for _ in range(self.draw.randrange(1, 5)):
                name = self.draw.choices([*MAKERS], [self.weights[each] for each in MAKERS])[0]
                one = self._made(name, tx.state, log)
                if one is not None and one.append.app is None:
                    tx.append(one.append)
                    made.append(one)
            if gives_up:
                tx.put_lease("given up", Hold(1, 1, "scan"), 60.0)
                raise GivenUp
        came = self.catch_up()
        self.say(f"{len(made)} records, {'given up' if gives_up else 'made'}")
        assert len(came) == (0 if gives_up else len(made)), "all of a transaction is there, or nothing"
        for one, entry in zip(made, came, strict=False):
            self._note(one, entry)

    def _stage(self, name: str, at: int) -> None:
        log, at_once = self.logs[at], name in AT_ONCE
        if at_once or self.draw.random() < 0.6:
            log.follow()
        made = self._made(name, log.seen(), log)
        self.is_done = made is not None
        if made is None:
            return
        if not at_once and self.draw.random() < 0.3:
            self.say("later")
            self.pending.append((made, log.seen().number))
        else:
            self._append(made, log.seen().number, self.draw.randrange(len(self.logs)))

    def _made(self, name: str, state: StoreState, log: Catalog) -> Made | None:
        self.home = log.home  # of the process that makes it
        table = self.draw.choice([*state.tables.values()]) if state.tables else None
        if table is None and name not in WITHOUT_TABLES:
            return None
        made = getattr(self, f"_{name}")(state, table)
        return Made(Append(made)) if isinstance(made, Record) else made

    def _attempt(self, at: int, work: Callable[[], Any]) -> tuple[str, Any]:
        """Run an operation with the pending fault; return the outcome and the answer."""
        log, fault, answer = self.logs[at], self.fault, None
        self.fault, outcome = "", "done"
        if self.line is not None and fault in (NOT_DONE, ANSWER_LOST):
            self.line.cut_at(self.draw.randrange(1, 5), answered=fault == ANSWER_LOST)
        else:
            log.home.faults = (fault,)
        log.home.fill_disk(fault == FULL)
        try:
            answer = work()
        except REFUSED:
            outcome = "refused"
        except ContinuationKeyError:
            outcome = OTHER_ROWS
        except KilledProcess:
            outcome = fault
        except (DiskFull, CommitUnknown):
            assert fault == FULL
            outcome = FULL
        if self.line is not None:
            self.line.cut_at()
        log.home.fill_disk(False)
        log.home.faults = ()
        if outcome in (KILLED, DONE_AND_KILLED):
            self.reopen(at)
        self.say(" ".join(filter(None, (f"log {at}", fault and f"({fault})", outcome))))
        return outcome, answer

    def _append(self, staged: Made, made_at: int, at: int) -> None:
        log, what, content = self.logs[at], staged.append, staged.content
        kind = getattr(what.record, "operation", type(what.record).__name__)
        is_fresh, made = made_at == self.newest, None
        if what.app is not None and isinstance(what.record, RowsCommitted):
            made = self.apps.get((what.record.table, *what.app))
        is_other = made is not None and None not in (made[1], content) and made[1] != content
        self.say(f"{kind} from {made_at}")
        outcome, number = self._attempt(at, lambda: append(log, what, content))
        assert outcome != "refused" or not is_fresh, f"a {kind} from the newest state was refused"
        assert outcome != OTHER_ROWS or is_other, "a version stands for the same rows"
        came = self.catch_up()
        if came:
            (entry,) = came  # one append is one record
            assert outcome in ("done", DONE_AND_KILLED), outcome
            assert number in (None, entry.number)
            self._note(staged, entry)
        elif outcome == "done":
            assert made is not None, "an append that is acknowledged is in the log"
            assert number == made[0] and not is_other

    def _note(self, made: Made, entry: LogEntry) -> None:
        """Apply an accepted record to the model."""
        record, number = made.append.record, entry.number
        if is_commit(record):
            self.newest_commit = number
        before, after = self.fold(self.state, upto=number - 1), self.fold(self.state, upto=number)
        there = before.tables
        if isinstance(record, TableDefined) and not record.reserved:
            own = record.table.id
            names = {table.info.name for other, table in there.items() if other != own}
            assert record.table.name not in names, "a name is taken twice"
            if record.made_from == 0:
                self.models[own] = Model(number, number, newest=number)
            else:
                assert record.made_from == there[own].info.definition, "it replaces another definition"
        elif isinstance(record, FilesCondemned):
            self.condemned = (
                self.condemned - {*record.files} if record.lifted else self.condemned | {*record.files}
            )
        elif isinstance(record, MoveSwitched):
            tablet = after.tablet(record.tablet.id)
            assert (tablet.shard, tablet.epoch) == (record.target, record.tablet.epoch + 1)
        elif isinstance(record, TopologyEntered):
            assert made.topology is not None
            self.topologies[record.topology] = made.topology, entry.time
        elif isinstance(record, StoreAdopted):
            assert number > (made.append.beyond or 0), "numbers that were lost are not used again"
            self.newest_commit = max(self.newest_commit, record.commit)
        elif isinstance(record, SecretChanged):
            self.secrets[record.id] = record.secret
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
            model.versions += [version._replace(number=number) for version in made.versions]
            model.newest = number
            if record.overwrites:
                model.overwrites.append(number)
            if made.append.app is not None:
                key = (record.table, *made.append.app)
                assert key not in self.apps, "an application's commit is made once"
                self.apps[key] = number, made.content
        for table, changes in file_changes(record).items():
            self.forgotten |= {path for _, path in changes.forgotten}
            model = self.models[table] if table in self.models else self.dropped[table]
            model.files |= {added.run.path for added in changes.runs}
            for added in changes.added:
                model.files |= {added.path, *(run.path for run in added.runs)}
                assert (added.shard, added.path) not in self.condemned
        clock = max(entry.row.clock / 1e6, after.belief.accepted_at)
        for file in {*after.removed_files()} - {*before.removed_files()}:
            assert file.time == round(1e6 * clock), "it is as old as its removal"

    # What programs append

    def _create_table(self, state: StoreState, table: Any) -> Record | None:
        if len(state.tables) > 2:
            return None
        info = replace(INFO, id=state.newest_ids.get("table", 0) + 1, name=self.draw.choice("tuvw"))
        taken = {table.info.name for table in state.tables.values()}
        if info.name in taken:
            return None
        return TableDefined(info, 0, "create", reserved=self.draw.random() < 0.2)

    def _change_table(self, state: StoreState, table: Any) -> Record | None:
        changed = replace(table.info, definition=table.info.definition + 1)
        return TableDefined(changed, table.info.definition)

    def _drop_table(self, state: StoreState, table: Any) -> Record | None:
        return TableDropped(table.info.id)

    def _versions(self) -> list[Version]:
        keys = self.draw.sample(range(KEYS), self.draw.randrange(1, 7))
        return [Version(k, 0, self.draw.choice((None, *range(100, 1_000)))) for k in sorted(keys)]

    def _commit(self, inline: bool, state: StoreState, table: Any) -> Made:
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
        app, content = None, self.draw.choice((None, "these", "others"))
        if self.draw.random() < 0.3:
            app = ("app", self.draw.randrange(8))
        said = json.dumps({"content": content}) if app and content else None
        if inline:
            return Made(Append(record, pack(versions), app, said), tuple(versions), content=content)
        added = [
            self._file(table, shard, state.placement.at(shard), some)
            for shard, some in by_shard(state.placement, versions).items()
        ]
        record = replace(record, files=FileChanges(tuple(added)))
        return Made(Append(record, None, app, said), tuple(versions), content=content)

    _commit_inline, _commit_files = partialmethod(_commit, True), partialmethod(_commit, False)

    def _file(self, table: TableState, shard: int, slots: SlotSet, versions: list[Version]) -> StagedFragment:
        """Stage a file with some versions; number 0 means its record's number."""
        path = f"{next(self.names)}.arrow"
        self.files[shard, path] = versions
        self.statistics[shard, path] = self.draw.choice((b"", path.encode()))
        return StagedFragment(
            shard, path, slots, len(versions), 10, False, 0, versions[0].number > 0, 1, 1,
            statistics=self.statistics[shard, path],
            runs=tuple(self._run(index, path) for index in table.indexes),
        )  # fmt: skip

    def _run(self, index: IndexInfo, path: str) -> StagedRun:
        return StagedRun(index.id, f"{path}.{index.id}.{next(self.names)}", 1, 10, 1, 1)

    def _added(self, table: TableState, shard: int, slots: SlotSet, some: list[Version]) -> StagedFragment:
        numbers = [version.number for version in some]
        file = self._file(table, shard, slots, some)
        return replace(file, min_commit=min(numbers), max_commit=max(numbers))

    def _flush(self, state: StoreState, table: Any) -> Record | None:
        if not table.memory:
            return None
        shards = self.draw.choice(([self.draw.choice(state.placement.shards)], state.placement.shards))
        within = SlotSet.union(state.placement.at(shard) for shard in shards)
        commits = table.memory[: self.draw.choice((1, 3, 1_000))]
        commits = tuple(commit for commit in commits if commit.slots & within)
        if not commits:
            return None
        rows = Tx(self.home, None).rows_of(table.info.id, commits)
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

    def _replaced(self, table: TableState, operation: str, changes: FileChanges) -> Record:
        return FragmentsReplaced(table.info.id, operation, changes)

    def _in(self, fragment: Fragment, slots: SlotSet) -> list[Version]:
        """The versions that a fragment serves for some slots, with their numbers."""
        return [
            version._replace(number=version.number or fragment.min_commit)
            for version in self.files[fragment.shard, fragment.path]
            if version.slot in slots and version.slot in fragment.slots
        ]

    def _compact(self, state: StoreState, table: Any) -> Record | None:
        shard = self.draw.choice(state.placement.shards)
        there = [f for f in table.fragments.by_id.values() if f.shard == shard]
        slots = self.draw.choice((state.placement.at(shard), self.draw.choice(state.placement.tablets).slots))
        there = [fragment for fragment in there if fragment.slots & slots]
        taken = there if self.draw.random() < 0.5 else there[: self.draw.randrange(1, 4)]
        if not taken:
            return None
        versions = needed(itertools.chain.from_iterable(self._in(each, slots) for each in taken), table)
        if taken is there and not table.memory:  # so no other file can have rows that a tombstone deletes
            horizon = table.info.oldest_snapshot
            newer = {version.key for version in versions if version.number > horizon}
            versions = [v for v in versions if v.value is not None or v.number > horizon or v.key in newer]
        served = SlotSet.union(fragment.slots & slots for fragment in taken)
        changes = FileChanges(
            (self._added(table, shard, served, versions),) if versions else (),
            slots=tuple((each.id, each.slots - slots) for each in taken),
        )
        return self._replaced(table, "compact", changes)

    def _move(self, state: StoreState, table: Any) -> Record | None:
        tablet = self.draw.choice(state.placement.tablets)
        targets = [s.id for s in state.shards.values() if s.id != tablet.shard and not s.draining]
        if not targets:
            return None
        target, changed = self.draw.choice(targets), {}
        for number, table in state.tables.items():
            there = [f for f in table.fragments.by_id.values() if f.shard == tablet.shard]
            versions = needed((v for each in there for v in self._in(each, tablet.slots)), table)
            if versions:
                changed[number] = FileChanges((self._added(table, target, tablet.slots, versions),))
        return MoveSwitched(tablet, target, changed)

    def _split_or_join(self, state: StoreState, table: Any) -> Record | None:
        at = self.draw.randrange(len(state.placement.tablets))
        one, new = state.placement.tablets[at], state.newest_ids["tablet"] + 1
        following = state.placement.tablets[at + 1 : at + 2]
        if following and following[0].shard == one.shard and self.draw.random() < 0.6:
            epoch = max(one.epoch, following[0].epoch) + 1
            joined = replace(one, end=following[0].end, epoch=epoch)
            return TabletsChanged((one, *following), (joined,))
        if one.end - one.start < 2:
            return None
        middle = self.draw.randrange(one.start + 1, one.end)
        parts = (
            replace(one, end=middle, epoch=one.epoch + 1),
            Tablet(new, middle, one.end, one.shard, one.epoch + 1),
        )
        return TabletsChanged((one,), parts)

    def _change_shard(self, state: StoreState, table: Any) -> Record | None:
        shard = self.draw.choice([*state.shards.values()])
        if len(state.shards) < 3:
            number = state.newest_ids["shard"] + 1
            return ShardDefined(Shard(number, f"s{number}", f"/{number}"))
        if not state.placement.at(shard.id):
            return ShardDefined(shard, removed=True)
        return ShardDefined(replace(shard, draining=not shard.draining))

    def _raise_horizon(self, state: StoreState, table: Any) -> Record | None:
        most = min([state.number, *(tag.snapshot for tag in table.tags)])
        if most <= table.info.oldest_snapshot:
            return None
        return HorizonRaised(table.info.id, self.draw.randint(table.info.oldest_snapshot + 1, most))

    def _tag(self, state: StoreState, table: Any) -> Record | None:
        snapshot = self.draw.choice((None, self.draw.randint(table.info.oldest_snapshot, state.number)))
        return TagChanged(table.info.id, self.draw.choice("xy"), snapshot)

    def _index(self, state: StoreState, table: Any) -> Record | None:
        """Create an index, add runs to one, or make it ready."""
        index = next(iter(table.indexes), None)
        if index is None or (len(table.indexes) < 2 and self.draw.random() < 0.2):
            number = state.newest_ids.get("index", 0) + 1
            return IndexDefined(IndexInfo(number, table.info.id, f"i{number}", "sorted", ("value",), ()))
        index = self.draw.choice(table.indexes)
        having = {run.fragment for run in table.runs.by_id.values() if run.index == index.id}
        lacking = [fragment for number, fragment in table.fragments.by_id.items() if number not in having]
        if lacking:
            runs = (
                AddedRun(fragment.id, self._run(index, fragment.path))
                for fragment in lacking[: self.draw.choice((1, 9))]
            )
            return self._replaced(table, "build", FileChanges(runs=tuple(runs)))
        return IndexDefined(replace(index, phase=IndexPhase.READY))

    def _drop_index(self, state: StoreState, table: Any) -> Record | None:
        if not table.indexes:
            return None
        return IndexDefined(replace(self.draw.choice(table.indexes), phase=IndexPhase.DROPPED))

    def _forget(self, state: StoreState, table: Any) -> Record | None:
        """Forget files that garbage collection has deleted."""
        removed = {number: table.removed for number, table in state.tables.items()}
        removed |= {number: table.files for number, table in state.dropped.items()}
        if not removed:
            return None
        number, files = self.draw.choice([*removed.items()])
        going = self.draw.sample(files, self.draw.randint(0, len(files)))
        gone = FileChanges(forgotten=tuple((file.shard, file.path) for file in going))
        return FragmentsReplaced(number, "forget", gone)

    def _secret(self, state: StoreState, table: Any) -> Record | None:
        number = self.draw.randrange(3)
        secret = Secret(number, "keys", self.draw.randbytes(8), 1.5)
        return SecretChanged(number, self.draw.choice((None, secret)))

    def _condemn(self, state: StoreState, table: Any) -> Record | None:
        """Condemn files that no record names, or take condemned files back."""
        if state.condemned and self.draw.random() < 0.5:
            return FilesCondemned(tuple(sorted(state.condemned)), lifted=True)
        known = {path for model in (*self.models.values(), *self.dropped.values()) for path in model.files}
        garbage = sorted(file for file in self.files if file[1] not in known)
        return FilesCondemned(tuple(garbage[-3:])) if garbage else None

    def _adopt(self, state: StoreState, table: Any) -> Made:
        beyond = self.draw.choice((None, state.number + self.draw.randrange(5)))
        lost = self.draw.randint(0, beyond or 0)
        return Made(Append(StoreAdopted(self.draw.randbytes(4).hex(), lost), beyond=beyond))

    def _enter_topology(self, state: StoreState, table: Any) -> Made:
        newest, is_published = state.topology
        number, names = newest + int(is_published), tuple((s.id, s.name) for s in state.shards.values())
        published = self.draw.random() < 0.6
        entered = Topology(number, state.placement, names, float(number), "changed", published)
        record = TopologyEntered(number, published)
        return Made(Append(record, topology=(number, pack_topology(entered))), topology=entered)

    def _observe_time(self, state: StoreState, table: Any) -> Record | None:
        return TimeObserved()

    # What must hold

    def catch_up(self) -> list[LogEntry]:
        """Read the new entries directly, not by the logs, because values are dropped later."""
        came = entries(self.observer.home, self.newest + 1 if self.history else 0)
        for entry in came:
            asked = {"number": entry.number, "part": "value"}
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
            assert picture(self.fold(unpack_value(StoreState, pack_value(part)))) == expected
            assert picture(Catalog(self.observer.home).follow()) == expected
            self._check_history(Tx(self.observer.home, state))
        if self.draw.random() < 0.1:
            self.observer.check_whole()
        assert state.commit == self.newest_commit
        assert state.shards.keys() >= {*state.placement.shards}, "tablets are at shards that are there"
        assert state.condemned == self.condemned
        assert state.secrets == {n: secret for n, secret in self.secrets.items() if secret is not None}
        for log in self.draw.sample(self.logs, self.draw.randrange(3)):
            assert picture(log.follow()) == expected
        assert state.tables.keys() == self.models.keys()
        for number, model in self.models.items():
            self._check_table(state, state.tables[number], model)
        for number, model in self.dropped.items():
            assert model.files - self.forgotten == {file.path for file in state.dropped[number].files}

    def _check_history(self, tx: Tx) -> None:
        """Check that commits and topologies are found by number and time, and that leases are right."""
        draw, commits = self.random, [entry for entry, record in self.history if is_commit(record)]
        moment = draw.choice(self.history)[0].time + draw.choice((-1, 0, 1))
        before = [entry.number for entry in commits if entry.time <= moment]
        assert tx.newest_commit_at(moment / 1e6) == max(before, default=0)
        newest, is_published = tx.state.topology
        kept = {n: made for n, made in self.topologies.items() if n >= self.oldest_topology}
        number, most = draw.randrange(newest + 2), draw.randrange(4)
        assert base_topology(tx, number) == kept[min(max(number, min(kept)), newest)][0]
        assert [*slot_map(tx, most).topologies] == [kept[n][0] for n in sorted(kept) if n > newest - most]
        assert newest_topology(tx) == kept[newest - (not is_published)][0]
        assert oldest_topology(tx) == self.oldest_topology
        then = max((n for n, (_, time) in kept.items() if time <= moment), default=self.oldest_topology)
        assert topology_at(tx, moment / 1e6) == min(then, newest - (not is_published))
        assert {each.name: (each.value, each.until) for each in tx.leases(Hold)} == self.leases
        if tx.state.tables:
            table = draw.choice([*tx.state.tables])
            self._check_commits(tx, table, [entry for entry in commits if entry.row.table == table])

    def _check_commits(self, tx: Tx, table: int, commits: list[LogEntry]) -> None:
        draw, model, numbers = self.random, self.models[table], [entry.number for entry in commits]
        snapshot, most = draw.randrange(-1, self.newest + 1), draw.randrange(5)
        retained = commits[int(draw.random() * len(commits))].time / 1e6
        seconds = max(1.0, tx.times.expiry - retained)
        beyond = [entry for entry in commits if entry.number > snapshot]
        found = [commit.number for commit in tx.commits(table, snapshot, most=most)]
        assert found == [entry.number for entry in beyond][:most]
        newest = [commit.number for commit in tx.commits(table, most=most, newest=True)]
        assert newest == numbers[max(len(numbers) - most, 0) :]
        oldest = beyond[0].time / 1e6 if beyond else None
        assert tx.lag(table, snapshot) == (len(beyond), sum(e.row.rows for e in beyond), oldest)
        refused = self._is_gone(tx.state.tables[table], snapshot)
        with pytest.raises(refused) if refused else nullcontext():
            tx.state.check_snapshot(tx.state.tables[table].info, snapshot)
        if refused is not NotFound:
            upto = max(number for number in numbers if number <= snapshot)
            assert tx.newest_upto(table, snapshot).number == upto
        # The oldest snapshot that retention, a lease or a tag keeps, or the commit that wrote its rows.
        lasting = [hold for hold, until in self.leases.values() if until >= micros(tx.times.expiry)]
        held = [*model.tags.values(), *(hold.snapshot for hold in lasting if hold.table == table)]
        needed = min([tx.newest_commit_at(tx.times.expiry - seconds), *held])
        rows_of = max((number for number in numbers if number <= needed), default=0)
        assert horizon_of(tx, table, seconds) == max(model.horizon, rows_of)

    def _check_table(self, state: StoreState, table: TableState, model: Model) -> None:
        info, versions = table.info, list[Version]()
        assert (info.oldest_snapshot, table.newest) == (model.horizon, model.newest)
        assert {tag.name: tag.snapshot for tag in table.tags} == model.tags
        fragments = list(table.fragments.by_id.values())
        for fragment in fragments:
            assert fragment.slots, "a fragment serves slots"
            assert fragment.slots <= state.placement.at(fragment.shard), (
                "fragments lie where their slots live"
            )
            some = self._in(fragment, fragment.slots)
            assert all(fragment.min_commit <= version.number <= fragment.max_commit for version in some)
            versions += some
        rows = Tx(self.observer.home, None).rows_of(info.id, table.memory)
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
        runs = Counter((run.index, run.fragment) for run in table.runs.by_id.values())
        assert all(index in indexes and fragment in by_id for index, fragment in runs), "runs of what is gone"
        assert not runs or max(runs.values()) == 1, "a fragment has one run of an index"
        for index in indexes.values():
            assert not index.ready or all((index.id, f) in runs for f in by_id), "a ready index is whole"
        serving = {file.path for file in (*fragments, *table.runs.by_id.values())}
        removed = {file.path for file in table.removed}
        assert not serving & removed
        assert model.files == serving | removed | (self.forgotten & model.files), (
            "files serve, or can be collected"
        )
        found = Tx(self.observer.home, None).statistics(table.info.id, {*by_id, *table.runs.by_id})
        assert found == {n: body for n, f in by_id.items() if (body := self.statistics[f.shard, f.path])}


MAKERS = {
    "commit_inline": 30, "commit_files": 14, "flush": 20, "compact": 20, "move": 10, "split_or_join": 3,
    "change_shard": 3, "create_table": 2, "change_table": 1, "drop_table": 1, "raise_horizon": 6, "tag": 3,
    "index": 8, "drop_index": 1, "forget": 2, "secret": 1, "observe_time": 1, "condemn": 1, "adopt": 1,
    "enter_topology": 4,
}  # fmt: skip
STEPS = {
    "pend": 26, "reopen": 12, "checkpoint": 8, "drop": 6, "clock": 5, "break_next": 12, "transact": 6,
    "lease": 8, "forget_topologies": 1,
}  # fmt: skip
WEIGHTS = MAKERS | STEPS
WITHOUT_TABLES = {
    "move", "split_or_join", "change_shard", "create_table", "forget", "secret", "observe_time", "condemn",
    "adopt", "enter_topology",
}  # fmt: skip

AT_ONCE = {"flush", "compact", "move"}

INDEXES, TAGS, GARBAGE, DEFINITIONS, STORE = "indexes", "tags", "garbage", "definitions", "store"
SHARDS = "shards"
STYLES: dict[str | None, dict[str, int]] = {
    None: {},
    INDEXES: {"index": 60, "commit_files": 40},
    STORE: {"lease": 120, "break_next": 60, "clock": 40, "secret": 20, "adopt": 20, "enter_topology": 20},
    SHARDS: {"change_shard": 40, "move": 60, "reopen": 0, "checkpoint": 0},
    TAGS: {"tag": 40, "raise_horizon": 40},
    GARBAGE: {"condemn": 40, "commit_files": 60, "compact": 40},
    DEFINITIONS: {"create_table": 40, "change_table": 40, "drop_table": 20, "commit_files": 40},
}


class LogPrograms(Engine[World]):
    """Programs of logs, in files of a directory, or at a server behind a proxy that breaks connections."""

    options = "--log "

    def __init__(self, place: Path | str, steps: int = 75, line: SeveredLine | None = None) -> None:
        super().__init__()
        self.place, self.steps, self.line = place, steps, line

    def begin(self, stack: ExitStack, seed: int, style: str | None) -> tuple[World, Iterator[Step]]:
        place = self.place
        if isinstance(place, Path):
            place = Path(stack.enter_context(TemporaryDirectory(dir=place))) / "log.db"
        world = World(place, seed, style, self.line)
        stack.callback(world.close)
        return world, world.drawn(self.steps)

    def make_step(self, world: World, step: Step) -> None:
        world.make(step.name)


def by_shard(placement: Placement, versions: Collection[Version]) -> dict[int, list[Version]]:
    parts: dict[int, list[Version]] = {}
    for version in versions:
        parts.setdefault(placement.tablet_of(version.slot).shard, []).append(version)
    return parts
