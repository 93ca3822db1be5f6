"""Random programs of a store that is kept: keepers, tags, restores, backups and change reads during writes.

A keeper of such a program has bounds that a few rows break. Others are let in before each of its steps,
between a merge and its swap, and wherever a page or a write lets them in; there it may be killed, which
leaves its step entered and its files behind, or be silent so long that others take its step over while it
goes on. At the end one keeper goes round until nothing is due. Then no step, no move and no file is left
over, no slot is read from more fragments than the policy has, and every tag is exact.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import SnapshotExpired
from elasticscan.base.limits import LEASE_SECONDS, SILENT_SECONDS
from elasticscan.metadata import Fragment
from elasticscan.store import Store
from elasticscan.store.copies.backup import BackedUp
from elasticscan.store.moves.balancing import Balance
from elasticscan.store.moves.mover import Mover
from elasticscan.store.moves.owners import owning
from elasticscan.store.moves.under_way import moves_in
from elasticscan.store.upkeep import compaction, keeper
from elasticscan.store.upkeep.after_commit import AfterCommit
from elasticscan.store.upkeep.executor import Executor, claim
from elasticscan.store.upkeep.keeper import Keeper
from elasticscan.store.upkeep.planning import Policy, depth_of, is_current, parts_of
from elasticscan.store.upkeep.steps import steps_in
from tests.base.manual_clock import ManualClock
from tests.store.random_programs import DEAD_OWNER, Program, comparable, rows_of
from tests.store.random_tables import TABLES, WIDER

MOST_ROUNDS = 12  # of the last keeper, until nothing is due


class KeeperKilled(BaseException):
    """The process of a keeper died here; so nobody catches it by name."""


@dataclass(slots=True)
class _Life:
    """A keeper: what becomes of it, after so many points, of those at its depth of nesting."""

    fate: str
    points: int
    depth: int


def some_policy(chance: random.Random) -> Policy:
    """Bounds that a few rows break, and that can be kept with files of a few kilobytes."""
    return Policy(
        slot_fragments=chance.choice([3, 3, 4, 6]),
        history_fragments=chance.choice([3, 5]),
        small_bytes=chance.choice([1, 3_000, 1 << 20]),
        small_tier_bytes=chance.choice([1, 20_000]),
        step_bytes=chance.choice([3_000, 30_000, 1 << 20]),
        most_pieces=chance.choice([3, 64]),
        tidy_share=chance.choice([0.1, 3.0]),
        garbage_files=1,
        balance=Balance(
            split_bytes=chance.choice([9_000, 40_000]),
            join_bytes=chance.choice([500, 4_000]),
            fewest_tablets=chance.choice([2, 6]),
            share=0.25,
            bytes=chance.choice([8_000, 50_000]),
        ),
    )


class KeptProgram(Program):
    """A random program of the styles "keepers" and "kept columns change"."""

    def __init__(
        self, store: Store, other: Store, clock: ManualClock, rng: random.Random, style: str
    ) -> None:
        super().__init__(store, other, clock, rng, style)
        self.policy, self.keepers = some_policy(rng), list[_Life]()
        self.at_once = rng.choice([3, 5, 32])
        self.tagged: dict[str, dict[str, int]] = {name: {} for name in TABLES}
        self.tags_made, self.backups, self.backing_up = 0, 0, False
        self.backed_up: list[tuple[BackedUp, Path]] = []
        self.overwrites: dict[str, list[int]] = {name: [] for name in TABLES}
        for writer in (store, other):
            if rng.random() < 0.5:
                writer.context.upkeep = AfterCommit(writer.context, self.policy)

    def run(self) -> None:
        """Run it while what dies in it leaves everything as it is."""
        discard, undo = compaction.discard, Mover._undo
        work, end = AfterCommit._work, Executor.end

        def leave_or_discard(*args: Any) -> None:
            if not _is_dying():
                discard(*args)

        def leave_or_undo(mover: Mover, progress: Any) -> bool:
            return not _is_dying() and undo(mover, progress)

        def leave_or_end(executor: Executor, target: str) -> None:
            end(executor, target)
            if _is_dying():  # it would have been left there
                with self.store.context.catalog.writing() as tx:
                    claim(tx, target, DEAD_OWNER)

        def work_alone(after: AfterCommit, pending: Any) -> None:
            """The commit is not written down yet, so nobody else may commit."""
            with self._alone():
                work(after, pending)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compaction, "discard", leave_or_discard)
            patch.setattr(compaction, "MOST_AT_ONCE", self.at_once)
            patch.setattr(Mover, "_undo", leave_or_undo)
            patch.setattr(AfterCommit, "_work", work_alone)
            patch.setattr(Executor, "end", leave_or_end)
            try:
                super().run()
            finally:
                for place in [self._beside("copy"), *map(self._backup_place, range(1, self.backups + 1))]:
                    shutil.rmtree(place, ignore_errors=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        noise, self.noise_left = self.noise_left, 0
        try:
            yield
        finally:
            self.noise_left = noise

    # Keepers

    def _keep(self) -> None:
        """A round of a keeper, which may be killed in it, or be taken for dead and go on."""
        life = _Life(
            self.random.choice(["ends", "dies", "dies", "is silent"]), self.random.randint(1, 6), self.depth
        )
        store, collections = self.some_store, self.collections

        def before_step(_: str) -> None:
            self.let_others_in()

        self.keepers.append(life)
        try:
            with pytest.MonkeyPatch.context() as patch:
                named = _elsewhere(self.versions, len(self.keepers)) if life.fate == "is silent" else owning
                patch.setattr(keeper, "owning", named)
                kept = Keeper(store.context, self.policy, on_step=before_step).keep()
        except KeeperKilled:
            pass
        else:
            assert not kept.problems or self.collections > collections, kept.problems
        finally:
            self.keepers.remove(life)

    def let_others_in(self, noise: float | None = None) -> None:
        """As of all programs; then it may be the end of the keeper that is at work."""
        super().let_others_in(noise)
        life = self.keepers[-1] if self.keepers else None
        if life is None or life.depth != self.depth or life.fate == "ends":
            return
        life.points -= 1
        if life.points == 0 and life.fate == "dies":
            raise KeeperKilled
        if life.points == 0:
            self.clock.advance(SILENT_SECONDS + 1)
            super().let_others_in(1.0)

    # Tags and restores

    def _scanned_snapshot(self, table: str, newest: int) -> int:
        tagged = list(self.tagged[table].values())
        if self.changes_columns and tagged and self.random.random() < 0.4:
            return self.random.choice(tagged)
        return super()._scanned_snapshot(table, newest)

    def _tag(self) -> None:
        table = self.random.choice(list(TABLES))
        snapshot, name = self._some_snapshot(table), f"t{self.tags_made}"
        self.tags_made += 1
        made = self.some_store.table(table).tag(name, snapshot)
        assert made.snapshot == snapshot
        self.tagged[table][name] = snapshot

    def _drop_tag(self) -> None:
        some = [(table, name) for table, tags in self.tagged.items() for name in tags]
        if some:
            table, name = self.random.choice(some)
            self.some_store.table(table).drop_tag(name)
            del self.tagged[table][name]

    def _read_tag(self) -> None:
        """All rows of a tag's snapshot, while others are let in, who may drop it."""
        some = [(table, name) for table, tags in self.tagged.items() for name in tags]
        if some:
            table, name = self.random.choice(some)
            began = self.clock.now()
            try:
                self._check_tag(table, name, self.random.choice([2, 10, 65_536]))
            except SnapshotExpired:
                assert self.clock.now() > began + LEASE_SECONDS, "a leased snapshot expired"

    def _check_tag(self, table: str, name: str, page_rows: int) -> None:
        snapshot, names = self.tagged[table][name], self.schemas[table].names
        expected = Counter(map(comparable, self.rows_at(table, snapshot).values()))
        scan = self.some_store.table(table).scan(names, snapshot=name, page_rows=page_rows)
        got = Counter(row for page in scan for row in rows_of(page))
        assert got == expected, f"tag {name} of {table} at {snapshot}"

    def _some_snapshot(self, table: str) -> int:
        """One that is kept."""
        oldest = self.store.table(table).definition.oldest_snapshot
        newest = self.store.context.catalog.versions()[1]
        return self.random.choice([newest, oldest, self.random.randint(oldest, newest)])

    def _restore(self) -> None:
        table = self.random.choice(list(TABLES))
        named, to = self.tagged[table], self._some_snapshot(table)
        name = self.random.choice(list(named)) if named and self.random.random() < 0.5 else None
        to, began = named.get(name or "", to), self.clock.now()
        handle = self.some_store.table(table)
        try:
            number = self._try(lambda: handle.restore(to))
        except SnapshotExpired:
            oldest, late = handle.definition.oldest_snapshot, self.clock.now() > began + LEASE_SECONDS
            assert oldest > to or late, f"{table} can be read at {to}, and not be restored to it"
            assert name not in self.tagged[table] or late, "a tag keeps its snapshot"
            return
        if number is not None:
            before, after = self.rows_at(table, number - 1), self.rows_at(table, to)
            there = before.keys() | after.keys()
            replaced = any(to < other < number for other in self.overwrites[table])
            touched = there if replaced else there & self._touched(table, to, number - 1)
            rows = {key: self._whole(table, row) for key, row in after.items()}
            self._note(table, number, rows, touched)

    def _overwrite(self) -> None:
        commits = {table: len(history) for table, history in self.history.items()}
        super()._overwrite()
        for table, history in self.history.items():
            if len(history) > commits[table]:
                self.overwrites[table].append(history[-1][0])

    def _change_where(self) -> None:
        began = self.clock.now()
        try:
            super()._change_where()
        except SnapshotExpired:
            assert self.clock.now() > began + LEASE_SECONDS, "what it needs has a lease, and expired"

    # Copies and changes

    def _back_up(self) -> None:
        """A backup while others are let in, and what a store that is made of it holds."""
        if self.backups >= 3 or self.backing_up:
            return
        self.backups += 1
        target, copy = self._backup_place(self.backups), self._beside("copy")
        definitions = {table: max(those) for table, those in self.definitions.items()}
        is_only_one = self.random.choice([False, True])
        self.backing_up = True
        try:
            made = self.some_store.backup(target)
        finally:
            self.backing_up = False
        if is_only_one:  # the others are removed, which this one does not need
            for _, older in self.backed_up:
                shutil.rmtree(older)
            self.backed_up.clear()
        self.backed_up.append((made, target))
        one, place = self.random.choice(self.backed_up) if self.changes_columns else (made, target)
        with self._alone(), Store.from_backup(place, copy, clock=self.clock) as other:
            assert other.verify() == []
            for table in TABLES:
                definition = other.table(table).definition.definition
                assert one is not made or definition >= definitions[table], "a change of columns is missing"
                self._check_copy(other, table, one.snapshot)
            if self.changes_columns:
                self._live_on(other, self.random.choice(list(TABLES)), one.snapshot)
        shutil.rmtree(copy)

    def _check_copy(self, copy: Store, table: str, newest: int) -> None:
        """A table of a backup has the columns and the rows that it had then, at its tags, too."""
        handle = copy.table(table)
        number = handle.definition.definition
        schema = self.definitions[table][number][0]
        assert (handle.schema.names, handle.schema.types) == (schema.names, schema.types)
        for snapshot, asked in [(newest, None), *((tag.snapshot, tag.name) for tag in handle.tags())]:
            rows = self.rows_at(table, snapshot, number).values()
            got = Counter(row for page in handle.scan(snapshot=asked) for row in rows_of(page))
            assert got == Counter(map(comparable, rows)), f"a copy of {table}, {asked or 'now'}"

    def _live_on(self, copy: Store, table: str, newest: int) -> None:
        """In a copy a name is given to another column, and older rows come back."""
        handle = copy.table(table)
        number, added = handle.definition.definition, handle.schema.names[len(TABLES[table][0]) :]
        to = self.random.randint(handle.definition.oldest_snapshot, newest)
        expected = [comparable(row) for row in self.rows_at(table, to, number).values()]
        if added:
            handle.drop_columns(added[-1:])
            handle.add_columns([pa.field(added[-1], self.random.choice(list(WIDER)))])
            expected = [(*row[:-1], None) for row in expected]
        handle.restore(to)
        assert Keeper(copy.context, self.policy).keep().problems == []
        got = Counter(row for page in handle.scan() for row in rows_of(page))
        assert got == Counter(expected), f"a copy of {table} that was restored to {to}"
        assert copy.verify() == []

    def _backup_place(self, number: int) -> Path:
        return self._beside(f"backup{number}")

    def _beside(self, name: str) -> Path:
        place = self.store.context.location.directory
        assert place is not None
        return place.with_name(f"{place.name}-{name}")

    def _read_changes(self) -> None:
        """What happened between two snapshots leads from the rows of one to those of the other."""
        table, began = self.random.choice(list(TABLES)), self.clock.now()
        after, upto = sorted((self._some_snapshot(table), self._some_snapshot(table)))
        try:
            self._check_changes(table, after, upto)
        except SnapshotExpired:
            assert self.clock.now() > began + LEASE_SECONDS, "changes expired although they have a lease"

    # The end

    def _check_everything(self) -> None:
        self._keep_until_nothing_is_due()
        super()._check_everything()
        for table, tags in self.tagged.items():
            assert {tag.name: tag.snapshot for tag in self.store.table(table).tags()} == tags
            for name in tags:
                self._check_tag(table, name, 65_536)
        self._check_nothing_is_left_over()

    def _keep_until_nothing_is_due(self) -> None:
        self.clock.advance(SILENT_SECONDS + 1)  # whoever was taken for dead elsewhere is
        for _ in range(MOST_ROUNDS):
            kept = Keeper(self.store.context, self.policy).keep()
            assert kept.problems == []
            if not kept.steps:
                break
        else:
            raise AssertionError(f"after {MOST_ROUNDS} rounds there is still something to do: {kept}")
        with self.store.context.catalog.reading() as tx:
            assert (steps_in(tx), moves_in(tx)) == ((), ())
            sites: dict[tuple[int, int], list[Fragment]] = {}
            for fragment in tx.state.fragments():
                sites.setdefault((fragment.table, fragment.shard), []).append(fragment)
            for (table, _), fragments in sites.items():
                floor = max(tx.state.overwrites(table), default=0)
                newest = [one for one in fragments if is_current(one, floor)]
                history = [one for one in fragments if one.superseded_at is not None]
                assert (
                    depth_of(parts_of(newest, tx.state.runs(table)), self.policy)
                    <= self.policy.slot_fragments
                )
                most = self.policy.history_fragments
                assert depth_of(parts_of(history, tx.state.runs(table)), self.policy) <= most

    def _check_nothing_is_left_over(self) -> None:
        for _ in range(2):  # what the first one marks, the second one removes
            self.store.collect_garbage(grace_seconds=0, trash_seconds=0, share=1.0)
        context = self.store.context
        with context.catalog.reading() as tx:
            expected = tx.state.known_paths()
        there = {
            (shard, path)
            for shard in context.shard_names()
            for path, _ in context.disk_of(shard).list()
            if path.startswith("t")
        }
        assert there == expected, "orphans, or missing files"


def _is_dying() -> bool:
    return isinstance(sys.exc_info()[1], KeeperKilled)


def _elsewhere(*number: int) -> Callable[[], Any]:
    """Owners on a machine whose processes nobody here can see."""
    return lambda: nullcontext(f"elsewhere:1:0:{number}")
