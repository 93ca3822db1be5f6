"""Statistics of a fragment, collected batch by batch while it is written.

Blocks are exact: the lowest and the highest value and the nulls of every record batch. Histograms
come from a sample of at most `SAMPLE_ROWS` rows, whatever the fragment's size: every row draws a
mark, and those with the lowest marks are the sample. The marks are pseudo-random, always the same
ones, so that the same rows give the same statistics; every n-th row would not do, because rows may
come in such a rhythm, as with two lines for every customer.

How many different values a column has is Chao's estimate for samples without replacement (Chao and
Lin, 2012): what was seen, plus what the numbers of values seen once and twice say about the rest.
It is exact when the sample is everything, and all rows when no value was seen twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elasticscan.base.value_keys import NULL, can_be_encoded, encode_value, sort_codes, successor
from elasticscan.metadata import KEY_BYTES, Block, ColumnStatistics, FragmentStatistics, KeyHistogram

SAMPLE_ROWS = 4_096
HISTOGRAM_STEPS = 64
SAMPLE_VALUE_BYTES = 256  # longer texts are cut in the sample, so that it cannot become large
_FEW_ROWS = 1_024  # below, comparing eight bytes at a time gains nothing

_SMALL_TEXTS = frozenset({pa.string().id, pa.binary().id})
_LARGE_TEXTS = frozenset({pa.large_string().id, pa.large_binary().id})
_FIXED = pa.binary(1).id


class StatisticsCollector:
    """Is shown every record batch of a fragment, in order.

    Columns of types without value keys are left out. Tombstones count like other rows: their value
    columns are nulls, their keys are within the bounds.
    """

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._columns = {f.name: _Column() for f in fields if can_be_encoded(f.type)}
        self._sample = _Sample(list(self._columns))
        self._block_rows: list[int] = []

    def add(self, rows: pa.RecordBatch) -> None:
        self._block_rows.append(rows.num_rows)
        for name, column in self._columns.items():
            column.add(rows.column(name))
        self._sample.add(rows)

    def finish(self) -> FragmentStatistics:
        total = sum(self._block_rows)
        sampled = self._sample.columns()
        return FragmentStatistics(
            tuple(self._block_rows),
            {
                name: ColumnStatistics(column.histogram(sampled.get(name), total), tuple(column.blocks))
                for name, column in self._columns.items()
            },
        )


class _Column:
    """The blocks of one column, and the bounds of all of them."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._low: bytes | None = None
        self._high: bytes = NULL

    def add(self, values: pa.Array) -> None:
        nulls = values.null_count
        if nulls:
            self._low = NULL
        if nulls == len(values):
            self.blocks.append(Block(b"", b"", nulls))
            return
        first, last = extremes(values.drop_null() if nulls else values)
        low, high = first[:KEY_BYTES], _cut_up(last)
        self._low = low if self._low is None else min(self._low, low)
        self._high = max(self._high, high)
        self.blocks.append(Block(low, high + b"\0" if high == last else high, nulls))

    def histogram(self, sample: pa.Array | None, rows: int) -> KeyHistogram:
        if sample is None or self._low is None:
            return KeyHistogram(0, (0,), ())
        codes = sort_codes(sample)
        order = np.lexsort(tuple(reversed(codes)))
        steps = min(HISTOGRAM_STEPS, max(len(order) - 1, 1))
        cuts = np.arange(1, steps) * (len(order) - 1) // steps
        inner = [encode_value(sample[row])[:KEY_BYTES] for row in order[cuts].tolist()]
        distinct = _distinct(codes, order, rows)
        return KeyHistogram(rows, (distinct,), (self._low, *inner, self._high))


def _cut_up(key: bytes) -> bytes:
    """The key, or if it is too long to keep, a short one above every key that begins like it."""
    return key if len(key) <= KEY_BYTES else successor(key[:KEY_BYTES])


def extremes(values: pa.Array) -> tuple[bytes, bytes]:
    """The keys of the lowest and the highest value of a column that has values and no nulls.

    Where keys are longer than `KEY_BYTES`, the keys of values that agree with those so far.
    """
    if pa.types.is_floating(values.type):
        low, high = _float_extremes(values)
        return encode_value(low), encode_value(high)
    lowest, highest = _narrowed(values)
    if lowest is highest:
        found = pc.min_max(values)
        return encode_value(found["min"]), encode_value(found["max"])
    return encode_value(pc.min(lowest)), encode_value(pc.max(highest))


def _float_extremes(values: pa.Array) -> tuple[pa.Scalar, pa.Scalar]:
    """NaN is above all numbers, where Arrow would leave it out."""
    numbers = values.to_numpy(zero_copy_only=False)
    low, high = numbers.min(), numbers.max()  # both are NaN when there is one
    if np.isnan(high):
        low = np.fmin.reduce(numbers)
    return pa.scalar(float(low), values.type), pa.scalar(float(high), values.type)


