"""Histograms and fragment statistics: what they keep, and how far off their estimates are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.key_encoding import END, encode_value, successor
from elasticscan.metadata import (
    KEY_BYTES,
    Block,
    FragmentStatistics,
    KeyHistogram,
    pack_histogram,
    pack_statistics,
    unpack_histogram,
    unpack_statistics,
)
from tests.base.examples import examples


def key(value: int | None) -> bytes:
    return encode_value(pa.scalar(value, pa.int32()))


def histogram_of(values: list[int | None], steps: int = 16) -> KeyHistogram:
    """What a writer makes of these values."""
    keys = sorted(map(key, values))
    places = np.linspace(0, len(keys) - 1, steps + 1).round().astype(int)
    return KeyHistogram(len(keys), (len(set(keys)),), tuple(keys[place] for place in places))


def test_statistics_survive_packing() -> None:
    histogram = histogram_of([*range(50), None])
    blocks = (Block(key(0), key(30), 0), Block(key(30), key(50), 1))
    statistics = FragmentStatistics((30, 21), {"a": blocks})
    assert unpack_histogram(pack_histogram(histogram)) == histogram
    assert unpack_statistics(pack_statistics(statistics)) == statistics
    assert statistics.rows == 51


@pytest.mark.parametrize(
    ("values", "value", "rows"),
    [
        ([each // 10 for each in range(16_000)], 77, 10),  # as many as values have in the mean
        ([each // 10 for each in range(16_000)], -1, 0),
        ([each // 10 for each in range(16_000)], 1_600, 0),
        ([*range(8_000), *[9_000] * 8_000], 9_000, 8_000),  # it fills many steps
        ([*range(8_000), *[9_000] * 8_000], 50, 1),
    ],
)
def test_rows_of_one_value_are_estimated(values: list[int | None], value: int, rows: int) -> None:
    found = histogram_of(values).rows_equal(key(value), key(value + 1))
    assert found == pytest.approx(rows, rel=0.15, abs=3)


def test_rows_of_the_first_columns_values_are_reported_from_rows_of_all() -> None:
    rows = sorted(key(each % 10) + key(each) for each in range(1_000))
    histogram = KeyHistogram(1_000, (10, 1_000), tuple(rows[place] for place in [*range(0, 1_000, 27), 999]))
    assert histogram.rows_equal(key(3), successor(key(3)), 1) == pytest.approx(100, rel=0.3)
    assert histogram.rows_equal(key(3) + key(13), key(3) + key(14), 2) == 1


def test_frequent_values_are_known_though_their_bounds_were_cut() -> None:
    keys = sorted(encode_value(pa.scalar(text)) for text in ["a", *["b" * 60] * 99])
    histogram = KeyHistogram(100, (2,), tuple(keys[place][:KEY_BYTES] for place in (0, 25, 50, 75, 99)))
    assert histogram.rows_equal(keys[-1], successor(keys[-1])) >= 75
    assert histogram.rows_between(keys[-1], successor(keys[-1])) >= 75
    assert histogram.rows_equal(keys[0], successor(keys[0])) <= 50


def test_nothing_is_expected_of_no_rows() -> None:
    empty = KeyHistogram(0, (0,), ())
    assert empty.rows_between(b"", END) == empty.rows_equal(key(1), key(2)) == empty.step == 0
    one = KeyHistogram(5, (1,), (key(1), key(1)))
    assert one.rows_equal(key(1), key(2)) == 5
    assert one.rows_between(key(1), key(2)) == 5


@settings(deadline=None, max_examples=examples(100))
@given(
    values=st.lists(st.one_of(st.none(), st.integers(-40, 40), st.just(7)), min_size=1, max_size=300),
    ends=st.lists(st.integers(-45, 45), min_size=2, max_size=5),
)
def test_a_range_is_never_off_by_more_than_two_steps(values: list[int | None], ends: list[int]) -> None:
    histogram = histogram_of(values)
    keys = [key(each) for each in values]
    bounds = sorted(key(each) for each in ends)
    for low, high in pairwise(bounds):
        exact = sum(low <= each < high for each in keys)
        # Bounds are rounded to whole rows, which may add one on either side.
        assert abs(histogram.rows_between(low, high) - exact) <= 2 * histogram.step + 2
        assert 0 <= histogram.rows_equal(low, high) <= len(values)
    parts = sum(histogram.rows_between(low, high) for low, high in pairwise(bounds))
    assert parts == pytest.approx(histogram.rows_between(bounds[0], bounds[-1]))
