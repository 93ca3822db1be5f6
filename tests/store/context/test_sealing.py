"""Continuation keys of a store: their end, the secret's replacement, and keys of the longest rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import ContinuationKeyError, LimitExceeded, SnapshotExpired
from elasticscan.base.limits import CLAIM_SECONDS, KEY_SECONDS, SECRETS_SECONDS
from elasticscan.protocol import keys
from elasticscan.store import Store
from tests.base.manual_clock import ManualClock

START = 1_000_000.0
YEAR = 365 * 86_400.0
IDS = list(range(40))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.create(tmp_path / "s", ["a", "b"], tablets=4, slots=16, clock=clock) as made:
        made.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        made.table("t").upsert(pa.table({"id": IDS}))
        yield made


def begun(store: Store) -> tuple[list[int], str]:
    page = next(iter(store.table("t").scan(page_rows=7)))
    assert page.key is not None
    return page.rows["id"].to_pylist(), page.key


def ends_whole(store: Store, got: list[int], key: str) -> bool:
    return sorted(got + store.resume(key).to_table()["id"].to_pylist()) == IDS


def test_a_key_ends_after_its_time_and_each_page_renews_it(store: Store, clock: ManualClock) -> None:
    got, key = begun(store)
    clock.advance(KEY_SECONDS - 1)
    assert ends_whole(store, got, key)
    page = next(iter(store.resume(key)))
    clock.advance(1)
    with pytest.raises(SnapshotExpired, match="start a new scan"):
        store.resume(key)
    clock.advance(KEY_SECONDS - 2)
    assert page.key is not None
    assert ends_whole(store, got + page.rows["id"].to_pylist(), page.key)


@pytest.mark.parametrize("where", ["store", "table"])
def test_a_key_lives_as_long_as_its_snapshot_is_kept(tmp_path: Path, clock: ManualClock, where: str) -> None:
    kept = YEAR if where == "store" else 60.0
    with Store.create(tmp_path / "s", ["a"], 4, 16, retention_seconds=kept, clock=clock) as store:
        store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        if where == "table":
            store.table("t").set_retention(f"{YEAR}s")
            clock.advance(SECRETS_SECONDS)
        store.table("t").upsert(pa.table({"id": IDS}))
        got, key = begun(store)
        store.rotate_secret()
        clock.advance(YEAR - 1)
        store.collect_garbage()
        assert ends_whole(store, got, key)
        clock.advance(1)
        with pytest.raises(SnapshotExpired):
            store.resume(key)


def test_other_processes_use_a_new_secret_and_refuse_a_revoked_one_at_once(
    store: Store, clock: ManualClock
) -> None:
    with Store.open(store.uri, clock=clock) as other:
        signed = store.context.sealer.sign_offset("x")
        old = begun(store)
        other.rotate_secret()
        new = begun(other)
        assert ends_whole(store, *old) and ends_whole(store, *new)
        assert store.context.sealer.is_signed("x", other.context.sealer.sign_offset("x"))
        assert store.context.sealer.sign_offset("x") != signed
        other.rotate_secret(revoke=True)
        for _, key in (old, new):
            with pytest.raises(ContinuationKeyError):
                store.resume(key)
        assert ends_whole(store, *begun(other)) and ends_whole(other, *begun(store))


def test_a_scan_under_way_goes_on_when_its_secret_is_revoked(store: Store) -> None:
    pages = iter(store.table("t").scan(page_rows=7))
    got = next(pages).rows["id"].to_pylist()
    store.rotate_secret(revoke=True)
    page = next(pages)
    assert page.key is not None
    assert ends_whole(store, got + page.rows["id"].to_pylist(), page.key)


def test_old_secrets_of_offsets_count_until_they_are_revoked(store: Store, clock: ManualClock) -> None:
    signed = store.context.sealer.sign_offset("x")
    store.rotate_secret()
    clock.advance(YEAR)
    store.collect_garbage()
    clock.advance(CLAIM_SECONDS)
    store.collect_garbage()
    assert store.context.sealer.is_signed("x", signed)
    store.rotate_secret(revoke=True)
    assert not store.context.sealer.is_signed("x", signed)


def test_a_key_that_would_be_refused_is_not_given_out_and_the_scan_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MAX_KEY_CHARS", 10)
    got = []
    for page in store.table("t").scan(page_rows=7):
        got += page.rows["id"].to_pylist()
        if len(got) < len(IDS):
            with pytest.raises(LimitExceeded):
                _ = page.key
    assert sorted(got) == IDS
