"""What one catalog transaction makes visible, and to whom."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticscan.base.errors import (
    AlreadyExists,
    InvalidTopologyChange,
    NotFound,
    NotReady,
    SnapshotExpired,
    TableChanged,
    WriteConflict,
    WrongRoot,
)
from elasticscan.catalog import KEYS, Catalog, DroppedFile, NewStore, Tx
from elasticscan.catalog.sealed import SealedRows
from elasticscan.catalog.topology_history import _WHOLE_EVERY, _pack_topology, _unpack_topology
from elasticscan.metadata import StagedFragment, TableInfo
from elasticscan.topology import (
    Event,
    Move,
    Phase,
    Placement,
    SlotSet,
    Tablet,
    Topology,
    initial_placement,
    join_tablets,
    move_tablet,
    split_tablet,
)
from tests.base.manual_clock import ManualClock

SLOTS = 16
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("Ä b", pa.list_(pa.string()))])


def definition(name: str) -> TableInfo:
    return TableInfo(0, name, SCHEMA, ("k",), ("k",), "lz4", 0, 0)


def staged(
    path: str = "t1/a.arrow", shard: int = 1, slots: SlotSet | None = None, rows: int = 5
) -> StagedFragment:
    slots = SlotSet.span(0, 8) if slots is None else slots
    return StagedFragment(shard, path, slots, rows, 100, True, 0, False, 60, -(1 << 63))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


def make(where: Path | str, clock: ManualClock) -> Catalog:
    placement = initial_placement(SLOTS, 4, [1, 2])
    shards = (("a", "shards/a"), ("b", "shards/b"))
    Catalog.create(where, clock, str(where), NewStore(shards, placement, "spark", 100.0))
    return Catalog(where, clock, str(where))


@pytest.fixture
def catalog(catalog_url: Path | str, clock: ManualClock) -> Iterator[Catalog]:
    made = make(catalog_url, clock)
    yield made
    made.close()


def add_table(catalog: Catalog, name: str = "t") -> TableInfo:
    with catalog.writing() as tx:
        return tx.create_table(name, definition(name))


def add_commit(catalog: Catalog, table: TableInfo, *fragments: StagedFragment, kind: str = "write") -> int:
    with catalog.writing() as tx:
        return tx.add_commit(table.id, kind, fragments)


def test_a_group_is_read_once_in_a_transaction_and_again_once_it_has_changed(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, reads, ask = add_table(catalog), list[str](), SealedRows.ask
    monkeypatch.setattr(
        SealedRows, "ask", lambda self, query, **n: reads.append(query.form.name) or ask(self, query, **n)
    )
    with catalog.writing() as tx:
        assert tx.fragments(table.id) == tx.fragments(table.id) == ()
        assert reads.count("fragments") == 1
        tx.add_commit(table.id, "write", [staged()])
        (fragment,) = tx.fragments(table.id)
        tx.set_fragment_slots({fragment.id: SlotSet.span(0, 4)})
        assert [f.slots for f in tx.fragments(table.id)] == [SlotSet.span(0, 4)]
        tx.set_fragment_slots({fragment.id: SlotSet()})
        assert tx.fragments(table.id) == ()
    with catalog.reading() as tx:
        assert tx.fragments(table.id) == ()
        before = len(reads)
        assert tx.shards() == tx.shards()
        assert len(reads) == before + 1


# ----------------------------------------------------------------------------- commits and their order


def test_commit_numbers_of_many_threads_are_consecutive(catalog: Catalog) -> None:
    table = add_table(catalog)
    barrier = threading.Barrier(8)

    def commit(worker: int) -> list[int]:
        barrier.wait()
        return [add_commit(catalog, table, staged(f"t1/{worker}-{n}")) for n in range(10)]

    with ThreadPoolExecutor(8) as pool:
        numbers = [number for found in pool.map(commit, range(8)) for number in found]
    assert sorted(numbers) == list(range(2, 82))
    with catalog.reading() as tx:
        assert [commit.number for commit in tx.commits(table.id)] == list(range(1, 82))
        assert tx.versions()[1] == 81


def test_a_commit_is_seen_by_readers_that_begin_after_it_and_by_no_other(catalog: Catalog) -> None:
    table = add_table(catalog)
    with catalog.reading() as before:
        assert before.versions()[1] == 1
        number = add_commit(catalog, table, staged())
        assert before.versions()[1] == 1
        assert before.fragments() == ()
    with catalog.reading() as after:
        assert after.versions()[1] == number
        assert [fragment.min_commit for fragment in after.fragments()] == [number]


def test_nothing_of_a_transaction_that_raises_is_kept(catalog: Catalog) -> None:
    table = add_table(catalog)
    add_commit(catalog, table, staged())
    before = everything(catalog)

    def change_all(tx: Tx) -> None:
        tx.create_table("u", definition("u"))
        tx.add_commit(table.id, "overwrite", [staged("t1/b.arrow")])
        tx.strike_slots(1, SlotSet.span(0, 8))
        placement = tx.placement()
        tx.replace_placement(placement, move_tablet(placement, 1, 2, placement.tablets[0].epoch))
        tx.append_topology("moved")
        tx.add_shards([("c", "shards/c")])
        tx.plan_move(Move(3, 2, 1), "me")
        tx.take_lease("l", table, 2, "scan", 10)
        tx.set_oldest_snapshot(table.id, 2)
        tx.drop_table("t")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), catalog.writing() as tx:
        change_all(tx)
    assert everything(catalog) == before
    assert add_commit(catalog, table) == 3, "the number that was given up is given again"


def everything(catalog: Catalog) -> tuple[object, ...]:
    with catalog.reading() as tx:
        return (
            tx.versions(),
            tx.shards(),
            tx.placement(),
            tx.topology_history(),
            tx.newest_topology(),
            tx.tables(),
            tx.fragments(),
            tx.known_paths(),
            tx.moves(),
            tuple(map(str, tx.leases())),
            tuple(commit for table in tx.tables() for commit in tx.commits(table.id)),
        )


def test_threads_that_come_and_go_leave_no_connection_behind(catalog: Catalog) -> None:
    add_table(catalog)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names, not paths
    for _ in range(60):
        thread = threading.Thread(target=catalog.versions)
        thread.start()
        thread.join()
    assert len(os.listdir("/proc/self/fd")) < before + 20  # noqa: PTH208


def test_more_threads_than_the_pool_has_connections_may_watch_and_read(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_table(catalog)
    monkeypatch.setattr(catalog._engine.pool, "_timeout", 5.0)
    barrier = threading.Barrier(60, timeout=60)

    def work(_: int) -> int:
        barrier.wait()
        found = catalog.versions()[1]
        barrier.wait()  # all threads are alive, and each has looked
        with catalog.reading() as tx:
            return tx.versions()[1] - found

    with ThreadPoolExecutor(60) as pool:
        assert set(pool.map(work, range(60))) == {0}


# ---------------------------------------------------------------------------------------- the layout


def test_the_layout_grows_with_what_an_older_snapshot_could_see_and_with_nothing_else(
    catalog: Catalog,
) -> None:
    table = add_table(catalog)
    number = add_commit(catalog, table, staged())

    def layout() -> int:
        assert catalog.versions() == versions_in_transaction(catalog)
        return catalog.versions()[0]

    at = layout()
    add_commit(catalog, table, staged("t1/b.arrow"))
    with catalog.writing() as tx:
        tx.take_lease("l", table, number, "scan", 10)
        tx.plan_move(MOVE, "me")
        tx.transition(MOVE, "me", Event.FAILED)
        tx.enter_step("balance", "me")
        tx.append_topology("nothing new")
    assert layout() == at, "plain commits, leases, plans and steps leave it alone"
    changes: list[Callable[[Tx], object]] = [
        lambda tx: tx.add_shards([("c", "shards/c")]),
        lambda tx: tx.add_tag(table, "kept", number),
        lambda tx: tx.drop_tag(table, "kept"),
        lambda tx: tx.add_secrets(KEYS),
        lambda tx: tx.forget_secrets(revoke=True),
    ]
    for change in changes:
        at = layout()
        with catalog.writing() as tx:
            change(tx)
        assert layout() == at + 1, "what an older catalog must not lack moves it"
        with catalog.writing() as tx:
            tx.forget_secrets()
        assert layout() == at + 1, "what changes nothing does not"
    with catalog.writing() as tx:
        placement = tx.placement()
        tx.replace_placement(placement, move_tablet(placement, 1, 2, placement.tablets[0].epoch))
    assert layout() > at
    at = layout()
    with catalog.writing() as tx:
        tx.drop_table("t")
    assert layout() > at


def versions_in_transaction(catalog: Catalog) -> tuple[int, int]:
    with catalog.reading() as tx:
        return tx.versions()


# ------------------------------------------------------------------------------------------ fragments


def test_slots_that_are_struck_are_spoken_for_no_longer(catalog: Catalog) -> None:
    table = add_table(catalog)
    add_commit(catalog, table, staged("t1/a"), staged("t1/b", slots=SlotSet.span(2, 4)), staged("t1/c", 2))
    with catalog.writing() as tx:
        tx.strike_slots(1, SlotSet.span(2, 6))
    with catalog.reading() as tx:
        assert {f.path: str(f.slots) for f in tx.fragments()} == {"t1/a": "0-2,6-8", "t1/c": "0-8"}
        assert {file.path for file in tx.dropped_files()} == {"t1/b"}
        assert tx.known_paths() == {(1, "t1/a"), (1, "t1/b"), (2, "t1/c")}


def test_a_fragment_that_speaks_for_nothing_is_dropped_and_can_be_forgotten(
    catalog: Catalog, clock: ManualClock
) -> None:
    table = add_table(catalog)
    add_commit(catalog, table, staged())
    with catalog.reading() as tx:
        (fragment,) = tx.fragments()
    with catalog.writing() as tx:
        tx.set_fragment_slots({fragment.id: SlotSet.of([(0, 2), (5, 6)])})
        assert [str(f.slots) for f in tx.fragments()] == ["0-2,5-6"]
        tx.set_fragment_slots({fragment.id: SlotSet()})
        assert tx.fragments() == ()
        dropped = tx.dropped_files()
        assert dropped == (DroppedFile(fragment.shard, fragment.path, fragment.id, None, clock.now()),)
    clock.advance(5)
    with catalog.writing() as tx:
        tx.set_fragment_slots({fragment.id: SlotSet()})  # once more: the time of dropping stays
        assert tx.dropped_files() == dropped
        tx.forget_dropped(dropped)
        assert tx.known_paths() == frozenset()


def test_a_fragment_comes_back_as_it_was_entered(catalog: Catalog) -> None:
    table = add_table(catalog)
    with catalog.writing() as tx:
        tx.add_fragments(table.id, [staged()], 3, 9)
        (found,) = tx.fragments(table=table.id, shard=1)
        assert tx.fragments(shard=2) == tx.fragments(table=table.id + 1) == ()
    one = staged()
    assert (found.min_commit, found.max_commit, found.table) == (3, 9, table.id)
    names = ("shard", "path", "slots", "rows", "bytes", "unique", "tombstones", "versioned", "tail", "digest")
    for name in names:
        assert getattr(found, name) == getattr(one, name), name


def test_files_of_a_removed_shard_are_known_where_a_new_one_took_its_place(catalog: Catalog) -> None:
    table = add_table(catalog)
    with catalog.writing() as tx:
        (old,) = tx.add_shards([("c", "shards/c")])
        tx.add_fragments(table.id, [staged("t1/x", old.id)], 1, 1)
        tx.remove_shard(old.id)
        (new,) = tx.add_shards([("c", "shards/c")])
        assert new.id != old.id
        assert tx.known_paths() == {(old.id, "t1/x"), (new.id, "t1/x")}


# -------------------------------------------------------------------------------------------- tables


def test_a_table_comes_back_as_it_was_defined(catalog: Catalog) -> None:
    made = add_table(catalog, "t_1")
    with catalog.reading() as tx:
        found = tx.table("t_1")
        assert found == made == tx.table_by_id(made.id) == tx.tables()[0]
    assert found.schema.equals(SCHEMA, check_metadata=True)
    assert (found.primary_key, found.shard_key, found.compression) == (("k",), ("k",), "lz4")
    assert found.created_commit == found.oldest_snapshot == 1


def test_names_that_differ_by_case_are_different_tables(catalog: Catalog) -> None:
    lower, upper = add_table(catalog, "names"), add_table(catalog, "NAMES")
    with catalog.reading() as tx:
        assert tx.table("names") == lower
        assert tx.table("NAMES") == upper
        with pytest.raises(NotFound):
            tx.table("Names")


def test_a_table_that_was_dropped_and_made_again_is_another_table(catalog: Catalog) -> None:
    first = add_table(catalog)
    add_commit(catalog, first, staged())
    with catalog.writing() as tx:
        tx.drop_table("t")
        assert tx.table_by_id(first.id) is None
        assert tx.fragments() == ()
        assert len(tx.dropped_files()) == 1
    second = add_table(catalog)
    assert second.id != first.id
    assert second.created_commit == 3
    with catalog.reading() as tx:
        assert tx.table("t").id == second.id
        assert tx.table_by_id(first.id) is None
        with pytest.raises(NotFound):
            tx.check_snapshot(second, 2)


# ------------------------------------------------------------------------------- snapshots and leases


def test_snapshots_are_those_since_the_table_was_made_that_are_kept(catalog: Catalog) -> None:
    add_table(catalog, "earlier")
    table = add_table(catalog)
    for _ in range(4):
        add_commit(catalog, table)
    with catalog.writing() as tx:
        tx.set_oldest_snapshot(table.id, 4)
        table = tx.table("t")
        for snapshot in (-1, 0, 1, 7, 1 << 40):
            with pytest.raises(NotFound):
                tx.check_snapshot(table, snapshot)
        for snapshot in (2, 3):
            with pytest.raises(SnapshotExpired):
                tx.check_snapshot(table, snapshot)
        for snapshot in (4, 5, 6):
            tx.check_snapshot(table, snapshot)


def test_the_oldest_snapshot_never_goes_back(catalog: Catalog) -> None:
    """Of two compactions at once the slower one must not promise again what the faster one removed."""
    table = add_table(catalog)
    for _ in range(9):
        add_commit(catalog, table)
    with catalog.writing() as tx:
        tx.set_oldest_snapshot(table.id, 8)
        tx.set_oldest_snapshot(table.id, 5)
        assert tx.table("t").oldest_snapshot == 8


def test_a_lease_lasts_as_long_as_it_is_renewed(catalog: Catalog, clock: ManualClock) -> None:
    table = add_table(catalog)
    with catalog.writing() as tx:
        tx.take_lease("l", table, 1, "scan", 60)
    clock.advance(50)
    with catalog.writing() as tx:
        assert tx.renew_lease("l", 60)
    clock.advance(60)
    with catalog.writing() as tx:
        assert [lease["id"] for lease in tx.leases()] == ["l"]
        assert tx.end_expired_leases() == 0
    clock.advance(0.5)
    with catalog.writing() as tx:
        assert tx.leases() == []
        assert not tx.renew_lease("l", 60), "its snapshot may be gone"
        assert tx.end_expired_leases() == 1
        assert not tx.renew_lease("l", 60)


def test_a_lease_that_ended_can_be_taken_anew(catalog: Catalog, clock: ManualClock) -> None:
    table = add_table(catalog)
    with catalog.writing() as tx:
        tx.take_lease("l", table, 1, "scan", 60)
    clock.advance(100)
    with catalog.writing() as tx:
        tx.take_lease("l", table, 1, "scan", 60)
        assert [(lease["id"], lease["expires_at"]) for lease in tx.leases()] == [("l", 1_160.0)]
        tx.end_lease("l")
        tx.end_lease("l")
        assert tx.leases() == []


def test_a_lease_is_refused_for_a_snapshot_that_went_since_the_table_was_looked_up(catalog: Catalog) -> None:
    table = add_table(catalog)
    for _ in range(3):
        add_commit(catalog, table)
    with catalog.writing() as tx:
        tx.set_oldest_snapshot(table.id, 3)
        with pytest.raises(SnapshotExpired):
            tx.take_lease("l", table, 2, "scan", 60)
        tx.drop_table("t")
        with pytest.raises(TableChanged):
            tx.take_lease("l", table, 3, "scan", 60)


def test_what_is_needed_is_what_retention_or_the_oldest_lease_asks_for(
    catalog: Catalog, clock: ManualClock
) -> None:
    table, other = add_table(catalog), add_table(catalog, "other")  # at 1,000 s
    for _ in range(3):
        clock.advance(10)
        add_commit(catalog, table)  # commits 3, 4, 5 at 1,010 s, 1,020 s, 1,030 s
    with catalog.writing() as tx:
        found = [tx.oldest_needed(table.id, seconds) for seconds in (0, 9, 10, 19, 20, 31, 1_000)]
        assert found == [5, 4, 4, 3, 3, 0, 0]
        tx.take_lease("l", table, 4, "scan", 60)
        tx.take_lease("m", table, 3, "scan", 5)
        tx.take_lease("n", other, 2, "scan", 60)
        assert tx.oldest_needed(table.id, 0) == 3
        assert tx.oldest_needed(table.id, 1_000) == 0
    clock.advance(6)
    with catalog.reading() as tx:
        assert tx.oldest_needed(table.id, 0) == 4
        assert tx.oldest_needed(other.id, 0) == 2


def test_commits_of_other_tables_take_no_snapshot_away(catalog: Catalog, clock: ManualClock) -> None:
    table, other = add_table(catalog), add_table(catalog, "other")  # commits 1 and 2, at 1,000 s
    for of in (table, other, table, other, other):  # commits 3 to 7, at 1,010 s and so on
        clock.advance(10)
        add_commit(catalog, of)
    with catalog.writing() as tx:
        assert [tx.horizon(table.id, seconds) for seconds in (0, 15, 25, 35, 45)] == [5, 5, 3, 3, 1]
        assert [tx.horizon(other.id, seconds) for seconds in (0, 15, 25, 35, 45)] == [7, 4, 4, 2, 2]
        tx.take_lease("l", table, 4, "scan", 60)
        assert tx.horizon(table.id, 0) == 3


def test_commits_that_were_lost_are_no_gap_in_time(catalog: Catalog, clock: ManualClock) -> None:
    """Those that an older copy of the catalog, adopted, never knew."""
    table = add_table(catalog)
    clock.advance(10)
    last = add_commit(catalog, table)  # at 1,010 s
    with catalog.writing() as tx:
        tx.take_incarnation("f" * 32, None, (0, last + 2))
    clock.advance(10)
    with catalog.reading() as tx:
        assert tx.oldest_needed(table.id, 5) == tx.commit_before(1_015) == last
        assert tx.kept_seconds(last, 5) == 5
    with catalog.writing() as tx:
        tx.take_incarnation("e" * 32, None, (0, last + 3))
    newest = add_commit(catalog, table)  # at 1,020 s
    assert newest == last + 4
    clock.advance(10)
    with catalog.reading() as tx:
        assert tx.commit_before(1_019) == tx.oldest_needed(table.id, 12) == last
        assert tx.commit_before(1_020) == tx.oldest_needed(table.id, 9) == newest
        assert tx.kept_seconds(last, 15) == 5


# ------------------------------------------------------------------------ shards, placement, topologies


def test_a_new_store_has_its_placement_and_its_first_topology(catalog: Catalog, clock: ManualClock) -> None:
    with catalog.reading() as tx:
        info, topology = tx.info(), tx.newest_topology()
        assert (info.slots, info.hash, info.retention_seconds) == (SLOTS, "spark", 100.0)
        assert info.created_at == clock.now()
        assert len(info.store_id) == 32
        assert tx.placement() == topology.placement == initial_placement(SLOTS, 4, [1, 2])
        assert topology.shard_names == ((1, "a"), (2, "b"))
        assert [len(secret) for secret in tx.seal_keys().values()] == [32]


def test_shards_are_added_drained_and_removed(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        (added,) = tx.add_shards([("c", "shards/c")])
        assert added.id == 3
        with pytest.raises(AlreadyExists):
            tx.add_shards([("c", "shards/c2")])
        tx.set_draining(3, True)
        assert [shard.draining for shard in tx.shards()] == [False, False, True]
        with pytest.raises(InvalidTopologyChange, match="still holds 2 tablets"):
            tx.remove_shard(1)
        tx.remove_shard(3)
        with pytest.raises(NotFound, match="it has a, b"):
            tx.shard_named("c")
        assert [(s.id, s.root) for s in tx.shards(removed=True)] == [
            (1, "shards/a"),
            (2, "shards/b"),
            (3, "shards/c"),
        ]
        assert tx.add_shards([("c", "shards/c")])[0].id == 4, "ids are never used twice"


def test_a_condemned_file_cannot_be_committed_until_it_is_pardoned(catalog: Catalog) -> None:
    table = add_table(catalog)
    add_commit(catalog, table, staged("t1/a"))
    with catalog.writing() as tx:
        wanted = {(1, "t1/a"), (1, "t1/b"), (2, "t1/b")}
        assert tx.condemn(wanted) == {(1, "t1/b"), (2, "t1/b")}, "one that is known is spared"
        assert tx.condemn(wanted) == {(1, "t1/b"), (2, "t1/b")}, "and again, after one that died"
    with pytest.raises(WriteConflict, match="try again"):
        add_commit(catalog, table, staged("t1/b"))
    with catalog.writing() as tx:
        tx.pardon([(1, "t1/b")])
        assert tx.condemned() == ((2, "t1/b"),)
    add_commit(catalog, table, staged("t1/b"))


def test_a_new_incarnation_has_one_secret_of_its_own_and_goes_on_beyond_what_was_known(
    catalog: Catalog,
) -> None:
    with catalog.writing() as tx:
        before, secrets = tx.identity(), tx.seal_keys()
        tx.take_incarnation("f" * 32, None, (before.layout + 9, before.last_commit + 7))
        after = tx.identity()
        assert (after.incarnation, after.home, after.store_id) == ("f" * 32, None, before.store_id)
        assert (after.layout, after.last_commit) == (before.layout + 10, before.last_commit + 7)
        assert tx.lost_commits() == ((before.last_commit + 1, before.last_commit + 7),)
        (number,) = tx.seal_keys()
        assert number not in secrets
        assert tx.seal_keys()[number] not in secrets.values()


def test_a_renamed_catalog_is_at_home_and_a_copied_one_is_not(tmp_path: Path, clock: ManualClock) -> None:
    where = tmp_path / "catalog.db"
    make(where, clock).close()
    moved, copied = where.with_name("moved.db"), where.with_name("copied.db")
    shutil.copy(where, copied)
    where.rename(moved)
    with closing(Catalog(moved, clock, "moved")) as catalog, catalog.writing() as tx:
        tx.bump_layout()
    with (
        closing(Catalog(copied, clock, "copied")) as catalog,
        pytest.raises(WrongRoot),
        catalog.writing(),
    ):
        pass


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    cuts = [*sorted(draw(st.sets(st.integers(1, 65535), max_size=6))), 65536]
    tablets, at = [], 0
    for number, end in enumerate(cuts, draw(st.integers(1, 1 << 30))):
        shard, epoch = draw(st.integers(1, 1 << 31)), draw(st.integers(1, 1 << 62))
        tablets.append(Tablet(number, at, end, shard, epoch))
        at = end
    names = draw(st.dictionaries(st.integers(1, 1 << 31), st.text(max_size=9), max_size=4))
    return Topology(3, Placement(tuple(tablets)), tuple(names.items()), 5.0, "why", draw(st.booleans()))


class Row:
    def __init__(self, topology: Topology, before: Placement | None = None) -> None:
        self.number, self.created_at, self.reason = topology.number, topology.created_at, topology.reason
        self.published, self.body = topology.published, _pack_topology(topology, before)


@given(topologies(), topologies())
def test_any_topology_comes_back_as_it_was_packed(before: Topology, topology: Topology) -> None:
    assert _unpack_topology([Row(topology)]) == topology
    assert _unpack_topology([Row(before), Row(topology, before.placement)]) == topology


def change_placement(catalog: Catalog, draw: Random) -> Topology:
    """A random move, split or join of tablets, now and then as one of several of a plan."""
    with catalog.writing() as tx:
        placement = tx.placement()
        tablet = draw.choice(placement.tablets)
        right = next((t for t in placement.tablets if t.start == tablet.end), None)
        if right is not None and right.shard == tablet.shard and draw.random() < 0.5:
            after = join_tablets(placement, tablet.id, right.id, *tx.new_tablet_ids(1))
        elif tablet.end - tablet.start > 1 and draw.random() < 0.5:
            left, other = tx.new_tablet_ids(2)
            after = split_tablet(placement, tablet.id, None, (left, other))
        else:
            after = move_tablet(placement, tablet.id, 3 - tablet.shard, tablet.epoch)
        tx.replace_placement(placement, after)
        return tx.append_topology("changed", published=draw.random() < 0.8)


def test_a_history_of_differences_has_every_topology_and_forgets_only_the_oldest(
    catalog: Catalog, clock: ManualClock
) -> None:
    draw, made = Random(1), dict[int, Topology]()
    for _ in range(300):
        clock.advance(1)
        topology = change_placement(catalog, draw)
        made[topology.number] = topology
    newest = max(made)
    with catalog.reading() as tx:
        first = tx.topology(1)
        assert {number: tx.topology(number) for number in made if number > 1} == {
            number: topology for number, topology in made.items() if number > 1
        }
        assert tx.first_topology_since(0) == 1
        since = made[150].created_at
        kept = tx.first_topology_since(since)
        assert 150 - 2 * _WHOLE_EVERY < kept < 150
        assert tx.first_topology_since(clock.now() + 1) > newest - _WHOLE_EVERY
    with catalog.writing() as tx:
        assert tx.forget_topologies(kept) == kept - first.number
    with catalog.reading() as tx:
        tx.check_whole()
        assert tx.oldest_topology() == tx.topology_history()[0].number == kept
        assert all(tx.topology(number) == made[number] for number in range(kept, newest + 1))
        with pytest.raises(SnapshotExpired, match=f"the oldest is {kept}"):
            tx.topology(kept - 1)
        assert tx.first_topology_since(since) == kept
    change_placement(catalog, draw)
    with catalog.reading() as tx:
        tx.check_whole()


# --------------------------------------------------------------------------------------------- moves


MOVE = Move(1, 1, 2)


def test_a_tablet_is_moved_by_one_owner_at_a_time(catalog: Catalog, clock: ManualClock) -> None:
    with catalog.writing() as tx:
        tx.plan_move(MOVE, "me")
    clock.advance(3)
    with catalog.writing() as tx:
        with pytest.raises(NotReady, match="by me"):
            tx.plan_move(MOVE, "you")
        assert tx.transition(MOVE, "you", Event.START_COPY) is None
        begun = tx.transition(MOVE, "me", Event.START_COPY)
        assert begun is not None and begun.phase is Phase.COPYING
        assert tx.transition(MOVE, "you", Event.OWNER_DIED) is None
        with pytest.raises(InvalidTopologyChange, match="cannot take switched"):
            tx.transition(MOVE, "me", Event.SWITCHED)
        (move,) = tx.moves()
        assert tx.move(1) == move
        assert (move.phase, move.owner, move.started_at, move.heartbeat_at) == (
            Phase.COPYING,
            "me",
            1_000.0,
            1_003.0,
        )
        undone = tx.transition(MOVE, "me", Event.FAILED)
        assert undone is not None and undone.phase is Phase.UNDONE
        assert tx.transition(MOVE, "me", Event.FAILED) is None
        assert tx.move(1) is None
        tx.plan_move(MOVE, "you")


def test_moves_are_planned_and_given_up_together(catalog: Catalog) -> None:
    plans = [MOVE, Move(2, 1, 2)]
    with catalog.writing() as tx:
        tx.plan_move(Move(3, 1, 2), "me")
        tx.plan_moves(plans, "me")
        tx.plan_moves([], "me")
        assert tx.transition(MOVE, "me", Event.START_COPY) is not None
        assert {move.tablet for move in tx.moves()} == {1, 2, 3}
        with pytest.raises(NotReady, match="tablet 2 is already being moved by me"):
            tx.plan_moves([Move(4, 1, 2), Move(2, 1, 2)], "you")
        with pytest.raises(AssertionError, match="begins with a plan"):
            tx.plan_moves([Move(4, 1, 2, Phase.CAUGHT_UP)], "me")
        tx.give_up_moves("you", plans)
        assert {move.tablet for move in tx.moves()} == {1, 2, 3}
        tx.give_up_moves("me", plans)
        assert [move.tablet for move in tx.moves()] == [3]
        tx.give_up_moves("me", plans)
    with catalog.reading() as tx:
        tx.check_whole()


def test_some_tables_are_read_without_the_others(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        ids = [tx.create_table(name, definition(name)).id for name in ("b", "a", "gone")]
        tx.drop_table("gone")
    with catalog.reading() as tx:
        assert [table.name for table in tx.tables()] == ["a", "b"]
        assert [table.name for table in tx.tables(ids)] == ["a", "b"]
        assert [table.name for table in tx.tables({ids[0], 1_000})] == ["b"]
        assert tx.tables(()) == ()


def test_a_move_arrives_in_the_transaction_that_switches_the_placement(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        tx.plan_move(MOVE, "me")
        for event in (Event.START_COPY, Event.COPIED):
            tx.transition(MOVE, "me", event)
    with pytest.raises(AssertionError, match="placement differ"), catalog.writing() as tx:
        tx.transition(MOVE, "me", Event.SWITCHED)
    with catalog.writing() as tx:
        before = tx.placement()
        tx.replace_placement(before, move_tablet(before, 1, 2, before.tablets[0].epoch))
        arrived = tx.transition(MOVE, "me", Event.SWITCHED)
        assert arrived is not None and arrived.server == 2
        assert tx.moves() == ()
    with pytest.raises(AssertionError, match="begins with a plan"), catalog.writing() as tx:
        tx.plan_move(Move(1, 1, 2, Phase.CAUGHT_UP), "me")
