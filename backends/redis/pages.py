"""One page of a cluster's keys: the commands to send, and the meaning of their answers. Pure.

The rule, for slots at one master:

1. **Names.** For each slot one transaction: a guard, the count of its keys, and their names. The guard is an
   EXISTS of a key that does not exist and hashes to the slot. `GETKEYSINSLOT` alone answers for any slot,
   with the keys that are at the server. But a transaction with a keyed command is refused with MOVED if the
   server does not serve the slot, and with ASK or TRYAGAIN if the slot is being moved away. So one atomic
   step reads the names and proves that the whole slot is at this server.
2. **Values**, in chunks bounded in bytes. If a key answers ASK, it is read at the target of the move. A
   temporary error (`_WAITS`) refuses the whole slot: its rows are dropped, and its position stays. Other
   errors (WRONGTYPE, a missing permission) end the scan. A nil at the master means that the key was
   deleted. A nil at the target of a move may also mean that the key moved back, so it refuses the slot.
3. **Positions** are key names. Names are sorted, so a position means the same at every master.

A slot that answered ASK is read *open* in the next pass: names at the source, names at the target, names and
guard at the source again. Keys move in one direction, and the source deletes a key only when the target has
it, so a key that exists throughout is in the first or in the second list. If the third list has a name that
is not in the first, the direction was reversed, and the slot is read again later.

Commands are sent by an `Exchange`, so the same code runs against servers and against a simulated cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from redis.exceptions import (
    AskError,
    AuthenticationError,
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
from elasticscan.backends.redis.values import KeySpace
from elasticscan.base.errors import (
    ElasticScanError,
    InvalidOption,
    LimitExceeded,
    SchemaMismatch,
    ShardUnavailable,
)
from elasticscan.protocol import Cursor, Cursors, PageRequest, PageRows, merge
from elasticscan.topology import SlotSet

PAGE_SLOTS = 256
NAMES_AT_ONCE = 4_096  # names of a slot in the first request
FIRST_CHUNK, MOST_CHUNK = 4, 16_384  # keys of one exchange of values
CHUNK_BYTES = 4 << 20
ACL = (
    "+get +hmget +hscan +exists +pttl +multi +exec +asking +ping +cluster|getkeysinslot "
    "+cluster|countkeysinslot +cluster|nodes"
)

Command: TypeAlias = tuple[bytes, ...]
Answers: TypeAlias = list[Any]
# Sends several commands to a server, and returns their answers; errors are returned as values.
Exchange: TypeAlias = Callable[[Address, Sequence[Command]], Answers]
Slots: TypeAlias = NDArray[np.uint16]

_WAITS = (AskError, TryAgainError, ClusterDownError, BusyLoadingError, MasterDownError, ReadOnlyError)
_NOT_THERE = (None, 0, -2)  # answers of GET, EXISTS and PTTL for a key that does not exist
NO_NAMES = pa.table({"slot": pa.array([], pa.uint16()), "name": pa.array([], pa.binary())})
_MULTI, _EXEC, _ASKING = (b"MULTI",), (b"EXEC",), (b"ASKING",)


@dataclass(slots=True)
class SlotProgress:
    """The state of a scan's slots between pages, in one process.

    Attributes:
        rest: the names that the last page did not read, each with its slot.
        refusals: by slot, the number of refusals since it was last read, and the last error.
        row_bytes: the mean size of a row; 0 before the first row.
        chunk: the maximum number of keys in the next exchange of values.
    """

    rest: pa.Table = field(default_factory=lambda: NO_NAMES)
    refusals: dict[int, tuple[int, Exception]] = field(default_factory=dict)
    row_bytes: float = 0.0
    chunk: int = FIRST_CHUNK

    def refuse(self, slot: int, error: Exception) -> None:
        """Record a refusal of a slot. Raises if waiting cannot help."""
        if isinstance(error, ResponseError) and not isinstance(error, _WAITS):
            raise unexpected(error)
        times, _ = self.refusals.get(slot, (0, None))
        self.refusals[slot] = times + 1, error


def read_page(
    request: PageRequest, space: KeySpace, progress: SlotProgress, exchange: Exchange, home: Address
) -> PageRows:
    """Read a page at one master, `home`."""
    page = _SlotPage(request, space, progress, exchange, home, _first_slots(request.cursors))
    half_moved = (slot for slot, (_, error) in progress.refusals.items() if _is_ask(error))
    opened = next((slot for slot in half_moved if slot in page.positions), None)
    if opened is None:
        page.list_names()
    else:
        page.positions = {opened: page.positions[opened]}  # an open slot has a page for itself
        page.list_open_slot(opened)
    return page.read()


def _first_slots(cursors: Cursors) -> dict[int, bytes | None]:
    """Return up to `PAGE_SLOTS` slots with their positions; partly read slots are first."""
    positions: dict[int, bytes | None] = {}
    for cursor in sorted(cursors, key=lambda cursor: cursor.position is None):
        for start, end in cursor.slots:
            chosen = range(start, min(end, start + PAGE_SLOTS - len(positions)))
            positions |= dict.fromkeys(chosen, cursor.position)
    return positions


def guarded(probe: bytes, *commands: Command) -> list[Command]:
    return [_MULTI, (b"EXISTS", probe), *commands, _EXEC]


def results_of(answers: Answers) -> list[Any] | Exception:
    """Return the results of a transaction, or the error that refused it."""
    results = answers[-1] if isinstance(answers[-1], list) else []
    errors = [answer for answer in (*answers, *results) if isinstance(answer, RedisError)]
    if errors:
        return next((error for error in errors if not isinstance(error, ExecAbortError)), errors[0])
    return results or TryAgainError("the transaction was discarded")


def _each(width: int, answers: Answers, before: int = 0) -> list[Any]:
    """Return the answer for each key, to one command or a guarded transaction; None for a deleted key."""
    if width == 1:
        return answers[before :: 1 + before]
    starts = range(before, len(answers), before + width)
    results: list[Any] = [results_of(answers[start : start + width]) for start in starts]
    return [each if isinstance(each, Exception) else each[1] if each[0] else None for each in results]


def names_of(slot: int, most: int) -> tuple[Command, Command]:
    text = b"%d" % slot
    return (b"CLUSTER", b"COUNTKEYSINSLOT", text), (b"CLUSTER", b"GETKEYSINSLOT", text, b"%d" % most)


def _came_back(before: list[bytes], after: list[bytes]) -> bool:
    """Return whether a list of names at the source has one that an earlier list lacks."""
    return not set(before).issuperset(after)


def _in_either(here: list[bytes], there: list[bytes]) -> list[bytes]:
    return list({*here, *there})


@dataclass(slots=True)
class _SlotPage:
    """A page while it is read.

    Attributes:
        positions: the slots that it may read, with their positions.
        found: the listed names of slots, unfiltered.
        refused: the slots that were not read.
    """

    request: PageRequest
    space: KeySpace
    progress: SlotProgress
    exchange: Exchange
    home: Address
    positions: dict[int, bytes | None]
    found: dict[int, list[bytes]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)

    def enter(self, slot: int, names: list[bytes] | Exception) -> None:
        """Enter the names of a slot, or the error that refused it."""
        if isinstance(names, Exception):
            if slot not in self.refused:
                self.progress.refuse(slot, names)
                self.refused.add(slot)
            return
        position = self.positions[slot]
        self.found[slot] = names if position is None else [name for name in names if name > position]

    def list_names(self) -> None:
        """List the names of the page's slots in one exchange, and of at most one large slot in another."""
        known = set(self.progress.rest["slot"].unique().to_pylist())
        large = self._list([slot for slot in self.positions if slot not in known], NAMES_AT_ONCE)
        for slot in large[1:]:  # a page has at most one large slot, whose names may need much memory
            del self.positions[slot]
        if self._list(large[:1], self.space.options.max_slot_keys):
            raise self._too_large(large[0])

    def _list(self, slots: Sequence[int], most: int) -> list[int]:
        """Enter the names of slots; return the slots with more than `most` keys."""
        asked = [guarded(self.space.probe(slot), *names_of(slot, most)) for slot in slots]
        answers = self.exchange(self.home, [*chain.from_iterable(asked)])
        large = []
        for at, slot in enumerate(slots):
            result = results_of(answers[5 * at : 5 * at + 5])
            if not isinstance(result, Exception) and result[1] > len(result[2]):
                large.append(slot)
            else:
                self.enter(slot, result if isinstance(result, Exception) else result[2])
        return large

    def list_open_slot(self, slot: int) -> None:
        """List the names of a slot during its move: at its source, its target, and its source again."""
        here, guard = self._names_at(slot, self.home)
        if not _is_ask(guard):  # the move has ended, or was reversed
            return self.enter(slot, guard)
        there, _ = self._names_at(slot, guard.node_addr)
        again, last = self._names_at(slot, self.home)
        refused = next((each for each in (here, there, again) if isinstance(each, Exception)), None)
        if refused is None and not (_is_ask(last) and last.node_addr == guard.node_addr):
            refused = last
        elif refused is None and _came_back(here, again):
            refused = TryAgainError("keys came back to it")
        self.enter(slot, refused or _in_either(here, there))

    def _names_at(self, slot: int, address: Address) -> tuple[Any, Any]:
        """Return the names of a slot's keys at a server, or an error, and the error of the guard."""
        most = self.space.options.max_slot_keys
        asked = [*names_of(slot, most), (b"EXISTS", self.space.probe(slot))]
        count, names, guard = self.exchange(address, asked)
        if isinstance(count, Exception) or isinstance(names, Exception):
            return count if isinstance(count, Exception) else names, guard
        if count > len(names) >= most:
            raise self._too_large(slot)
        return names, guard if isinstance(guard, Exception) else TryAgainError("it was open")

    def _too_large(self, slot: int) -> LimitExceeded:
        most = self.space.options.max_slot_keys
        return LimitExceeded(
            f"slot {slot} holds more keys than maxSlotKeys, {most:,}; raise it, or spread the keys",
            slot=slot,
            most=most,
        )

    def read(self) -> PageRows:
        """Read values in the order of slots and names, until the page is full.

        Rows of refused slots are left out, and their position stays.
        """
        names, progress = self._names(), self.progress
        page_rows, page_bytes, schema = self.request.page_rows, self.request.page_bytes, self.space.schema
        batches, kept, at, rows, size = list[pa.RecordBatch](), [np.empty(0, np.uint16)], 0, 0, 0
        while at < len(names) and rows < page_rows and size < page_bytes:
            # As many keys as should fit, by the size of earlier rows; at most twice an earlier exchange.
            fitting = int(min(CHUNK_BYTES, page_bytes - size) / max(progress.row_bytes, 1.0))
            chunk = min(max(1, min(fitting, progress.chunk)), page_rows - rows, len(names) - at)
            batch, slots = self._fetch(names.slice(at, chunk))
            at, rows, size = at + chunk, rows + batch.num_rows, size + batch.nbytes
            batches.append(batch)
            kept.append(slots)
            if batch.num_rows:  # deleted keys say nothing about the size of rows
                progress.row_bytes = max(batch.nbytes / batch.num_rows, progress.row_bytes / 2)
                progress.chunk = min(max(2 * chunk, progress.chunk), MOST_CHUNK)
        left = self._keep_rest(names, at)
        found, slots = pa.Table.from_batches(batches, schema(self.request.columns)), np.concatenate(kept)
        refused, asked = slot_set(self.refused), slot_set(self.positions)
        if refused:
            stays = ~refused.mask(slots)
            found, slots = found.filter(pa.array(stays)), slots[stays]
        for slot in self.positions.keys() - self.refused:
            progress.refusals.pop(slot, None)
        after = [Cursor(cursor.slots - asked, cursor.position) for cursor in self.request.cursors]
        after += [Cursor(SlotSet.span(slot, slot + 1), position) for slot, position in left.items()]
        batch = pa.RecordBatch.from_struct_array(found.to_struct_array().combine_chunks())
        return PageRows(batch, pa.array(slots), merge(after), len(slots), refused=refused)

    def _names(self) -> pa.Table:
        """Return names to read and their slots: first the rest of the last page, then by slot and name."""
        counts = [len(listed) for listed in self.found.values()]
        slots = np.repeat(np.fromiter(self.found, np.uint16, len(counts)), counts)
        names = pa.array([*chain.from_iterable(self.found.values())], pa.binary())
        fresh = self.space.select(pa.table({"slot": slots, "name": names}))
        fresh = fresh.sort_by([("slot", "ascending"), ("name", "ascending")])
        return pa.concat_tables([_of_slots(self.progress.rest, self.positions), fresh])

    def _keep_rest(self, names: pa.Table, end: int) -> dict[int, bytes | None]:
        """Keep the names that were not read; return the positions of their slots after the page."""
        unread = names.slice(end)
        rest = self.progress.rest = _of_slots(unread, self.positions.keys() - self.refused)
        left = {slot: self.positions[slot] for slot in rest["slot"].unique().to_pylist()}
        if end and (last := names["slot"][end - 1].as_py()) in left:  # it has rows in this page, too
            left[last] = names["name"][end - 1].as_py()
        return left

    def _fetch(self, asked: pa.Table) -> tuple[pa.RecordBatch, Slots]:
        """Return the rows of keys with their slots, without refused slots and deleted keys."""
        slots, names = asked["slot"].to_numpy(), asked["name"].combine_chunks()
        space, columns = self.space, self.request.columns
        listed = names.to_pylist()
        commands = space.commands(listed, columns)
        values = self._read_each(commands, slots)
        # If a hash has none of the fields, its key may not exist. One transaction for each such key reads the
        # fields again and checks that the key exists, because the key may have been set meanwhile.
        unsure = [
            at for at, each in enumerate(values) if isinstance(each, list) and each.count(None) == len(each)
        ]
        if unsure:
            both = [guarded(listed[at], commands[at]) for at in unsure]
            again = self._read_each([*chain.from_iterable(both)], slots[unsure], len(both[0]))
            for at, value in zip(unsure, again, strict=True):
                values[at] = value
        left = None
        if space.options.ttl_column in columns:
            left = self._read_each([(b"PTTL", name) for name in listed], slots)
        rows, there = space.read(names, values, left, columns)
        return (rows, slots) if there.all() else (rows.filter(pa.array(there)), slots[there])

    def _read_each(self, commands: Sequence[Command], slots: Slots, width: int = 1) -> list[Any]:
        """Return the answer for each key to `width` commands; None for deleted keys and refused slots.

        A key that moved after its name was listed is read at its new master. If it is missing there, too, it
        was deleted or moved back: its slot is refused, and its names are listed again.
        """
        answers = _each(width, self.exchange(self.home, commands))
        failed = [at for at, answer in enumerate(answers) if isinstance(answer, Exception)]
        for target in dict.fromkeys(answers[at].node_addr for at in failed if _is_ask(answers[at])):
            asked = [at for at in failed if _is_ask(answers[at]) and answers[at].node_addr == target]
            again = [(_ASKING, *commands[at * width : (at + 1) * width]) for at in asked]
            moved = self.exchange(target, [*chain.from_iterable(again)])
            for at, answer in zip(asked, _each(width, moved, 1), strict=True):
                gone = TryAgainError("a key that was moved away was not found")
                answers[at] = gone if answer in _NOT_THERE else answer
        for at in failed:
            answer = answers[at]
            if isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE"):
                raise SchemaMismatch(
                    f"key {commands[at][1].decode(errors='replace')!r} holds no {self.space.options.model}; "
                    "choose another model or a narrower keysPattern"
                )
            if isinstance(answer, Exception):
                self.enter(int(slots[at]), answer)
                answers[at] = None
        return answers


def unexpected(error: Exception) -> ElasticScanError:
    """Return the error of elasticscan for an answer that waiting cannot change."""
    if isinstance(error, NoPermissionError):
        return ShardUnavailable(
            f"the user lacks a permission ({error}); grant it: ACL SETUSER name {ACL} %R~<table>:*", acl=ACL
        )
    if "cluster support disabled" in str(error):
        return InvalidOption(
            "the server is not in cluster mode; start it with cluster-enabled yes", option="url"
        )
    is_login = isinstance(error, AuthenticationError)
    hint = "check user and password, which every node needs" if is_login else "see docs/redis.md"
    return ShardUnavailable(f"a server of the cluster refuses a request ({error!s:.200}); {hint}")


def _of_slots(names: pa.Table, slots: Iterable[int]) -> pa.Table:
    return names.filter(pa.array(np.isin(names["slot"].to_numpy(), list(slots))))


def _is_ask(answer: Any) -> bool:
    """Return whether a slot is being moved away; the client's class for MOVED is a kind of that for ASK."""
    return isinstance(answer, AskError) and not isinstance(answer, MovedError)


def slot_set(slots: Iterable[int]) -> SlotSet:
    return SlotSet.of((slot, slot + 1) for slot in slots)
