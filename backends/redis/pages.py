"""One page of a cluster's keys: which commands to send, and what their answers say. Pure.

The rule, for slots at one master:

1. **Names.** For each slot one transaction: a guard, the count of its keys, and their names. The guard is an
   EXISTS of a key that does not exist and hashes to the slot. `GETKEYSINSLOT` itself answers for any slot,
   from whatever lies at the server; but a transaction with a keyed command is refused with MOVED where the
   server does not serve the slot, and with ASK or TRYAGAIN where the slot is being moved away. So the names
   and the statement "the whole slot is here" are one atomic step at the only server that knows.
2. **Values**, in chunks bounded in bytes. A redirect at any value refuses the whole slot: its rows of this
   page are dropped, and its position stays. A nil is a key that is gone, and only that.
3. **Positions** are key names: names are sorted, so a position means the same at every master.

A slot that stays half moved (its move was given up, or takes long) is read *open*: names at the source, names
at the target, names and guard at the source again. Keys go one way, and the source deletes a key only when
the target has it, so a key that exists throughout is in the first list or in the second. If the third list
has a name that the first lacks, the direction was turned, and the slot waits on.

The functions are generators: they yield an `Exchange` and are sent its answers, so the same code runs against
servers and against a simulated cluster.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    ExecAbortError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from elasticscan.backends.redis.cluster_map import Address
from elasticscan.backends.redis.errors import no_permission, slot_too_large, unexpected, wrong_type
from elasticscan.backends.redis.hash_slots import SLOTS, probe_of, slot_of
from elasticscan.backends.redis.values import Model
from elasticscan.filters import Predicate
from elasticscan.protocol import Cursor, Cursors, PageRequest, PageRows, merge
from elasticscan.topology import SlotSet

PAGE_SLOTS = 256
NAMES_AT_ONCE = 4_096  # of a slot, before it is known to have more
SCANNED_NAMES = 50_000  # a slot with more is walked by SCAN where the server can: GETKEYSINSLOT blocks it
SCAN_COUNT = 1_000
FIRST_CHUNK, MOST_CHUNK = 64, 16_384  # keys of one exchange of values
CHUNK_BYTES = 4 << 20
PASSES_BEFORE_OPEN = 5

Command: TypeAlias = tuple[bytes, ...]
Answers: TypeAlias = list[Any]
Slots: TypeAlias = NDArray[np.uint16]

_WAITS = (TryAgainError, ClusterDownError, BusyLoadingError, MasterDownError, ReadOnlyError)
_NOT_THERE = (None, 0, -2)  # what GET, EXISTS and PTTL answer then
_MULTI, _EXEC, _ASKING = (b"MULTI",), (b"EXEC",), (b"ASKING",)


class Exchange(NamedTuple):
    """Commands for one server, sent together; errors come back as values. None is the page's own server."""

    address: Address | None
    commands: Sequence[Command]


Step: TypeAlias = Generator[Exchange, Answers, Any]


@dataclass(slots=True)
class SlotNames:
    """The names of a slot's keys that are left to read, ascending, and where it is open."""

    names: pa.Array  # binary
    target: Address | None = None


@dataclass(slots=True)
class SlotProgress:
    """The memory that a scan has of slots between pages, in one process.

    Attributes:
        names: of slots that take more than one page.
        asked: how often in a row a slot was refused with ASK.
        reasons: why a slot was refused last; refusals: how often in a row.
        hints: newer owners of slots, as servers named them.
        row_bytes: the mean size of a row, as far as it is known.
        chunk: how many keys the next exchange of values may have.
    """

    names: dict[int, SlotNames] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    refusals: Counter[int] = field(default_factory=Counter)
    hints: dict[int, Address] = field(default_factory=dict)
    row_bytes: float = 0.0
    chunk: int = FIRST_CHUNK

    def refuse(self, slot: int, error: Exception) -> None:
        """Note that a slot was refused. Raises where waiting cannot help."""
        if isinstance(error, MovedError):
            self.hints[slot] = error.node_addr
            self.asked.pop(slot, None)
        elif isinstance(error, AskError):
            self.asked[slot] = self.asked.get(slot, 0) + 1
        elif isinstance(error, NoPermissionError):
            raise no_permission(error)
        elif not isinstance(error, _WAITS):
            raise unexpected(error)
        self.note(slot, f"{type(error).__name__}: {error}")

    def note(self, slot: int, reason: str) -> None:
        """Note that nothing was learned of a slot."""
        self.names.pop(slot, None)
        self.reasons[slot] = reason
        self.refusals[slot] += 1

    def finish(self, slot: int) -> None:
        self.names.pop(slot, None)
        self.asked.pop(slot, None)
        self.advance(slot)

    def advance(self, slot: int) -> None:
        """Forget that a slot was refused, for it was read."""
        self.reasons.pop(slot, None)
        self.refusals.pop(slot, None)


