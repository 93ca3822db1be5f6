"""The cache of batches, against a plain list of what was used when."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.storage.batches import cache as cache_module
from elasticscan.storage.batches.cache import BatchCache, KeptBatches
from tests.base.examples import examples

BOUND = 1_000

# A batch's number, its bytes in tens, and whether it lasts; number 10 forgets those that last, or the others.
USES = st.tuples(st.integers(0, 10), st.integers(1, 40), st.booleans())


def batch_of(size: int) -> pa.RecordBatch:
    return pa.record_batch({"v": np.zeros(size, dtype=np.uint8)})


class Plain:
    """What a cache should keep: [number, bytes, lasting, when it was used], used last at the end."""

    def __init__(self, age: int) -> None:
        self.kept: list[list[int]] = []
        self.age, self.passed = age, 0

    def bytes(self, lasting: int | None = None) -> int:
        return sum(size for _, size, lasts, _ in self.kept if lasting in (None, lasts))

    def use(self, number: int, size: int, lasts: bool) -> None:
        old = [entry for entry in self.kept if entry[0] == number]
        self.kept = [entry for entry in self.kept if entry[0] != number]
        if not old:
            self.passed += size
        self.kept.append([number, old[0][1] if old else size, lasts, self.passed])
        while self.bytes() > BOUND and len(self.kept) > 1:
            lasting = [entry for entry in self.kept if entry[2]]
            others = [entry for entry in self.kept if not entry[2]]
            takes_half = self.bytes(lasting=True) > BOUND // 2
            too_old = lasting and self.passed - lasting[0][3] > self.age * BOUND
            self.kept.remove(lasting[0] if lasting and (not others or takes_half or too_old) else others[0])


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 4), st.lists(USES, max_size=80))
def test_what_stays_are_the_batches_used_last_and_lasting_ones_longer(
    age: int, uses: list[tuple[int, int, bool]]
) -> None:
    cache, plain = BatchCache(BOUND), Plain(age)
    rooms = {lasts: cache.kept(lasts) for lasts in (False, True)}
    before, cache_module.LASTING_AGE = cache_module.LASTING_AGE, age
    try:
        for number, tens, lasts in uses:
            if number == 10:
                rooms[lasts].forget()
                plain.kept = [entry for entry in plain.kept if entry[2] != lasts]
            else:
                rooms[lasts].get(number, lambda _, tens=tens: batch_of(10 * tens))  # type: ignore[misc]
                plain.use(number if lasts else -1 - number, 10 * tens, lasts)
            kept = {
                number if lasts else -1 - number
                for lasts in rooms
                for number in range(10)
                if number in rooms[lasts]
            }
            assert kept == {number for number, *_ in plain.kept}
            assert cache._bytes == plain.bytes()
            assert cache._bytes <= BOUND or len(kept) == 1
    finally:
        cache_module.LASTING_AGE = before


def pass_by(cache: BatchCache, size: int) -> None:
    """A scan of so many bytes, of which nothing is asked for again."""
    others = cache.kept()
    for number in range(size // 100):
        others.get(number, lambda _: batch_of(100))


def lasting_in(cache: BatchCache, sizes: list[int]) -> KeptBatches:
    lasting = cache.kept(lasting=True)
    for number, size in enumerate(sizes):
        lasting.get(number, lambda _, size=size: batch_of(size))  # type: ignore[misc]
    return lasting


def test_what_is_larger_than_the_room_for_lasting_batches_is_kept_as_any_other() -> None:
    cache = BatchCache(BOUND)
    lasting, large = lasting_in(cache, [100]), cache.kept(lasting=True, about_bytes=BOUND // 2 + 1)
    for number in range(10):
        large.get(number, lambda _: batch_of(100))
    pass_by(cache, BOUND)
    assert 0 in lasting
    assert not any(number in large for number in range(10))


def test_batches_of_few_rows_are_bounded_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MOST_BATCHES", 8)
    cache = BatchCache(1 << 30)
    lasting = lasting_in(cache, [1] * 20)
    pass_by(cache, 2_000)
    assert [number for number in range(20) if number in lasting] == [16, 17, 18, 19]
    assert len(cache._batches) + len(cache._lasting) == 8
    assert cache._bytes == 4 * 1 + 4 * 100
