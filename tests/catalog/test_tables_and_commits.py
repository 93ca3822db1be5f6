"""Tables and their commits, as transactions see them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticscan.base.errors import (
    ContinuationKeyError,
    NotFound,
    SnapshotExpired,
)
from elasticscan.catalog import Catalog, IdempotencyKey, Tx, take_incarnation
from elasticscan.metadata import ShardDefined, TableInfo, TagChanged
from elasticscan.store.context.leases import kept_seconds, leases_in, take_lease
from elasticscan.store.moves.under_way import enter_moves, moves_in
from elasticscan.store.writing.definitions import enter
from elasticscan.topology import Move, Shard
from tests.base.manual_clock import ManualClock
from tests.catalog.small_store import (
    add_commit,
    add_table,
    commit,
    definition,
    drop_table,
    make,
    raise_horizon,
    staged,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


@pytest.fixture
def catalog(catalog_url: Path | str, clock: ManualClock) -> Iterator[Catalog]:
    made = make(catalog_url, clock)
    yield made
    made.close()


# -------------------------------------------------------------------------------------------- tables


# ------------------------------------------------------------------------------------------- commits


def test_a_commit_is_seen_by_readers_that_begin_after_it_and_by_no_other(catalog: Catalog) -> None:
    table = add_table(catalog)
    with catalog.reading() as before:
        number = add_commit(catalog, table, staged())
        assert before.state.commit == 1
        assert before.state.fragments() == ()
        assert [commit.number for commit in before.commits(table.id)] == [1]
        assert before.newest_upto(table.id, number).number == before.commit_before(2_000) == 1
        assert before.behind(table.id, 1) == (0, 0, None)
    with catalog.reading() as after:
        assert after.state.commit == number
        assert [fragment.min_commit for fragment in after.state.fragments()] == [number]


def test_nothing_of_a_transaction_that_raises_is_kept(catalog: Catalog) -> None:
    table = add_table(catalog)
    add_commit(catalog, table, staged())
    before = everything(catalog)

    def change_all(tx: Tx) -> None:
        enter(tx, definition("u"))
        commit(tx, table, staged("t1/b.arrow"), kind="overwrite")
        tx.append(ShardDefined(Shard(3, "c", "shards/c")))
        enter_moves(tx, [Move(3, 2, 1)], "me")
        take_lease(tx, "l", table, 2, "scan", 10)
        raise_horizon(tx, table, 2)
        tx.append(TagChanged(table.id, "kept", 2))
        drop_table(tx, "t")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), catalog.writing() as tx:
        change_all(tx)
    assert everything(catalog) == before
    assert add_commit(catalog, table) == 3, "the number that was given up is given again"


def everything(catalog: Catalog) -> tuple[object, ...]:
    with catalog.reading() as tx:
        return (
            tx.state.versions,
            tuple(tx.state.shards.values()),
            tx.state.placement,
            tx.state.infos(),
            tx.state.fragments(),
            tx.state.known_paths(),
            moves_in(tx),
            tuple(map(str, leases_in(tx))),
            tuple(commit for table in tx.state.infos() for commit in tx.commits(table.id)),
        )


def test_a_version_of_an_application_is_committed_once(catalog: Catalog) -> None:
    table, other = add_table(catalog), add_table(catalog, "other")
    key = IdempotencyKey("app", 7, "to 9")
    with catalog.writing() as tx:
        assert tx.commit_of_txn(table.id, key) is None
        number = commit(tx, table, kind="write", txn=key)
        assert tx.commit_of_txn(table.id, key) == number, "in the transaction itself"
    with catalog.reading() as tx:
        for same in (key, key._replace(content=None)):
            assert tx.commit_of_txn(table.id, same) == number
        for another in (key._replace(version=8), key._replace(application="ap")):
            assert tx.commit_of_txn(table.id, another) is None
        assert tx.commit_of_txn(other.id, key) is None
        with pytest.raises(ContinuationKeyError, match=f"before by commit {number}, with another end"):
            tx.commit_of_txn(table.id, key._replace(content="to 10"))


@pytest.fixture
def written(catalog: Catalog, clock: ManualClock) -> TableInfo:
    """A table with commits 1, 3, 5 and 8 at 1,000 s, 1,020 s, …; those between are other records."""
    table = add_table(catalog)
    clock.advance(10)
    other = add_table(catalog, "other")  # 2
    clock.advance(10)
    add_commit(catalog, table, staged("t1/3", 3))
    clock.advance(10)
    add_commit(catalog, other, staged("t2/4", 4))
    clock.advance(10)
    add_commit(catalog, table, staged("t1/5", 5), kind="overwrite")
    with catalog.writing() as tx:
        tx.append(TagChanged(table.id, "six", 5))
        tx.append(TagChanged(table.id, "six", None))
    clock.advance(10)
    add_commit(catalog, table, staged("t1/8", 8))
    return table


def test_commits_are_found_by_their_numbers(catalog: Catalog, written: TableInfo) -> None:
    table = written.id
    with catalog.reading() as tx:
        assert [commit.number for commit in tx.commits(table)] == [1, 3, 5, 8]
        for most in range(6):
            newest = [commit.number for commit in tx.commits(table, most=most, newest=True)]
            assert newest == [1, 3, 5, 8][max(4 - most, 0) :]
        for after in range(10):
            beyond = [number for number in (1, 3, 5, 8) if number > after]
            for most in range(1, 6):
                assert [c.number for c in tx.commits(table, after, most=most)] == beyond[:most]
        assert [tx.newest_upto(table, upto).number for upto in range(1, 10)] == [1, 1, 3, 3, 5, 5, 5, 8, 8]
        assert tx.state.table(table).newest == 8


def test_a_stream_is_behind_by_the_commits_after_its_own(catalog: Catalog, written: TableInfo) -> None:
    with catalog.reading() as tx:
        found = [tx.behind(written.id, after) for after in (1, 2, 3, 4, 5, 7, 8, 9)]
    third, fifth, eighth = (3, 16, 1_020.0), (2, 13, 1_040.0), (1, 8, 1_050.0)
    assert found == [third, third, fifth, fifth, eighth, eighth, (0, 0, None), (0, 0, None)]


def test_commits_are_found_by_their_times(catalog: Catalog, clock: ManualClock, written: TableInfo) -> None:
    with catalog.reading() as tx:
        found = [tx.commit_before(at) for at in (-1e9, 999, 1_009, 1_010, 1_039, 1_040, 1_045, 1_050, 9e9)]
        assert found == [0, 0, 1, 2, 4, 5, 5, 8, 8]
        assert tx.commit_before(math.nextafter(1_050, 0)) == 5
        assert tx.commit_at(1_021) == 3
        with pytest.raises(NotFound, match="is still to come"):
            tx.commit_at(clock.now() + 1_000)
        assert [tx.made_at(number) for number in (0, 3, 6, 8, 99)] == [None, 1_020, 1_040, 1_050, 1_050]
        clock.advance(50)
    with catalog.reading() as tx:  # at 1,100 s
        assert kept_seconds(tx, 8, 60) == 60, "nothing took its place"
        assert kept_seconds(tx, 3, 60) == -10, "the next commit, of another table, was at 1,030 s"
        assert kept_seconds(tx, 5, 60) == kept_seconds(tx, 7, 60) == 10


# ----------------------------------------------------------------------------------------- snapshots


def test_snapshots_are_those_since_the_table_was_made_that_are_kept(catalog: Catalog) -> None:
    add_table(catalog, "earlier")
    table = add_table(catalog)
    for _ in range(4):
        add_commit(catalog, table)
    with catalog.writing() as tx:
        raise_horizon(tx, table, 4)
        table = tx.state.table_named("t")
        for snapshot in (-1, 0, 1, 7, 1 << 40):
            with pytest.raises(NotFound):
                tx.state.check_snapshot(table, snapshot)
        for snapshot in (2, 3):
            with pytest.raises(SnapshotExpired):
                tx.state.check_snapshot(table, snapshot)
        for snapshot in (4, 5, 6):
            tx.state.check_snapshot(table, snapshot)


def test_numbers_that_were_lost_are_no_gap_in_time(catalog: Catalog, clock: ManualClock) -> None:
    """Those that an older copy of the catalog, adopted, never knew."""
    table = add_table(catalog)
    clock.advance(10)
    last = add_commit(catalog, table)  # at 1,010 s
    with catalog.writing() as tx:
        take_incarnation(tx, "f" * 32, (0, last + 2))
        assert tx.state.commit == last + 2
    clock.advance(10)
    with catalog.reading() as tx:
        assert tx.commit_before(1_015) == last
        assert kept_seconds(tx, last, 5) == 5
    newest = add_commit(catalog, table)  # at 1,020 s
    assert newest > last + 2
    clock.advance(10)
    with catalog.reading() as tx:
        assert tx.commit_before(1_019) == last
        assert tx.commit_before(1_021) == newest
        assert kept_seconds(tx, last, 15) == pytest.approx(5)


# ------------------------------------------------------------------------------------ values that go


def test_values_that_two_old_checkpoints_cover_are_dropped_and_nobody_misses_them(
    catalog: Catalog, catalog_url: Path | str, clock: ManualClock
) -> None:
    table = add_table(catalog)
    sleeper = Catalog(catalog_url, clock, str(catalog_url))
    numbers = []
    for round_ in range(2):
        numbers += [add_commit(catalog, table, staged(f"t1/{round_}-{n}.arrow")) for n in range(10)]
        assert catalog._log.write_checkpoint()
    clock.advance(3_600)
    catalog.drop_values(7_200)
    assert len(catalog._home.execute("SELECT 1 FROM payload WHERE part = 'value'")) == 22, "not old enough"
    catalog.drop_values(60)
    assert len(catalog._home.execute("SELECT 1 FROM payload WHERE part = 'value'")) == 10
    late = Catalog(catalog_url, clock, str(catalog_url))
    for each in (catalog, sleeper, late):
        with each.reading() as tx:
            assert [commit.number for commit in tx.commits(table.id)] == [1, *numbers]
            assert len(tx.state.fragments()) == 20
        each.check_whole()
    sleeper.close()
    late.close()
