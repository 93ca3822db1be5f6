"""The cache of batches, compared with a plain list in the order of use."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.storage.batches import reader as reader_module
from elasticscan.storage.batches.reader import BatchCache
from tests.base.examples import examples

BOUND = 1_000

# A batch's number, its bytes in tens, and its reader; number 10 drops the batches of one reader.
USES = st.tuples(st.integers(0, 10), st.integers(1, 40), st.integers(0, 1))


def batch_of(size: int) -> pa.RecordBatch:
    return pa.record_batch({"v": np.zeros(size, dtype=np.uint8)})


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from([3, 6, 1_000]), st.lists(USES, max_size=80))
def test_what_stays_are_the_batches_used_last(most: int, uses: list[tuple[int, int, int]]) -> None:
    cache, plain = BatchCache(BOUND), dict[tuple[int, int], int]()
    readers = [cache.kept(), cache.kept()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "MOST_BATCHES", most)
        for number, tens, reader in uses:
            if number == 10:
                readers[reader].forget(range(10))
                plain = {key: size for key, size in plain.items() if key[0] != reader}
            else:
                readers[reader].get(number, lambda _, tens=tens: batch_of(10 * tens))  # type: ignore[misc]
                key = (reader, number)
                plain[key] = plain.pop(key, 10 * tens)
                while len(plain) > 1 and (sum(plain.values()) > BOUND or len(plain) > most):
                    del plain[next(iter(plain))]
            kept = {(at, number) for at in (0, 1) for number in range(10) if readers[at].peek(number)}
            assert kept == plain.keys()
            assert cache._bytes == sum(plain.values())