@dataclass(frozen=True, slots=True)
class KeySpace:
    """The keys of a table, and how they are read.

    Attributes:
        prefix: what all names begin with; probes begin with it, too.
        pattern: a regular expression that whole names match; None where the prefix says it all.
        model: how a value becomes a row.
        max_slot_keys: a slot with more keys is refused, where the server has no SCAN within a slot.
        slot_scan: whether the server has it.
        condition: a part of the scan's filter that the key's column alone decides.
    """

    prefix: bytes
    pattern: bytes | None
    model: Model
    max_slot_keys: int
    slot_scan: bool
    condition: Predicate | None = None

    def select(self, names: pa.Table) -> pa.Table:
        """Return the names of keys of the table that meet its condition."""
        column = names.column("name")
        if self.pattern is None:
            names = names.filter(pc.starts_with(column, self.prefix))
        else:
            names = names.filter(pc.match_substring_regex(column, self.pattern))
        if self.condition is None or not names.num_rows:
            return names
        keys = self.model.keys(names.column("name").combine_chunks())
        batch = pa.record_batch([keys], schema=self.model.schema([self.model.key]))
        return names.filter(self.condition.mask(batch))


def read_page(request: PageRequest, space: KeySpace, progress: SlotProgress) -> Step:
    """Read a page at one master; returns `PageRows`."""
    positions = dict(_first_slots(request.cursors))
    suffix = b":elasticscan:" + os.urandom(6).hex().encode()
    opened = [slot for slot in positions if progress.asked.get(slot, 0) >= PASSES_BEFORE_OPEN]
    if opened:  # each on a page of its own
        positions = {opened[0]: positions[opened[0]]}
    page = _SlotPage(request, space, progress, positions)
    yield from _read_names(page, suffix, bool(opened))
    yield from page.read_values()
    return page.rows()


def _first_slots(cursors: Cursors) -> Iterator[tuple[int, bytes | None]]:
    """Yield up to `PAGE_SLOTS` slots with their positions; those that were begun come first."""
    left = PAGE_SLOTS
    for cursor in sorted(cursors, key=lambda cursor: cursor.position is None):
        for start, last in cursor.slots:
            end = min(last, start + left)
            left -= end - start
            for slot in range(start, end):
                yield slot, cursor.position
            if not left:
                return


def guarded(probe: bytes, *commands: Command) -> list[Command]:
    return [_MULTI, (b"EXISTS", probe), *commands, _EXEC]


def result_of(answers: Answers) -> list[Any] | Exception:
    """Return the results of a guarded transaction, or the error that refused it."""
    errors = [answer for answer in answers if isinstance(answer, RedisError)]
    if errors:
        return next((error for error in errors if not isinstance(error, ExecAbortError)), errors[0])
    results = answers[-1]
    if not isinstance(results, list):
        return TryAgainError("the transaction was discarded")
    failed = next((result for result in results if isinstance(result, RedisError)), None)
    if failed is not None:
        return failed
    return TryAgainError("the probe exists") if results[0] else results[1:]


