"""Codes of several columns as one integer for each row, which sorts and compares as they do together.

One integer is sorted several times as fast as some, and sorted runs one behind the other are merged, not
sorted again, by a stable sort.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_BITS = 63


def pack(codes: Sequence[NDArray[Any]]) -> tuple[NDArray[np.int64], int] | None:
    """Return the integers, and how many of their lowest bits are the last code's; None when they do not fit.

    Args:
        codes: integers of the same number of rows, the most significant first. The widest become ranks
            where that helps.
    """
    if not len(codes[0]):
        return np.empty(0, dtype=np.int64), 0
    codes = list(codes)
    widths = [_bits(code) for code in codes]
    most = len(codes[0]).bit_length()
    while sum(widths) > _MOST_BITS and max(widths) > most:
        widest = int(np.argmax(widths))
        codes[widest] = _ranks(codes[widest])
        widths[widest] = _bits(codes[widest])
    if sum(widths) > _MOST_BITS:
        return None
    packed = np.zeros(len(codes[0]), dtype=np.int64)
    for code, width in zip(codes, widths, strict=True):
        narrow = code.dtype.itemsize < 8 or code.dtype.kind == "b"
        above_lowest = (code.astype(np.int64) if narrow else code) - code.min()
        packed <<= width
        packed |= above_lowest.astype(np.int64, copy=False)
    return packed, widths[-1]


def pack_alike(
    left: Sequence[NDArray[Any]], right: Sequence[NDArray[Any]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return integers for the rows of two parts that compare across both; None when they do not fit.

    Nothing is ranked, so it costs a few passes however the values lie.
    """
    lows = [min(int(a.min()), int(b.min())) for a, b in zip(left, right, strict=True)]
    highs = [max(int(a.max()), int(b.max())) for a, b in zip(left, right, strict=True)]
    counts = [high - low + 1 for low, high in zip(lows, highs, strict=True)]
    if math.prod(counts) >> _MOST_BITS:
        return None
    weights = [math.prod(counts[at + 1 :]) for at in range(len(counts))]
    lowest = sum(low * weight for low, weight in zip(lows, weights, strict=True))
    lowest = (lowest + (1 << 63)) % (1 << 64) - (1 << 63)  # sums wrap around, and so must what they begin at
    return _weighted(left, weights, lowest), _weighted(right, weights, lowest)


def _weighted(codes: Sequence[NDArray[Any]], weights: Sequence[int], lowest: int) -> NDArray[np.int64]:
    total: NDArray[np.int64] = np.multiply(codes[0], weights[0], dtype=np.int64)
    for code, weight in zip(codes[1:], weights[1:], strict=True):
        total += code if weight == 1 else np.multiply(code, weight, dtype=np.int64)
    total -= lowest
    return total


def _bits(code: NDArray[Any]) -> int:
    return (int(code.max()) - int(code.min())).bit_length()


def _ranks(code: NDArray[Any]) -> NDArray[np.int64]:
    order = np.argsort(code)
    ordered = code[order]
    ranks = np.empty(len(code), dtype=np.int64)
    ranks[order] = np.cumsum(np.concatenate(([False], ordered[1:] != ordered[:-1])))
    return ranks
