"""Tables and their commits, as transactions see them."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    AlreadyExists,
    ContinuationKeyError,
    NotFound,
    SnapshotExpired,
    WriteConflict,
)
from elasticscan.catalog import Catalog, Commit, IdempotencyKey, Tx
from elasticscan.metadata import TableColumn, TableInfo
from elasticscan.topology import Move, SlotSet
from tests.base.manual_clock import ManualClock
from tests.catalog.small_store import SCHEMA, add_commit, add_table, definition, make, staged


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


@pytest.fixture
def catalog(catalog_url: Path | str, clock: ManualClock) -> Iterator[Catalog]:
    made = make(catalog_url, clock)
    yield made
    made.close()


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
        with pytest.raises(NotFound, match="has no table 'Names'; did you mean"):
            tx.table("Names")


def test_a_name_is_taken_once(catalog: Catalog) -> None:
    add_table(catalog)
    with pytest.raises(AlreadyExists, match="already has a table 't'; drop it or choose another"):
        add_table(catalog)


def test_some_tables_are_read_without_the_others(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        ids = [tx.create_table(name, definition(name)).id for name in ("b", "a", "gone")]
        tx.drop_table("gone")
    with catalog.reading() as tx:
        assert [table.name for table in tx.tables()] == ["a", "b"]
        assert [table.name for table in tx.tables(ids)] == ["a", "b"]
        assert [table.name for table in tx.tables({ids[0], 1_000})] == ["b"]
        assert tx.tables(()) == ()


def test_a_table_that_was_dropped_and_made_again_is_another_table(catalog: Catalog) -> None:
    first = add_table(catalog)
    with catalog.writing() as tx:
        tx.add_commit(first.id, "write", [staged()], IdempotencyKey("app", 1))
    with catalog.writing() as tx:
        tx.drop_table("t")
        assert tx.table_by_id(first.id) is None
        assert tx.fragments() == ()
        assert [file.path for file in tx.dropped_files()] == ["t1/a.arrow"]
    second = add_table(catalog)
    assert second.id != first.id
    assert second.created_commit == 4
    with catalog.reading() as tx:
        assert tx.table("t").id == second.id
        assert tx.table_by_id(first.id) is None
        assert tx.has_forerunner(second, "app")
        assert not tx.has_forerunner(second, "another")
        assert tx.commit_of_txn(second.id, IdempotencyKey("app", 1)) is None
        with pytest.raises(NotFound):
            tx.check_snapshot(second, 2)


def test_a_reserved_table_is_seen_once_it_is_entered(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        table = tx.reserve_table(definition("t"))
    with catalog.writing() as tx:
        assert tx.reserve_table(definition("t")) == table, "an equal definition gets the same"
        assert tx.reserve_table(definition("t", "zstd")) == replace(table, compression="zstd")
        other = tx.reserve_table(replace(definition("t"), primary_key=("k", "Ä b")))
        assert other.id != table.id
    with catalog.reading() as tx:
        assert tx.tables() == ()
        assert tx.table_by_id(table.id) is None
        assert tx.reserved_table(table.id) == replace(table, compression="zstd")
    with catalog.writing() as tx:
        assert tx.enter_reserved(table.id)
        number = tx.add_commit(table.id, "write", [staged()])
    with catalog.writing() as tx:
        assert [commit.kind for commit in tx.commits(table.id)] == ["create", "write"]
        assert tx.table("t").created_commit == number - 1
        assert not tx.enter_reserved(table.id), "it is reserved no longer"
        with pytest.raises(WriteConflict, match="'t' was made with another definition meanwhile"):
            tx.enter_reserved(other.id)
        with pytest.raises(AlreadyExists):
            tx.reserve_table(definition("t"))


def test_a_table_that_is_created_takes_the_id_of_one_that_was_reserved_alike(catalog: Catalog) -> None:
    with catalog.writing() as tx:
        table = tx.reserve_table(definition("t"))
        assert tx.create_table("t", definition("t")).id == table.id
        assert tx.reserved_table(table.id) is None
        assert tx.create_table("u", definition("t")).id == table.id + 1


def test_a_definition_takes_the_place_of_the_one_before(catalog: Catalog) -> None:
    table = add_table(catalog)
    add_commit(catalog, table)
    column = TableColumn("n", ((2, "n"),), ((2, pa.int8()),), True)
    with catalog.writing() as tx:
        tx.set_oldest_snapshot(table.id, 2)
        tx.set_retention(table.id, 5.0)
        tx.set_compression(table.id, None)
        now = tx.redefine(tx.table("t").redefined((*table.all_columns, column)))
        layout, commit = tx.versions()
    with catalog.reading() as tx:
        found = tx.table("t")
        assert found == now
        assert (found.definition, found.schema.names) == (2, ["k", "Ä b", "n"])
        assert (found.retention_seconds, found.compression) == (5.0, None)
        assert (found.created_commit, found.oldest_snapshot) == (1, 2)
        assert (layout, commit) == (tx.state.number, 2), "it is no commit"
        assert [made.kind for made in tx.commits(table.id)] == ["create", "write"]


# ------------------------------------------------------------------------------------------- commits


def test_commit_numbers_of_many_threads_differ_and_are_in_order(catalog: Catalog) -> None:
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
        number = add_commit(catalog, table, staged())
        assert before.versions()[1] == 1
        assert before.fragments() == ()
        assert [commit.number for commit in before.commits(table.id)] == [1]
        assert before.newest_upto(table.id, number).number == before.commit_before(2_000) == 1
        assert before.behind(table.id, 1) == (0, 0, None)
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
        tx.add_shards([("c", "shards/c")])
        tx.plan_move(Move(3, 2, 1), "me")
        tx.take_lease("l", table, 2, "scan", 10)
        tx.set_oldest_snapshot(table.id, 2)
        tx.add_tag(table, "kept", 2)
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
            tx.tables(),
            tx.tags(),
            tx.fragments(),
            tx.known_paths(),
            tx.moves(),
            tuple(map(str, tx.leases())),
            tuple(commit for table in tx.tables() for commit in tx.commits(table.id)),
        )


def test_a_commit_says_what_it_wrote_and_what_its_writer_said(catalog: Catalog, clock: ManualClock) -> None:
    table = add_table(catalog)
    clock.advance(5.000001)
    with catalog.writing() as tx:
        tx.add_commit(table.id, "merge", [staged(rows=7, tombstones=2)], None, {"by": "me"})
        tx.add_commit(table.id, "delete", [staged("t1/b", 1, 1)], IdempotencyKey("app", 3, "content"))
    with catalog.reading() as tx:
        created, merged, deleted = tx.commits(table.id)
        assert created == Commit(1, table.id, "create", 0, 0, 1_000.000001)
        assert merged == Commit(2, table.id, "merge", 7, 100, 1_005.000001, {"by": "me"})
        assert deleted == Commit(3, table.id, "delete", 1, 100, 1_005.000002)
        assert tx.written() == {table.id: (8, 200)}
        assert tx.committed_bytes(table.id) == 200


def test_a_version_of_an_application_is_committed_once(catalog: Catalog) -> None:
    table, other = add_table(catalog), add_table(catalog, "other")
    key = IdempotencyKey("app", 7, "to 9")
    with catalog.writing() as tx:
        assert tx.commit_of_txn(table.id, key) is None
        number = tx.add_commit(table.id, "write", [], key)
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
        tx.add_tag(table, "six", 5)
        tx.drop_tag(table, "six")
    clock.advance(10)
    add_commit(catalog, table, staged("t1/8", 8))
    return table


def test_commits_are_found_by_their_numbers(catalog: Catalog, written: TableInfo) -> None:
    table = written.id
    with catalog.reading() as tx:
        assert [commit.number for commit in tx.commits(table)] == [1, 3, 5, 8]
        for most in range(6):
            newest = [commit.number for commit in tx.newest_commits(table, most)]
            assert newest == [1, 3, 5, 8][max(4 - most, 0) :]
        for after in range(10):
            beyond = [number for number in (1, 3, 5, 8) if number > after]
            for most in range(1, 6):
                assert [c.number for c in tx.commits_after(table, after, most)] == beyond[:most]
        assert [tx.newest_upto(table, upto).number for upto in range(1, 10)] == [1, 1, 3, 3, 5, 5, 5, 8, 8]
        assert tx.last_commit_of(table) == 8


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
        assert [tx.made_at(number) for number in (0, 3, 6, 8, 99)] == [0, 1_020, 1_040, 1_050, 1_050]
        assert tx.commit_times([0, 3, 7, 3]) == {3: 1_020, 7: 1_040}
        clock.advance(50)
    with catalog.reading() as tx:  # at 1,100 s
        assert tx.kept_seconds(8, 60) == 60, "nothing took its place"
        assert tx.kept_seconds(3, 60) == -10, "the next commit, of another table, was at 1,030 s"
        assert tx.kept_seconds(5, 60) == tx.kept_seconds(7, 60) == 10


def test_rows_before_an_overwrite_are_gone(catalog: Catalog, written: TableInfo) -> None:
    with catalog.writing() as tx:
        assert (tx.overwrites(written.id), tx.overwrites(99)) == ((5,), ())
        assert tx.floors() == {written.id: (5, 3)}
        number = tx.add_commit(written.id, "overwrite", [staged("t1/9", 1)])
        assert tx.overwrites(written.id) == (5, number)
        assert tx.floors() == {written.id: (number, 16)}
        tx.set_oldest_snapshot(written.id, 8)
        assert tx.overwrites(written.id) == (5, number), "the newest up to the oldest snapshot counts"
        tx.set_oldest_snapshot(written.id, number)
        assert tx.overwrites(written.id) == (number,)


def test_times_of_commits_never_go_back(catalog: Catalog, clock: ManualClock) -> None:
    table = add_table(catalog)
    clock._now -= 100
    add_commit(catalog, table)
    with catalog.reading() as tx:
        first, second = tx.commits(table.id)
    assert 1_000 <= first.created_at < second.created_at < 1_000.1


# ----------------------------------------------------------------------------------------- snapshots


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


def test_the_layout_changes_with_tables_and_not_with_their_rows(catalog: Catalog) -> None:
    table = add_table(catalog)
    with catalog.reading() as tx:
        layout = tx.versions()[0]
    add_commit(catalog, table, staged())
    with catalog.writing() as tx:
        tx.take_lease("l", table, 1, "scan", 10)
    assert catalog.versions() == (layout, 2)
    for change in ("set_retention", "set_compression", "drop_table"):
        before = catalog.versions()[0]
        with catalog.writing() as tx:
            getattr(tx, change)(*{"drop_table": ["t"]}.get(change, [table.id, None]))
        assert catalog.versions()[0] > before


def test_numbers_that_were_lost_are_no_gap_in_time(catalog: Catalog, clock: ManualClock) -> None:
    """Those that an older copy of the catalog, adopted, never knew."""
    table = add_table(catalog)
    clock.advance(10)
    last = add_commit(catalog, table)  # at 1,010 s
    with catalog.writing() as tx:
        tx.take_incarnation("f" * 32, None, (0, last + 2))
        assert tx.versions()[1] == last + 2
    clock.advance(10)
    with catalog.reading() as tx:
        assert tx.oldest_needed(table.id, 5) == tx.commit_before(1_015) == last
        assert tx.kept_seconds(last, 5) == 5
    newest = add_commit(catalog, table)  # at 1,020 s
    assert newest > last + 2
    clock.advance(10)
    with catalog.reading() as tx:
        assert tx.commit_before(1_019) == tx.oldest_needed(table.id, 12) == last
        assert tx.commit_before(1_021) == tx.oldest_needed(table.id, 9) == newest
        assert tx.kept_seconds(last, 15) == pytest.approx(5)


def test_slots_are_those_of_the_shard(catalog: Catalog) -> None:
    table = add_table(catalog)
    with pytest.raises(WriteConflict, match="a tablet of table 't' moved"):
        add_commit(catalog, table, replace(staged(), slots=SlotSet.span(0, 9)))


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
            assert len(tx.fragments()) == 20
        each.check_whole()
    sleeper.close()
    late.close()
