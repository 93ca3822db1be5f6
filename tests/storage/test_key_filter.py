"""Filters of primary keys: they deny no key that is there, few others get through, and they are earned."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.storage import key_filter
from elasticscan.storage.batches.cache import BatchCache
from elasticscan.storage.key_filter import KeyFilter, KeyHashes, key_hashes
from tests.base.examples import examples
from tests.storage.versions import KEY_KINDS, Key, KeyKind

SEEDS = st.integers(0, 1 << 32)
MANY = 40 * key_filter.ROWS_PER_SEARCH


def arrays_of(kind: KeyKind, keys: list[Key], rng: random.Random) -> list[pa.Array]:
    """Keys as columns that begin anywhere in their buffers."""
    before, after = ([kind.make(rng, n) for n in range(rng.randint(0, 9))] for _ in range(2))
    rows = [*before, *keys, *after]
    return [
        pa.array([key[at] for key in rows], field.type).slice(len(before), len(keys))
        for at, field in enumerate(kind.fields)
    ]


def never() -> KeyHashes:
    raise AssertionError("the filter is made already")


@pytest.mark.parametrize("name", KEY_KINDS)
@settings(max_examples=examples(40), deadline=None)
@given(seed=SEEDS)
def test_a_filter_denies_no_key_that_is_there_and_most_others(name: str, seed: int) -> None:
    rng, kind = random.Random(seed), KEY_KINDS[name]
    keys = list({kind.make(rng, n) for n in range(rng.randint(0, 60))})
    own, others = keys[::2], keys[1::2]
    hashes = dict(zip(keys, key_hashes(arrays_of(kind, keys, rng)).tolist(), strict=True))
    tested = KeyFilter(BatchCache().kept(), len(own))
    asked = rng.sample(keys, len(keys))
    sought = key_hashes(arrays_of(kind, asked, rng))
    assert sought.tolist() == [hashes[key] for key in asked]
    may_have = tested.may_have(sought, lambda: key_hashes(arrays_of(kind, own, rng)))
    passed = {key for key, may in zip(asked, may_have.tolist(), strict=True) if may}
    assert set(own) <= passed
    assert passed & set(others) == {key for key in others if hashes[key] in {hashes[one] for one in own}}


def test_hashes_of_numbers_side_by_side_differ() -> None:
    assert len(np.unique(key_hashes([pa.array(np.arange(100_000))]))) > 99_990
    columns = np.divmod(np.arange(100_000), 300)
    assert len(np.unique(key_hashes([pa.array(column) for column in columns]))) > 99_990


def test_a_filter_is_made_once_searches_have_cost_as_much() -> None:
    tested = KeyFilter(BatchCache().kept(), MANY)
    asked = 0
    while not tested.is_worth_asking(1):
        asked += 1
    assert 30 < asked < 40
    more = KeyFilter(BatchCache().kept(), MANY)
    assert not more.is_worth_asking(1)
    assert more.is_worth_asking(MANY // key_filter.ROWS_PER_KEY)


def test_a_small_fragment_has_one_at_once_and_a_very_large_one_never() -> None:
    assert KeyFilter(BatchCache().kept(), 100).is_worth_asking(1)
    large = KeyFilter(BatchCache().kept(), key_filter.MOST_ROWS + 1)
    assert not any(large.is_worth_asking(1 << 20) for _ in range(1_000))


def test_a_filter_that_the_cache_has_dropped_is_earned_anew() -> None:
    cache = BatchCache(most_bytes=4 * MANY + 1_000)
    tested, all_keys = KeyFilter(cache.kept(), MANY), np.arange(MANY, dtype=np.uint32)
    while not tested.is_worth_asking(1):
        pass
    assert tested.may_have(all_keys[:3], lambda: all_keys).all()
    assert tested.is_worth_asking(1)
    assert tested.may_have(all_keys[:3], never).all()
    other = cache.kept()
    other.get(0, lambda _: pa.record_batch({"v": np.zeros(MANY // 2)}))
    assert not tested.is_worth_asking(1)