def names_of(slot: int, most: int) -> tuple[Command, Command]:
    text = b"%d" % slot
    return (b"CLUSTER", b"COUNTKEYSINSLOT", text), (b"CLUSTER", b"GETKEYSINSLOT", text, b"%d" % most)


def _read_names(page: _SlotPage, suffix: bytes, is_open: bool) -> Step:
    """Read the names of a page's slots, all in one exchange; large slots take one each."""
    progress, space = page.progress, page.space
    slots = [slot for slot in page.positions if slot not in progress.names]
    if is_open:
        for slot in slots:
            yield from _read_open_slot(page, slot, suffix)
        return
    commands = [
        command
        for slot in slots
        for command in guarded(probe_of(space.prefix, slot, suffix), *names_of(slot, NAMES_AT_ONCE))
    ]
    answers = (yield Exchange(None, commands)) if commands else []
    many = []
    for at, slot in enumerate(slots):
        result = result_of(answers[5 * at : 5 * at + 5])
        if isinstance(result, Exception):
            page.refuse(slot, result)
        elif result[0] > len(result[1]):
            many.append((slot, result[0]))
        else:
            page.found[slot] = result[1]
    for number, (slot, count) in enumerate(many):
        if number:  # one for a page: its names may take much memory
            del page.positions[slot]
            continue
        names = yield from _read_large_slot(page, slot, count, suffix)
        if isinstance(names, Exception):
            page.refuse(slot, names)
        else:
            page.found[slot] = names


def _read_large_slot(page: _SlotPage, slot: int, count: int, suffix: bytes) -> Step:
    """Return the names of a slot with many keys, or the error that refused it."""
    space, probe = page.space, probe_of(page.space.prefix, slot, suffix)
    if count > SCANNED_NAMES and space.slot_scan:
        return (yield from _walk_slot(slot, probe))
    if count > space.max_slot_keys:
        raise slot_too_large(slot, count, space.max_slot_keys)
    answers = yield Exchange(None, guarded(probe, *names_of(slot, space.max_slot_keys)))
    result = result_of(answers)
    return result if isinstance(result, Exception) else result[1]


def _walk_slot(slot: int, probe: bytes) -> Step:
    """Return the names of a slot by SCAN, whose cursor holds the slot in its lowest bits.

    SCAN returns each key that is there throughout at least once; each of its steps is guarded.
    """
    names: set[bytes] = set()
    cursor = slot
    while True:
        scan = (b"SCAN", b"%d" % cursor, b"COUNT", b"%d" % SCAN_COUNT)
        result = result_of((yield Exchange(None, guarded(probe, scan))))
        if isinstance(result, Exception):
            return result
        cursor = int(result[0][0])
        names.update(result[0][1])
        if cursor == 0 or cursor % SLOTS != slot:
            return [name for name in names if slot_of(name) == slot]


def _read_open_slot(page: _SlotPage, slot: int, suffix: bytes) -> Step:
    """Read the names of a slot that is half moved, at its source and its target."""
    probe = probe_of(page.space.prefix, slot, suffix)
    names = names_of(slot, page.space.max_slot_keys)
    here = yield Exchange(None, [*names, (b"EXISTS", probe)])
    asked = here[2]
    if not _is_ask(asked):  # the move has ended, or was taken back
        page.progress.asked.pop(slot, None)
        page.refuse(slot, asked if isinstance(asked, Exception) else TryAgainError("it was open"))
        return
    there = yield Exchange(asked.node_addr, [*names])
    again = yield Exchange(None, [*names, (b"EXISTS", probe)])
    for answer in (*here[:2], *there, *again[:2]):
        if isinstance(answer, Exception):
            page.refuse(slot, answer)
            return
    for count, listed in ((here[0], here[1]), (there[0], there[1]), (again[0], again[1])):
        if count > len(listed) >= page.space.max_slot_keys:
            raise slot_too_large(slot, count, page.space.max_slot_keys)
    guard = again[2]
    if not _is_ask(guard) or guard.node_addr != asked.node_addr:
        page.refuse(slot, guard if isinstance(guard, Exception) else TryAgainError("it was open"))
    elif _came_back(here[1], again[1]):
        page.refuse(slot, TryAgainError("keys came back to it"))
    else:
        page.found[slot] = _in_either(here[1], there[1])
        page.targets[slot] = asked.node_addr


