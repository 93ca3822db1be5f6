"""Continuation keys and offsets of a store: their end, and the replacement of their secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import LimitExceeded
from elasticscan.base.limits import CLAIM_SECONDS
from elasticscan.protocol import keys
from elasticscan.store import Store
from tests.base.manual_clock import ManualClock

YEAR = 365 * 86_400.0
IDS = list(range(40))


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.create(tmp_path / "s", ["a", "b"], tablets=4, slots=16, clock=clock) as made:
        made.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        made.table("t").upsert(pa.table({"id": IDS}))
        yield made


def test_old_secrets_of_offsets_count_until_they_are_revoked(store: Store, clock: ManualClock) -> None:
    signed = store.context.sealer.offsets.of("x")
    store.rotate_secret()
    clock.advance(YEAR)
    store.collect_garbage()
    clock.advance(CLAIM_SECONDS)
    store.collect_garbage()
    assert store.context.sealer.offsets.verify("x", signed)
    store.rotate_secret(revoke=True)
    assert not store.context.sealer.offsets.verify("x", signed)


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
