"""Leases, tags, horizons and reports; and the secrets of a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elasticscan.base.errors import (
    SnapshotExpired,
    StoreDamaged,
    TableChanged,
)
from elasticscan.base.limits import (
    KEY_SECONDS,
    SECRETS_SECONDS,
    STREAM_LEASE_SECONDS,
    TRUSTED_JUMP_SECONDS,
)
from elasticscan.catalog import (
    KEYS,
    OFFSETS,
    Catalog,
    Tx,
    add_secrets,
    forget_secrets,
    key_seconds,
    offset_keys,
    seal_keys,
    take_incarnation,
)
from elasticscan.metadata import TableDefined, TableInfo
from elasticscan.store.context.leases import lease_end, leases_in, renew_lease, take_lease
from elasticscan.store.upkeep import horizons
from elasticscan.store.upkeep.horizons import horizon_of, oldest_held, oldest_needed
from tests.base.manual_clock import ManualClock
from tests.catalog.small_store import add_commit, add_table, drop_table, make, raise_horizon


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
        take_lease(tx, "l", table, 1, "scan", 60)
    clock.advance(50)
    with catalog.leasing() as tx:
        assert renew_lease(tx, "l", 60)
    clock.advance(60)
    with catalog.leasing() as tx:
        lease = {"id": "l", "table": "t", "snapshot": 1, "purpose": "scan", "expires_at": 1_110.0}
        assert leases_in(tx) == [lease]
        assert tx.end_expired_leases() == 0
    clock.advance(0.5)
    with catalog.leasing() as tx:
        assert leases_in(tx) == []
        assert lease_end(tx, "l") == 1_110.0
        assert not renew_lease(tx, "l", 60), "its snapshot may be gone"
        assert tx.end_expired_leases() == 1
        assert not renew_lease(tx, "l", 60)
        assert lease_end(tx, "l") == 0


def test_a_lease_is_refused_for_a_snapshot_that_went_since_the_table_was_looked_up(catalog: Catalog) -> None:
    table = add_table(catalog)
    for _ in range(3):
        add_commit(catalog, table)
    with catalog.writing() as tx:
        raise_horizon(tx, table, 3)
        with pytest.raises(SnapshotExpired):
            take_lease(tx, "l", table, 2, "scan", 60)
        drop_table(tx, "t")
        with pytest.raises(TableChanged):
            take_lease(tx, "l", table, 3, "scan", 60)


def test_a_lease_by_a_clock_far_ahead_is_cut_once_the_time_is_beyond_doubt(
    catalog: Catalog, clock: ManualClock
) -> None:
    table, ahead = add_table(catalog), 300 * 86_400.0
    clock.advance(ahead)
    with catalog.leasing() as tx:
        take_lease(tx, "l", table, 1, "scan", 60)
    clock._now -= ahead
    with catalog.leasing() as tx:
        assert lease_end(tx, "l") == 1_060 + ahead
        assert tx.end_expired_leases() == 0
        assert lease_end(tx, "l") == 1_000 + STREAM_LEASE_SECONDS + TRUSTED_JUMP_SECONDS


def test_who_takes_leases_alone_lets_the_store_know_the_time(catalog: Catalog, clock: ManualClock) -> None:
    table = add_table(catalog)
    for hours in (20, 20, 20, 0.5):
        clock.advance(3_600 * hours)
        with catalog.leasing() as tx:
            take_lease(tx, "l", table, 1, "scan", 60)
    with catalog.reading() as tx:
        assert tx.times.agreed, "three days at once would not be believed"
        assert tx.state.number == 4, "each time that changes it by more than an hour is a record"


def test_a_dropped_table_is_named_for_as_long_as_its_leases_last(catalog: Catalog) -> None:
    table = add_table(catalog)
    with catalog.writing() as tx:
        take_lease(tx, "l", table, 1, "scan", 60)
        drop_table(tx, "t")
    with catalog.reading() as tx:
        assert [lease["table"] for lease in leases_in(tx)] == ["t"]


# ------------------------------------------------------------------------------------------ horizons


def oldest_of(tx: Tx, table: TableInfo, seconds: float) -> int:
    oldest, held = horizons._retained(tx, seconds), oldest_held(tx, table.id)
    return oldest if held is None else min(oldest, held)


def test_what_is_needed_is_what_retention_or_the_oldest_lease_asks_for(
    catalog: Catalog, clock: ManualClock
) -> None:
    table, other = add_table(catalog), add_table(catalog, "other")  # at 1,000 s
    for _ in range(3):
        clock.advance(10)
        add_commit(catalog, table)  # commits 3, 4, 5 at 1,010 s, 1,020 s, 1,030 s
    with catalog.leasing() as tx:
        found = [oldest_of(tx, table, seconds) for seconds in (0, 9, 10, 19, 20, 31, 1_000)]
        assert found == [5, 4, 4, 3, 3, 0, 0]
        take_lease(tx, "l", table, 4, "scan", 60)
        take_lease(tx, "m", table, 3, "scan", 5)
        take_lease(tx, "n", other, 2, "scan", 60)
        assert oldest_of(tx, table, 0) == oldest_held(tx, table.id) == 3
        assert oldest_of(tx, table, 1_000) == 0
        assert oldest_needed(tx, [0, 9]) == 2
    clock.advance(6)
    with catalog.reading() as tx:
        assert oldest_of(tx, table, 0) == 4
        assert oldest_of(tx, other, 0) == 2
        assert oldest_held(tx, 99) is None


def test_commits_of_other_tables_take_no_snapshot_away(catalog: Catalog, clock: ManualClock) -> None:
    table, other = add_table(catalog), add_table(catalog, "other")  # commits 1 and 2, at 1,000 s
    for of in (table, other, table, other, other):  # commits 3 to 7, at 1,010 s and so on
        clock.advance(10)
        add_commit(catalog, of)
    with catalog.writing() as tx:
        assert [horizon_of(tx, table.id, seconds) for seconds in (0, 15, 25, 35, 45)] == [5, 5, 3, 3, 1]
        assert [horizon_of(tx, other.id, seconds) for seconds in (0, 15, 25, 35, 45)] == [7, 4, 4, 2, 2]
        take_lease(tx, "l", table, 4, "scan", 60)
        assert horizon_of(tx, table.id, 0) == 3
        raise_horizon(tx, table, 4)
        assert horizon_of(tx, table.id, 35) == 4, "what is gone stays gone"


def test_while_a_lease_is_damaged_no_horizon_is_given(catalog: Catalog) -> None:
    table = add_table(catalog)
    with catalog.leasing() as tx:
        take_lease(tx, "l", table, 1, "scan", 60)
        take_lease(tx, "whole", table, 1, "scan", 60)
        tx.execute("UPDATE lease SET kind = 'OwnedStep' WHERE id = 'Hold/l'")
    with catalog.leasing() as tx:
        for look in (lambda: horizon_of(tx, table.id, 0), tx.end_expired_leases, lambda: leases_in(tx)):
            with pytest.raises(StoreDamaged, match="lease Hold/l is not what was written"):
                look()
        assert renew_lease(tx, "whole", 60)


# ------------------------------------------------------------------------------------------- secrets


def retain(tx: Tx, seconds: float | None) -> None:
    table = tx.state.table_named("t")
    tx.append(TableDefined(replace(table, retention_seconds=seconds), table.definition))


def test_a_key_opens_until_none_in_use_can_have_its_secret(catalog: Catalog, clock: ManualClock) -> None:
    add_table(catalog)
    with catalog.writing() as tx:
        ((first, secret),) = seal_keys(tx.state, tx.now).items()
        assert len(secret) == 32
        assert key_seconds(tx.state) == KEY_SECONDS
        assert offset_keys(tx.state).keys() == {1}
        retain(tx, 2.0 * KEY_SECONDS)
        assert key_seconds(tx.state) == 2 * KEY_SECONDS
        retain(tx, None)
        newest = add_secrets(tx, OFFSETS, KEYS)
        assert seal_keys(tx.state, tx.now).keys() == {first, newest}
        assert seal_keys(tx.state, tx.now)[newest] != secret
        assert forget_secrets(tx) == 0
    for _ in range(2):  # the store believes a far time when it was seen twice
        clock.advance(KEY_SECONDS + 2 * SECRETS_SECONDS)
        with catalog.leasing() as tx:
            assert seal_keys(tx.state, tx.now).keys() == {newest}
    with catalog.writing() as tx:
        assert forget_secrets(tx) == 1
        assert offset_keys(tx.state).keys() == {1, newest - 1}, "a checkpoint may be picked up after years"
        assert forget_secrets(tx, revoke=True) == 1
        assert offset_keys(tx.state).keys() == {newest - 1}


def test_a_new_incarnation_has_one_secret_of_its_own_and_goes_on_beyond_what_was_known(
    catalog: Catalog,
) -> None:
    with catalog.writing() as tx:
        before, secrets = tx.identity(), seal_keys(tx.state, tx.now)
        take_incarnation(tx, "f" * 32, (before.layout + 9, before.last_commit + 7))
        after = tx.identity()
        assert (after.incarnation, after.store_id) == ("f" * 32, before.store_id)
        assert after.layout > before.layout + 9
        assert after.last_commit == before.last_commit + 7
        (number,) = seal_keys(tx.state, tx.now)
        assert number not in secrets
        assert seal_keys(tx.state, tx.now)[number] not in secrets.values()
        assert len(offset_keys(tx.state)) == 1