def _came_back(before: list[bytes], after: list[bytes]) -> bool:
    """Return whether a list of names at the source has one that an earlier list lacks."""
    return not set(before).issuperset(after)


def _in_either(here: list[bytes], there: list[bytes]) -> list[bytes]:
    return list({*here, *there})


class _SlotPage:
    """A page while it is read.

    Attributes:
        positions: the slots that it may read, with their positions.
        found: the names of the slots that are wholly here, unfiltered.
        targets: of slots that are read open, where the rest of their keys is.
    """

    def __init__(
        self,
        request: PageRequest,
        space: KeySpace,
        progress: SlotProgress,
        positions: dict[int, bytes | None],
    ) -> None:
        self.request, self.space, self.progress, self.positions = request, space, progress, positions
        self.found: dict[int, list[bytes]] = {}
        self.targets: dict[int, Address] = {}
        self._refused: set[int] = set()
        self._half_read: dict[int, bytes] = {}  # the positions of slots that are left
        self._untouched: set[int] = set()
        self._batches: list[pa.RecordBatch] = []
        self._slots: list[Slots] = []

    def refuse(self, slot: int, error: Exception) -> None:
        self.progress.refuse(slot, error)
        self._refused.add(slot)

    def read_values(self) -> Step:
        """Read values slot by slot, in chunks, until the page is full."""
        slots, names = self._names()
        rows = size = at = 0
        page_rows, page_bytes = self.request.page_rows, self.request.page_bytes
        while at < len(names) and rows < page_rows and size < page_bytes:
            chunk = min(self._chunk(page_bytes - size), page_rows - rows)
            some, where = names.slice(at, chunk), slots[at : at + chunk]
            batch, kept = yield from self._fetch(some, where)
            at += len(some)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            self._batches.append(batch)
            self._slots.append(kept)
            self._learn(len(some), batch)
        self._keep_rest(slots, names, at)

    def _chunk(self, room: int) -> int:
        """Return how many keys to read next, by the size of the rows before."""
        fitting = min(CHUNK_BYTES, room) / max(self.progress.row_bytes, 1.0)
        return max(1, min(int(fitting), self.progress.chunk))

    def _learn(self, keys: int, rows: pa.RecordBatch) -> None:
        """Adapt the next exchange: it has at most twice the keys, and keys that were gone say nothing."""
        if rows.num_rows:
            self.progress.row_bytes = max(rows.nbytes / rows.num_rows, self.progress.row_bytes / 2)
            self.progress.chunk = min(max(2 * keys, self.progress.chunk), MOST_CHUNK)

    def _names(self) -> tuple[Slots, pa.Array]:
        """Return the names to read with their slots: those kept from the last page, then by slot and name."""
        slots, names = [], []
        for slot in self.positions:
            if (kept := self.progress.names.get(slot)) is not None:
                slots.append(np.full(len(kept.names), slot, dtype=np.uint16))
                names.append(kept.names)
                if kept.target is not None:
                    self.targets[slot] = kept.target
        counts = [len(listed) for listed in self.found.values()]
        fresh = pa.table(
            {
                "slot": np.repeat(np.fromiter(self.found, np.uint16, len(counts)), counts),
                "name": pa.array([*chain.from_iterable(self.found.values())], pa.binary()),
            }
        )
        fresh = self.space.select(fresh)
        for slot in self.found:
            if (position := self.positions[slot]) is not None:
                passed = pc.and_(
                    pc.equal(fresh.column("slot"), slot), pc.less_equal(fresh.column("name"), position)
                )
                fresh = fresh.filter(pc.invert(passed))
        fresh = fresh.sort_by([("slot", "ascending"), ("name", "ascending")])
        slots.append(fresh.column("slot").to_numpy())
        names.append(fresh.column("name").combine_chunks())
        return np.concatenate(slots), pa.concat_arrays(names)

    def _fetch(self, names: pa.Array, slots: Slots) -> Step:
        """Return the rows of some keys, and their slots; refused slots and keys that are gone have none."""
        model, columns = self.space.model, self.request.columns
        listed = names.to_pylist()
        values = yield from self._read_each(model.commands(listed, columns), slots)
        left = None
        if model.ttl in columns:
            left = yield from self._read_each([(b"PTTL", name) for name in listed], slots)
        rows, there, unsure = model.read(names, values, left, columns)
        if unsure:
            exist = yield from self._read_each([(b"EXISTS", listed[at]) for at in unsure], slots[unsure])
            there[unsure] = [answer == 1 for answer in exist]
        return (rows, slots) if there.all() else (rows.filter(pa.array(there)), slots[there])

    def _read_each(self, commands: Sequence[Command], slots: Slots) -> Step:
        """Return the answers of commands that read a key each; None where the slot was refused."""
        answers = yield Exchange(None, commands)
        if not any(issubclass(kind, Exception) for kind in set(map(type, answers))):
            return answers
        for at in [at for at, answer in enumerate(answers) if isinstance(answer, Exception)]:
            slot, command, answer = int(slots[at]), commands[at], answers[at]
            if slot not in self._refused and _is_ask(answer) and answer.node_addr == self.targets.get(slot):
                _, answer = yield Exchange(answer.node_addr, [_ASKING, command])
                if answer in _NOT_THERE:  # deleted, or back at the source: the next list of names will tell
                    answer = TryAgainError("a key of an open slot was not found")
            if isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE"):
                raise wrong_type(command[1], self.space.model.kind)
            if isinstance(answer, Exception) and slot not in self._refused:
                self.refuse(slot, answer)
            answers[at] = None if isinstance(answer, Exception) else answer
        return answers

    def _keep_rest(self, slots: Slots, names: pa.Array, end: int) -> None:
        """Note where slots stand after the page, and keep the names that are left."""
        rest = slots[end:]
        if end and end < len(slots) and slots[end - 1] == slots[end]:
            self._half_read[int(slots[end])] = names[end - 1].as_py()
        for slot in self.positions:
            mine = np.flatnonzero(rest == slot)
            if slot in self._refused or not len(mine):
                self.progress.names.pop(slot, None)
                continue
            first, count = end + int(mine[0]), len(mine)
            self.progress.advance(slot)
            self.progress.names[slot] = SlotNames(names.slice(first, count), self.targets.get(slot))
            if slot not in self._half_read:
                self._untouched.add(slot)

    def rows(self) -> PageRows:
        """Return the answer: rows of refused slots are dropped, and their position stays."""
        refused = _slot_set(self._refused)
        rows = pa.Table.from_batches(self._batches, self.space.model.schema(self.request.columns))
        slots = np.concatenate([np.empty(0, dtype=np.uint16), *self._slots])
        if refused:
            stays = ~refused.mask(slots)
            rows, slots = rows.filter(pa.array(stays)), slots[stays]
        left = self._half_read.keys() | self._untouched
        for slot in self.positions.keys() - left - self._refused:
            self.progress.finish(slot)
        asked = _slot_set(self.positions)
        after = [Cursor(cursor.slots - asked, cursor.position) for cursor in self.request.cursors]
        after += [
            Cursor(SlotSet.span(slot, slot + 1), self._half_read.get(slot, self.positions[slot]))
            for slot in left - self._refused
        ]
        batches = rows.combine_chunks().to_batches()
        batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)
        scanned = len(slots)
        return PageRows(batch, pa.array(slots, pa.uint16()), merge(after), scanned, refused=refused)


def _is_ask(answer: Any) -> bool:
    """Return whether a slot is being moved away; the client's class for MOVED is a kind of that for ASK."""
    return isinstance(answer, AskError) and not isinstance(answer, MovedError)


def _slot_set(slots: Iterable[int]) -> SlotSet:
    return SlotSet.of((slot, slot + 1) for slot in slots)
