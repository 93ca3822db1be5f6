"""The cache of batches, against a plain list of what was used when."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.storage.batches import cache as cache_module
from elasticscan.storage.batches.cache import BatchCache
from tests.base.examples import examples

BOUND = 1_000

# A batch's number, its bytes in tens, and whether it lasts; number 10 forgets those that last, or the others.
USES = st.tuples(st.integers(0, 10), st.integers(1, 40), st.booleans())


def batch_of(size: int) -> pa.RecordBatch:
    return pa.record_batch({"v": np.zeros(size, dtype=np.uint8)})


class Plain:
    """What a cache should keep: [number, bytes, lasting, when it was used], used last at the end."""

    def __init__(self, age: int, most: int) -> None:
        self.kept: list[list[int]] = []
        self.age, self.most, self.passed = age, most, 0

    def bytes(self, lasting: int | None = None) -> int:
        return sum(size for _, size, lasts, _ in self.kept if lasting in (None, lasts))

    def use(self, number: int, size: int, lasts: bool) -> None:
        old = [entry for entry in self.kept if entry[0] == number]
        self.kept = [entry for entry in self.kept if entry[0] != number]
        if not old:
            self.passed += size
        self.kept.append([number, old[0][1] if old else size, lasts, self.passed])
        while len(self.kept) > 1 and (self.bytes() > BOUND or len(self.kept) > self.most):
            lasting = [entry for entry in self.kept if entry[2]]
            others = [entry for entry in self.kept if not entry[2]]
            takes_half = self.bytes(lasting=True) > BOUND // 2 or len(lasting) > self.most // 2
            too_old = lasting and self.passed - lasting[0][3] > self.age * BOUND
            self.kept.remove(lasting[0] if lasting and (not others or takes_half or too_old) else others[0])


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 4), st.sampled_from([3, 6, 1_000]), st.lists(USES, max_size=80), st.booleans())
def test_what_stays_are_the_batches_used_last_and_lasting_ones_longer(
    age: int, most: int, uses: list[tuple[int, int, bool]], too_many: bool
) -> None:
    """Lasting ones that are too many for their half are kept as any others."""
    cache, plain = BatchCache(BOUND), Plain(age, most)
    rooms = {False: cache.kept(too_many, about_bytes=BOUND // 2 + 1), True: cache.kept(lasting=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_module, "LASTING_AGE", age)
        patch.setattr(cache_module, "MOST_BATCHES", most)
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
