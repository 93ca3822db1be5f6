"""Codes of several columns as one integer, against `numpy.lexsort`."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from elasticscan.storage.fragment import rows_below
from elasticscan.storage.merge import pack
from tests.base.examples import examples

KINDS = [np.bool_, np.uint8, np.uint16, np.int32, np.int64, np.uint64]


def column(draw: st.DrawFn, count: int) -> NDArray[Any]:
    kind = np.dtype(draw(st.sampled_from(KINDS)))
    if kind.kind == "b":
        values: Any = st.booleans()
    else:
        ends = np.iinfo(kind)
        few = st.integers(max(int(ends.min), -3), 3)
        values = draw(st.sampled_from([few, st.integers(int(ends.min), int(ends.max))]))
    return np.array(draw(st.lists(values, min_size=count, max_size=count)), dtype=kind)


@st.composite
def columns(draw: st.DrawFn) -> list[NDArray[Any]]:
    count = draw(st.integers(0, 40))
    return [column(draw, count) for _ in range(draw(st.integers(1, 5)))]


@settings(max_examples=examples(200), deadline=None)
@given(columns())
def test_packed_codes_sort_and_compare_as_the_columns_do(codes: list[NDArray[Any]]) -> None:
    packed = pack(codes)
    rows = list(zip(*(code.tolist() for code in codes), strict=True))
    assert packed is not None, "ranks of forty rows fit"
    order = np.argsort(packed[0], kind="stable").tolist()
    assert order == sorted(range(len(rows)), key=rows.__getitem__)
    keys = (packed[0] >> packed[1]).tolist()
    for (key, row), (other, another) in zip(
        zip(keys, rows, strict=True), zip(keys[1:], rows[1:], strict=False), strict=False
    ):
        assert (key == other) == (row[:-1] == another[:-1])


def test_codes_of_many_wide_columns_do_not_fit() -> None:
    wide = [np.random.default_rng(n).permutation(1 << 17) for n in range(4)]
    assert pack(wide) is None


@given(st.lists(st.integers(0, (1 << 16) - 1), max_size=30), st.integers(0, 1 << 16))
def test_rows_below_a_slot_are_counted_up_to_one_beyond_the_last(slots: list[int], slot: int) -> None:
    ascending = np.array(sorted(slots), dtype=np.uint16)
    assert rows_below(ascending, slot) == sum(one < slot for one in slots)
