"""Decimals as whole numbers of units of their last place, in 64 bits, and back.

Arrow computes and compares numbers of 64 bits many times as fast as decimals, which have 128 or 256.
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from elasticscan.base.hashing import raw_values

ALL_DIGITS = Context(prec=76)
# Decimals of so many digits fit 64 bits.
NARROW_DIGITS = 18


def is_narrow(kind: pa.DataType) -> bool:
    """Return True for decimals that 64 bits always hold."""
    return bool(pt.is_decimal128(kind) and kind.precision <= NARROW_DIGITS)


def low_words(values: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Return the low 64 bits of decimals, 0 where there is null; None if these do not hold all numbers."""
    if not len(values):
        return np.empty(0, np.int64)  # which may have no buffer at all
    words = raw_values(values, np.int64, 2).reshape(-1, 2)
    low = np.ascontiguousarray(words[:, 0])
    is_null = np.asarray(values.is_null()) if values.null_count else None
    if not is_narrow(values.type):
        fits = words[:, 1] == low >> 63
        if not (fits if is_null is None else fits | is_null).all():
            return None
    return low if is_null is None else np.where(is_null, 0, low)


def to_units(values: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    """Narrow decimals in units; what is null stays so."""
    if isinstance(values, pa.Array):
        return pa.array(low_words(values), mask=np.asarray(values.is_null()) if values.null_count else None)
    value = values.as_py()
    return pa.scalar(None if value is None else whole_units(value, values.type.scale), pa.int64())


def whole_units(value: Decimal, scale: int) -> int:
    return int(value.scaleb(scale, ALL_DIGITS))


def as_decimals(units: pa.Array, kind: pa.DataType) -> pa.Array:
    """Whole numbers of units of a decimal type's last place, as decimals of that type, which holds them."""
    words = np.empty((len(units), 2), np.int64)
    words[:, 0] = np.asarray(units.fill_null(0))
    words[:, 1] = words[:, 0] >> 63
    present = units.is_valid().buffers()[1] if units.null_count else None
    return pa.Array.from_buffers(kind, len(units), [present, pa.py_buffer(words)])
