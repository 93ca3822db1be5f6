"""Leases, tags, horizons and reports; and the secrets of a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticscan.base.errors import (
    AlreadyExists,
    LimitExceeded,
    NotFound,
    SnapshotExpired,
    StoreDamaged,
    TableChanged,
    WriteConflict,
)
from elasticscan.base.limits import KEY_SECONDS, MAX_TAGS, SECRETS_SECONDS, TRUSTED_JUMP_SECONDS
from elasticscan.catalog import KEYS, OFFSETS, Catalog, Report, Tag
from tests.base.manual_clock import ManualClock
from tests.catalog.small_store import add_commit, add_table, make


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


@pytest.fixture
def catalog(catalog_url: Path | str, clock: ManualClock) -> Iterator[Catalog]:
    made = make(catalog_url, clock)
    yield made
    made.close()


# -------------------------------------------------------------------------------------------- leases


def test_a_lease_lasts_as_long_as_it_is_renewed(catalog: Catalog, clock: ManualClock) -> None:
    table = add_table(catalog)
    with catalog.leasing() as tx:
        tx.take_lease("l", table, 1, "scan", 60)
    clock.advance(50)
    with catalog.leasing() as tx:
        assert tx.renew_lease("l", 60)
    clock.advance(60)
    with catalog.leasing() as tx:
        lease = {"id": "l", "table": "t", "snapshot": 1, "purpose": "scan", "expires_at": 1_110.0}
        assert tx.leases() == [lease]
        assert tx.end_expired_leases() == 0
    clock.advance(0.5)
    with catalog.leasing() as tx:
        assert tx.leases() == []
        assert tx.lease_end("l") == 1_110.0
        assert not tx.renew_lease("l", 60), "its snapshot may be gone"
        assert tx.end_expired_leases() == 1
        assert not tx.renew_lease("l", 60)
        assert tx.lease_end("l") == 0


def test_a_lease_that_ended_can_be_taken_again(catalog: Catalog, clock: ManualClock) -> None:
    table = add_table(catalog)
    with catalog.leasing() as tx:
        tx.take_lease("l", table, 1, "scan", 60)
    clock.advance(100)
    with catalog.leasing() as tx:
        tx.take_lease("l", table, 1, "scan", 60)
        assert [(lease["id"], lease["expires_at"]) for lease in tx.leases()] == [("l", 1_160.0)]
        tx.end_lease("l")
        tx.end_lease("l")
        assert tx.leases() == []


def test_leases_leave_the_log_as_it_is(catalog: Catalog) -> None:
    table = add_table(catalog)
    with catalog.leasing() as tx:
        before = tx.state
        tx.take_lease("l", table, 1, "scan", 60)
        tx.report("r", table.id, 1, "half", 30)
        tx.renew_lease("l", 60)
        tx.end_lease("l")
        assert tx.state == before


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


def test_a_lease_by_a_clock_far_ahead_is_cut_once_the_time_is_beyond_doubt(
    catalog: Catalog, clock: ManualClock
) -> None:
    table, ahead = add_table(catalog), 300 * 86_400.0
    clock.advance(ahead)
    with catalog.leasing() as tx:
        tx.take_lease("l", table, 1, "scan", 60)
    clock._now -= ahead
    with catalog.leasing() as tx:
        assert tx.lease_end("l") == 1_060 + ahead
        assert tx.end_expired_leases() == 0
        assert tx.lease_end("l") == 1_060 + TRUSTED_JUMP_SECONDS


def test_who_takes_leases_alone_lets_the_store_know_the_time(catalog: Catalog, clock: ManualClock) -> None:
    table = add_table(catalog)
    for hours in (20, 20, 20, 0.5):
        clock.advance(3_600 * hours)
        with catalog.leasing() as tx:
            tx.take_lease("l", table, 1, "scan", 60)
    with catalog.reading() as tx:
        assert tx.times.agreed, "three days at once would not be believed"
        assert tx.state.number == 4, "each time that changes it by more than an hour is a record"


def test_a_dropped_table_is_named_for_as_long_as_its_leases_last(catalog: Catalog) -> None:
    table = add_table(catalog)
    with catalog.writing() as tx:
        tx.take_lease("l", table, 1, "scan", 60)
        tx.drop_table("t")
    with catalog.reading() as tx:
        assert [lease["table"] for lease in tx.leases()] == ["t"]


# ------------------------------------------------------------------------------------------ horizons


def test_the_oldest_snapshot_never_goes_back(catalog: Catalog) -> None:
    """Of two compactions at once the slower one must not promise again what the faster one removed."""
    table = add_table(catalog)
    for _ in range(9):
        add_commit(catalog, table)
    with catalog.writing() as tx:
        tx.set_oldest_snapshot(table.id, 8)
        tx.set_oldest_snapshot(table.id, 5)
        tx.set_oldest_snapshot(table.id + 1, 5)  # it was dropped meanwhile
        assert tx.table("t").oldest_snapshot == 8


def test_what_is_needed_is_what_retention_or_the_oldest_lease_asks_for(
    catalog: Catalog, clock: ManualClock
) -> None:
    table, other = add_table(catalog), add_table(catalog, "other")  # at 1,000 s
    for _ in range(3):
        clock.advance(10)
        add_commit(catalog, table)  # commits 3, 4, 5 at 1,010 s, 1,020 s, 1,030 s
    with catalog.leasing() as tx:
        found = [tx.oldest_needed(table.id, seconds) for seconds in (0, 9, 10, 19, 20, 31, 1_000)]
        assert found == [5, 4, 4, 3, 3, 0, 0]
        tx.take_lease("l", table, 4, "scan", 60)
        tx.take_lease("m", table, 3, "scan", 5)
        tx.take_lease("n", other, 2, "scan", 60)
        assert tx.oldest_needed(table.id, 0) == tx.oldest_held(table.id) == 3
        assert tx.oldest_needed(table.id, 1_000) == 0
        assert tx.oldest_needed_of_all([0, 9]) == 2
    clock.advance(6)
    with catalog.reading() as tx:
        assert tx.oldest_needed(table.id, 0) == 4
        assert tx.oldest_needed(other.id, 0) == 2
        assert tx.oldest_held(99) is None


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
        tx.set_oldest_snapshot(table.id, 4)
        assert tx.horizon(table.id, 35) == 4, "what is gone stays gone"


def test_while_a_lease_is_damaged_no_horizon_is_told(catalog: Catalog) -> None:
    table = add_table(catalog)
    with catalog.leasing() as tx:
        tx.take_lease("l", table, 1, "scan", 60)
        tx.take_lease("whole", table, 1, "scan", 60)
        tx.execute("UPDATE lease SET kind = 'step' WHERE id = 'scan/l'")
    with catalog.leasing() as tx:
        for look in (lambda: tx.horizon(table.id, 0), tx.end_expired_leases, tx.leases):
            with pytest.raises(StoreDamaged, match="lease scan/l is not what was written"):
                look()
        assert tx.renew_lease("whole", 60)


# ---------------------------------------------------------------------------------------------- tags


def test_a_tag_keeps_its_snapshot_until_it_is_dropped(catalog: Catalog, clock: ManualClock) -> None:
    table, other = add_table(catalog), add_table(catalog, "other")
    for _ in range(3):
        clock.advance(10)
        add_commit(catalog, table)  # 3, 4, 5
    with catalog.writing() as tx:
        fourth = tx.add_tag(table, "fourth", 4)
        assert fourth == Tag("fourth", 4, 1_030.000001)
    clock.advance(10)
    with catalog.writing() as tx:
        assert tx.add_tag(table, "fourth", 4) == fourth, "it is left as it is"
        third = tx.add_tag(table, "third", 3)
        again = tx.add_tag(other, "fourth", 5)
        with pytest.raises(AlreadyExists, match="already has a tag 'fourth', of snapshot 4"):
            tx.add_tag(table, "fourth", 5)
    with catalog.writing() as tx:
        assert tx.tags(table.id) == (third, fourth)
        assert tx.tags() == (third, fourth, again)
        assert tx.tags_by_table() == {table.id: [third, fourth], other.id: [again]}
        assert tx.tag(table, "fourth") == fourth
        assert tx.horizon(table.id, 0) == 3
        with pytest.raises(WriteConflict, match="a tag of table 't' holds an older snapshot"):
            tx.set_oldest_snapshot(table.id, 4)
        tx.drop_tag(table, "third")
        assert tx.horizon(table.id, 0) == 4
        with pytest.raises(NotFound, match="has no tag 'fourt'; did you mean 'fourth'"):
            tx.drop_tag(table, "fourt")
        tx.drop_table("t")
        assert tx.tags() == (again,)


def test_a_table_has_so_many_tags(catalog: Catalog) -> None:
    table = add_table(catalog)
    with catalog.writing() as tx:
        for number in range(MAX_TAGS):
            tx.add_tag(table, f"n{number}", 1)
        with pytest.raises(LimitExceeded, match=f"has {MAX_TAGS:,} tags"):
            tx.add_tag(table, "more", 1)


# ------------------------------------------------------------------------------------------- reports


def test_a_report_is_forgotten_with_its_time_and_keeps_nothing(catalog: Catalog, clock: ManualClock) -> None:
    table = add_table(catalog)
    add_commit(catalog, table)
    with catalog.leasing() as tx:
        tx.report("r", table.id, 1, "begun", 30)
        tx.report("s", table.id, 2, "other", 5)
    clock.advance(1)
    with catalog.leasing() as tx:
        tx.report("r", table.id, 1, "half", 30)
        said = [Report("t", 2, "other", 1_000.0), Report("t", 1, "half", 1_001.0)]
        assert tx.reports() == said
        assert tx.leases() == []
        assert tx.horizon(table.id, 0) == 2
    clock.advance(10)
    with catalog.leasing() as tx:
        assert tx.reports() == said[1:]
        tx.report("first", table.id, 1, "begun", 30)
        assert tx.execute("SELECT id FROM lease ORDER BY id") == [("report/first",), ("report/r",)]
        tx.end_report("first")
        tx.end_report("first")
        assert tx.reports() == said[1:]
    with catalog.writing() as tx:
        tx.drop_table("t")
        tx.report("late", table.id, 1, "begun", 30)
        assert tx.reports() == said[1:]


# ------------------------------------------------------------------------------------------- secrets


def test_a_key_opens_until_none_in_use_can_have_its_secret(catalog: Catalog, clock: ManualClock) -> None:
    table = add_table(catalog)
    with catalog.writing() as tx:
        ((first, secret),) = tx.seal_keys().items()
        assert len(secret) == 32
        assert tx.key_seconds() == KEY_SECONDS
        assert tx.offset_keys().keys() == {1}
        tx.set_retention(table.id, 2.0 * KEY_SECONDS)
        assert tx.key_seconds() == 2 * KEY_SECONDS
        tx.set_retention(table.id, None)
        newest = tx.add_secrets(OFFSETS, KEYS)
        assert tx.seal_keys().keys() == {first, newest}
        assert tx.seal_keys()[newest] != secret
        assert tx.forget_secrets() == 0
    for _ in range(2):  # the store believes a far time when it was seen twice
        clock.advance(KEY_SECONDS + 2 * SECRETS_SECONDS)
        with catalog.leasing() as tx:
            assert tx.seal_keys().keys() == {newest}
    with catalog.writing() as tx:
        assert tx.forget_secrets() == 1
        assert tx.offset_keys().keys() == {1, newest - 1}, "a checkpoint may be picked up after years"
        assert tx.forget_secrets(revoke=True) == 1
        assert tx.offset_keys().keys() == {newest - 1}


def test_a_new_incarnation_has_one_secret_of_its_own_and_goes_on_beyond_what_was_known(
    catalog: Catalog,
) -> None:
    with catalog.writing() as tx:
        before, secrets = tx.identity(), tx.seal_keys()
        tx.take_incarnation("f" * 32, (before.layout + 9, before.last_commit + 7))
        after = tx.identity()
        assert (after.incarnation, after.store_id) == ("f" * 32, before.store_id)
        assert after.layout > before.layout + 9
        assert after.last_commit == before.last_commit + 7
        (number,) = tx.seal_keys()
        assert number not in secrets
        assert tx.seal_keys()[number] not in secrets.values()
        assert len(tx.offset_keys()) == 1
