"""A Redis cluster in memory, driven by one seed: what its masters answer while slots move between them.

It answers the commands that a page sends as a server does: a key is refused with MOVED where its slot is not
served, with ASK where the slot is being moved away and the key is not there (any more), and COUNTKEYSINSLOT
and GETKEYSINSLOT answer for any slot from whatever lies at the server. Between two commands anything may
happen, and within a transaction nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from redis.exceptions import AskError, MovedError, ResponseError

from elasticscan.backends.redis import pages, scan
from elasticscan.backends.redis.cluster_map import Address, ClusterMap, parse_map
from elasticscan.backends.redis.names import SLOTS, slot_of
from elasticscan.backends.redis.options import ClusterOptions, Kind, TableOptions
from elasticscan.backends.redis.scan import ClusterShards
from elasticscan.backends.redis.values import KeySpace
from elasticscan.protocol import Cursor, Cursors, PageRequest
from elasticscan.reader import ScanPlan, ScanStats, drive
from elasticscan.topology import SlotSet

FIELDS = pa.schema([("key", pa.string()), ("value", pa.string()), ("left", pa.int64())])
PREFIXES = (b"t:", b"t:{", b"t:{1")  # the last two end within a hash tag


@dataclass(slots=True, eq=False)
class Master:
    """A master: the keys that lie at it, and what it says of slots."""

    address: Address
    keys: dict[int, dict[bytes, bytes]] = field(default_factory=dict)  # by slot
    migrating: dict[int, Master] = field(default_factory=dict)
    importing: dict[int, Master] = field(default_factory=dict)


class SimulatedCluster:
    """Stands in the place of `Connections`."""

    def __init__(self, chance: random.Random, slots: Sequence[int], masters: int) -> None:
        self.random, self.slots = chance, list(slots)
        self.masters = [Master(("node", number)) for number in range(1, masters + 1)]
        self.owners = np.arange(SLOTS) * masters // SLOTS  # by slot, the place of its master in the list
        self.options = ClusterOptions(seeds=(), slot_timeout=1e9)
        self.changes_left = 0
        self.during: Callable[[], None] = lambda: None
        self.leaves = 0.0  # how often copies of keys stay behind
        self.at_once = chance.choice([0.2, 0.9])  # how often a slot moves in one step
        self.writes = chance.choice([0.1, 0.5])  # how often a key is written in between
        self.turned = chance.choice([0.0, 0.2, 0.4])  # how often a move is turned back
        self.turning: set[int] = set()
        self.map = self.read_map()

    # What a scan asks

    def read_map(self) -> ClusterMap:
        ends = [*np.flatnonzero(np.diff(self.owners)) + 1, SLOTS]
        ranges: dict[int, str] = dict.fromkeys(range(len(self.masters)), "")
        for start, end in pairwise([0, *ends]):
            ranges[int(self.owners[start])] += f" {start}-{end - 1}"
        lines = [
            "id{} {}:{}@1 master - 0 0 1 connected{}".format(number, *m.address, ranges[number])
            for number, m in enumerate(self.masters)
        ]
        self.map = parse_map("\n".join(lines), ("node", 0), {})
        return self.map

    def exchange(self, address: Address, commands: Sequence[tuple[bytes, ...]]) -> list[Any]:
        if self.changes_left > 0 and self.random.random() < 0.03:  # the line is cut, or its master killed
            self.changes_left -= 1
            self.happen()
            if self.random.random() < 0.3:
                self.fail_over(next((m for m in self.masters if m.address == address), None))
            raise ConnectionResetError("the line was cut")
        master = next((m for m in self.masters if m.address == address), None)
        if master is None:
            raise ConnectionRefusedError("it was killed")
        answers: list[Any] = []
        queued: list[tuple[bytes, ...]] | None = None
        asking = False
        for command in commands:
            if queued is None or command[0] == b"EXEC":
                self.happen()
            if command[0] == b"PING":
                answer = b"PONG"
            elif command[0] == b"MULTI":
                queued, answer = [], b"OK"
            elif command[0] == b"EXEC":
                assert queued is not None
                answer, queued, asking = self._execute(master, queued, asking), None, False
            elif queued is not None:
                queued.append(command)
                answer = b"QUEUED"
            elif command[0] == b"ASKING":
                asking, answer = True, b"OK"
            else:
                answer, asking = self._answer(master, command, asking), False
            answers.append(answer)
        return answers

    def _execute(self, master: Master, queued: list[tuple[bytes, ...]], asking: bool) -> Any:
        answers = [self._answer(master, command, asking) for command in queued]
        refused = next((answer for answer in answers if isinstance(answer, ResponseError)), None)
        return answers if refused is None else refused

    def _answer(self, master: Master, command: tuple[bytes, ...], asking: bool) -> Any:
        if command[0] == b"CLUSTER":
            here = master.keys.get(int(command[2]), {})
            return len(here) if command[1] == b"COUNTKEYSINSLOT" else list(here)[: int(command[3])]
        slot = slot_of(command[1])
        here = master.keys.get(slot, {})
        owner = self.owner_of(slot)
        if owner is master:
            if slot in master.migrating and command[1] not in here:
                return AskError("{} {}:{}".format(slot, *master.migrating[slot].address))
        elif not (asking and slot in master.importing):
            return MovedError("{} {}:{}".format(slot, *owner.address))
        value = here.get(command[1])
        if command[0] == b"HMGET":
            return [value] * len(command[2:])
        if command[0] == b"PTTL":
            return -2 if value is None else -1
        return value if command[0] == b"GET" else int(value is not None)

    # What happens to a cluster

    def happen(self) -> None:
        """Perhaps one change: a key or a whole slot moves, a move begins, ends or is turned back, a write."""
        if self.changes_left <= 0 or self.random.random() < 0.5:
            return
        self.changes_left -= 1
        if self.random.random() < self.writes:
            return self.during()
        slot = self.random.choice(self.slots)
        owner = self.owner_of(slot)
        target = owner.migrating.get(slot)
        if target is None:
            other = self.random.choice([m for m in self.masters if m is not owner])
            if self.random.random() < self.at_once:  # as Valkey 9 does
                self.hand_over(slot, owner, other)
            else:
                other.keys.pop(slot, None)
                owner.migrating[slot], other.importing[slot] = other, owner
            return
        here, there = owner.keys.setdefault(slot, {}), target.keys.setdefault(slot, {})
        if there and self.random.random() < self.turned:  # keys go one way, and after that only back
            self.turning.add(slot)
        if slot in self.turning:
            if there:
                key = self.random.choice(list(there))
                here[key] = there.pop(key)
            else:
                self._close(slot, owner, target)
        elif here:
            key = self.random.choice(list(here))
            there[key] = here.pop(key)
        else:
            self.hand_over(slot, owner, target)

    def hand_over(self, slot: int, owner: Master, target: Master) -> None:
        """Let another master serve a slot; copies of its keys may stay behind."""
        moved = owner.keys.pop(slot, {})
        if slot not in target.importing:
            target.keys.pop(slot, None)
        target.keys.setdefault(slot, {}).update(moved)
        if self.random.random() < self.leaves:
            owner.keys[slot] = dict.fromkeys(moved, b"stale")
        self._close(slot, owner, target)
        self.owners[slot] = self.masters.index(target)

    def fail_over(self, master: Master | None) -> None:
        """Let a replica take the place of a master, with all of its keys, at another address."""
        if master is not None and not master.migrating and not master.importing:
            master.address = ("node", max(m.address[1] for m in self.masters) + 1)

    def _close(self, slot: int, owner: Master, target: Master) -> None:
        owner.migrating.pop(slot, None)
        target.importing.pop(slot, None)
        self.turning.discard(slot)

    def settle(self) -> None:
        """End all moves; nothing happens any more."""
        self.changes_left = 0
        for owner in self.masters:
            for slot, target in list(owner.migrating.items()):
                self.hand_over(slot, owner, target)

    def owner_of(self, slot: int) -> Master:
        return self.masters[self.owners[slot]]

    def write(self, key: bytes, value: bytes | None) -> None:
        """Write or delete a key, as a client that follows redirects does."""
        slot = slot_of(key)
        owner = self.owner_of(slot)
        target = owner.migrating.get(slot)
        here = owner if target is None or key in owner.keys.get(slot, {}) else target
        if value is None:
            here.keys.get(slot, {}).pop(key, None)
        else:
            here.keys.setdefault(slot, {})[key] = value


class Program:
    """One scan of a simulated cluster: keys that stay must come once, others at most once.

    The names of keys begin with a prefix, whose hash tag may be open: `t:{` with `{1}7` as `t:{1}7`.
    """

    def __init__(self, seed: int) -> None:
        self.seed, chance = seed, random.Random(seed)
        self.random = chance
        tags = [str(number).encode() for number in range(chance.randint(1, 12))]
        self.cluster = SimulatedCluster(chance, [slot_of(tag) for tag in tags], chance.randint(2, 4))
        kind: Kind = chance.choice(["string", "hash"])
        left = "left" if chance.random() < 0.3 else None
        prefix = chance.choice(PREFIXES)
        tags = [tag for tag in tags if (b"t:{" + tag).startswith(prefix)]
        options = TableOptions(f"{prefix.decode()}*", model=kind, ttl_column=left, max_slot_keys=1_000)
        self.space = KeySpace(options, FIELDS)
        self.columns = ("key", "value", *([] if left is None else ["left"]))
        self.stays = {
            b"t:{%b}%d" % (tag, number): b"v" for tag in tags for number in range(chance.randint(0, 9))
        }
        for key, value in self.stays.items():
            self.cluster.write(key, value)
        self.tags = tags or [b"1"]
        self.got: Counter[str] = Counter()
        self.cluster.during, self.cluster.leaves = self._write, chance.choice([0.0, 0.5])

    def run(self) -> None:
        chance, cluster = self.random, self.cluster
        reader = ClusterShards(cluster, self.space)  # type: ignore[arg-type]
        slots = SlotSet.of((slot, slot + 1) for slot in cluster.slots)
        cursors: Cursors = (Cursor(slots),)
        cluster.changes_left = chance.randint(0, 300)
        page_rows, pages = chance.choice([1, 2, 5, 1_000]), 0
        while cursors:
            request = PageRequest(0, 0, cursors, 0, self.columns, page_rows, 1 << 20)
            for page in drive(ScanPlan(request, reader.read(), slots), reader, reader, ScanStats()):
                pages += 1
                self.got.update(page.rows.column("key").to_pylist())
                values = set(page.rows.column("value").to_pylist())
                assert values <= {"v", "w"}, f"seed {self.seed}: a value that no key had"
                cursors = page.after
                self._write()
                assert pages < 2_000, f"seed {self.seed}: the scan does not end"
                if chance.random() < 0.1:  # resumed elsewhere
                    reader = ClusterShards(cluster, self.space)  # type: ignore[arg-type]
                    break
            if chance.random() < 0.2 or not cluster.changes_left:
                cluster.settle()
        expected = {key.decode() for key in self.stays}
        lost, twice = expected - self.got.keys(), {key for key, times in self.got.items() if times > 1}
        assert not lost and not twice, f"seed {self.seed}: lost {lost}, repeated {twice}"

    def _write(self) -> None:
        """Other keys come and go."""
        for _ in range(self.random.randint(0, 2)):
            key = b"t:{%b}x%d" % (self.random.choice(self.tags), self.random.randrange(3))
            self.cluster.write(key, self.random.choice([None, b"w"]))


def run_program(seed: int) -> None:
    """Run a program in which some slots are large, and no one waits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "NAMES_AT_ONCE", 5)
        patch.setattr(scan.time, "sleep", lambda _: None)
        Program(seed).run()
