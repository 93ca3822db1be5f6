"""Parts of files: what is left out, and what is fetched together."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.storage.disk import Parts
from tests.base.examples import examples

MB = 1 << 20


def test_small_holes_are_read_and_large_ones_left_out() -> None:
    parts = Parts.of([(5, 100), (200, 300), (MB, MB + 1), (2 * MB, 2 * MB + 1)], 64, 3 * MB)
    assert parts == Parts((0, MB, 2 * MB), (320, MB + 64, 2 * MB + 64))


def test_most_of_a_file_is_all_of_it() -> None:
    assert Parts.of([(0, MB), (2 * MB, 4 * MB)], 64, 4 * MB) == Parts((0, 2 * MB), (MB, 4 * MB))
    assert Parts.of([(0, MB), (2 * MB, 4 * MB)], 64, 4 * MB - 100) is None


def test_parts_after_a_place_are_some_at_a_time() -> None:
    parts = Parts((0, MB, 2 * MB), (100, MB + 100, 2 * MB + 100))
    assert parts.after(50, 3 * MB, 150) == [(50, 100), (MB, MB + 100)]
    assert parts.after(200, 2 * MB + 10, MB) == [(MB, MB + 100), (2 * MB, 2 * MB + 10)]
    assert parts.after(3 * MB, 4 * MB, MB) == []
    many = Parts(tuple(range(0, 100 * MB, MB)), tuple(range(1, 100 * MB, MB)))
    assert len(many.after(0, 100 * MB, MB)) == 32


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 50 * MB), st.integers(1, MB)), min_size=1, max_size=30))
def test_every_place_is_within_a_part(places: list[tuple[int, int]]) -> None:
    spans = sorted((begin, begin + length) for begin, length in places)
    parts = Parts.of(spans, 1 << 16, 1 << 40)
    assert parts is not None
    pairs = list(zip(parts.begins, parts.ends, strict=True))
    assert all(any(b <= low and high <= e for b, e in pairs) for low, high in spans)
    assert all(one[1] < other[0] for one, other in pairwise(pairs))