def _narrowed(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Some of the values, with the lowest of all among the first, the highest among the second.

    Of texts that are equally long, such as ids, eight bytes of each are compared at a time, which
    takes an eighth of the time that Arrow needs. Other values come back as they are.
    """
    place = _equal_lengths(values) if len(values) >= _FEW_ROWS else None
    if place is None:
        return values, values
    data, first, width = place
    for at in range(0, min(width, KEY_BYTES) - 7, 8):
        words: NDArray[Any] = np.ndarray(
            (len(values),), ">u8", buffer=data, offset=first + at, strides=(width,)
        )
        codes = words.astype(np.uint64)
        low, high = codes.min(), codes.max()
        if low != high:
            return _where(values, codes == low), _where(values, codes == high)
    return values, values


def _where(values: pa.Array, wanted: NDArray[np.bool_]) -> pa.Array:
    return values.take(pa.array(np.flatnonzero(wanted)))


def _equal_lengths(values: pa.Array) -> tuple[pa.Buffer, int, int] | None:
    """Where texts of one length are: buffer, first byte, length. None for all other values."""
    kind = values.type.id
    if kind == _FIXED:
        width: int = values.type.byte_width
        return values.buffers()[1], values.offset * width, width
    if kind not in _SMALL_TEXTS and kind not in _LARGE_TEXTS:
        return None
    item = np.dtype(np.int32 if kind in _SMALL_TEXTS else np.int64)
    _, places, data = values.buffers()
    offsets = np.frombuffer(places, item, len(values) + 1, values.offset * item.itemsize)
    lengths = np.diff(offsets)
    width = int(lengths[0])
    return None if data is None or (lengths != width).any() else (data, int(offsets[0]), width)


class _Sample:
    """The rows with the lowest marks of all that were shown. Marks are even in [0, 1)."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._random = np.random.default_rng(0)
        self._limit = 1.0  # rows with marks from here on cannot be among the lowest any more
        self._held = 0
        self._marks: list[NDArray[np.float64]] = []
        self._rows: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> None:
        chosen, marks = self._draw(rows.num_rows)
        if not len(chosen):
            return
        # A copy, never a slice: slices would hold on to the batches that they are from.
        self._rows.append(_shortened(rows.select(self._names).take(pa.array(chosen))))
        self._marks.append(marks)
        self._held += len(chosen)
        if self._held > 2 * SAMPLE_ROWS:
            self._shrink()

    def _draw(self, count: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Those of `count` rows whose marks are below the limit, ascending, and their marks."""
        if self._limit < 1:  # no need to draw the marks of the others
            below = int(self._random.binomial(count, self._limit))
            chosen = self._random.choice(count, below, replace=False, shuffle=False)
            return np.sort(chosen), self._random.random(below) * self._limit
        marks = self._random.random(count)
        chosen = np.arange(count) if count <= SAMPLE_ROWS else self._lowest(marks)
        return chosen, marks[chosen]

    def columns(self) -> dict[str, pa.Array]:
        """The sampled values of each column."""
        if not self._rows:
            return {}
        self._shrink()
        return dict(zip(self._names, self._rows[0].columns, strict=True))

    def _shrink(self) -> None:
        rows, marks = pa.concat_batches(self._rows), np.concatenate(self._marks)
        if len(marks) > SAMPLE_ROWS:
            kept = self._lowest(marks)
            rows, marks = rows.take(pa.array(kept)), marks[kept]
        self._rows, self._marks, self._held = [rows], [marks], len(marks)

    def _lowest(self, marks: NDArray[np.float64]) -> NDArray[np.intp]:
        """Where the lowest `SAMPLE_ROWS` marks are, ascending; lowers the limit to the next mark."""
        order = np.argpartition(marks, SAMPLE_ROWS)
        self._limit = float(marks[order[SAMPLE_ROWS]])
        return np.sort(order[:SAMPLE_ROWS])


def _shortened(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with long texts cut, as bytes; neither order nor cut keys notice."""
    columns = [_cut_texts(column) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _cut_texts(column: pa.Array) -> pa.Array:
    kind = column.type.id
    if kind in _SMALL_TEXTS or kind in _LARGE_TEXTS:
        column = column.cast(pa.binary() if kind in _SMALL_TEXTS else pa.large_binary())  # no copy
        is_long = (pc.max(pc.binary_length(column)).as_py() or 0) > SAMPLE_VALUE_BYTES
    else:
        is_long = kind == _FIXED and column.type.byte_width > SAMPLE_VALUE_BYTES
    return pc.binary_slice(column, 0, SAMPLE_VALUE_BYTES) if is_long else column


def _distinct(codes: Sequence[NDArray[Any]], order: NDArray[np.intp], rows: int) -> int:
    """About how many different values `rows` rows have, of which those with these codes are a sample."""
    sampled = len(order)
    first = np.zeros(sampled, dtype=bool)
    first[0] = True
    for column in codes:
        ordered = column[order]
        first[1:] |= ordered[1:] != ordered[:-1]
    counts = np.diff(np.flatnonzero(first), append=sampled)
    seen, once, twice = len(counts), int((counts == 1).sum()), int((counts == 2).sum())
    if sampled == rows or not once:
        return seen
    more = once**2 / (2 * twice * sampled / (sampled - 1) + once * sampled / (rows - sampled))
    return min(rows, seen + round(more))
