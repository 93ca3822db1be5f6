"""Bounds of value keys: which stored values are below, equal to and above a constant.

A filter compares the values of a column after conversions: explicit ones and those of Spark. An index has
keys of the stored values. If the conversions keep the order, the stored values that are below (or equal to,
or above) a constant are one interval, even if a conversion makes different values equal, as a timestamp cut
to its day. Bisection finds the ends of the interval with the code that converts columns. So `n < 2.5` over
whole numbers ends at 3, without a table of roundings that would have to agree with the evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.types as pt

from elasticscan.base.errors import FilterError
from elasticscan.base.key_encoding import END, NULL, VALUES, can_be_encoded, encode_value, successor, value_of
from elasticscan.filters.casts import cast_array, may_fail
from elasticscan.filters.coercion import TIMESTAMP, TIMESTAMP_NTZ, computed_type, is_integer, is_number
from elasticscan.filters.key_sets import KeySet

_TEXT_END = b"\0\0"  # of strings and binaries of any length
_EMPTY = VALUES + _TEXT_END  # the lowest key of a text
_FAR = (pa.ArrowInvalid, FilterError, OverflowError)
_KEEP_ORDER = {
    (pa.bool_(), pa.string()), (pa.string(), pa.binary()), (pa.date32(), TIMESTAMP),
    (pa.date32(), TIMESTAMP_NTZ), (TIMESTAMP, pa.date32()), (TIMESTAMP_NTZ, pa.date32()),
    (TIMESTAMP, TIMESTAMP_NTZ), (TIMESTAMP_NTZ, TIMESTAMP),
}  # fmt: skip


def keeps_order(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True if a conversion never fails, and never turns a < b into a > b."""
    if (pt.is_boolean(source) or is_number(source)) and is_number(target):
        return not may_fail(source, target)
    return (source, target) in _KEEP_ORDER


@lru_cache(maxsize=64)
def axis_of(stored: pa.DataType) -> Axis | None:
    """Return the axis of a type; None for a type without an order, or without support in filters."""
    if not can_be_encoded(stored):
        return None
    if pt.is_fixed_size_binary(stored):
        return BytesAxis(stored.byte_width) if stored.byte_width else None
    if (computed := computed_type(stored)) in (pa.string(), pa.binary()):
        return TextAxis(utf8=computed == pa.string())
    if pt.is_float32(stored) or pt.is_float64(stored):
        return FloatAxis(stored)
    if pt.is_decimal128(stored):
        most = 10**stored.precision - 1
        return FixedAxis(stored, 16, (1 << 127) - most, (1 << 127) + most) if stored.scale >= 0 else None
    if pt.is_boolean(stored):
        return FixedAxis(stored, 1, 0, 1)
    if is_integer(stored) or pt.is_date32(stored) or pt.is_timestamp(stored):
        width = stored.bit_width // 8
        return FixedAxis(stored, width, 0, (1 << 8 * width) - 1)
    return None


def single_values(keys: KeySet, stored: pa.DataType, most: int) -> list[bytes] | None:
    """Return the key of each value in a set (`BETWEEN 10 AND 12`: three), or None for more than `most`.

    >>> ten_to_twelve = KeySet.of([(encode_value(pa.scalar(10)), encode_value(pa.scalar(13)))])
    >>> [value_of(key, pa.int64()).as_py() for key in single_values(ten_to_twelve, pa.int64(), 3) or ()]
    [10, 11, 12]
    """
    axis = axis_of(stored)
    singles: list[bytes] = []
    for low, high in keys.intervals:
        singles += [] if low else [NULL]
        if high > VALUES:
            values = axis.values(max(low, VALUES), high, most - len(singles)) if axis else None
            if values is None:
                return None
            singles += values
    return singles if len(singles) <= most else None


class FixedAxis:
    """Stored values in their order. Keys are the numbers from `first` to `last` in `width` bytes; steps count
    from `first`."""

    def __init__(self, stored: pa.DataType, width: int, first: int, last: int) -> None:
        self.stored, self.width, self.first = stored, width, first
        self.steps = last - first + 1

    def cuts(
        self, types: Sequence[pa.DataType], constant: pa.Scalar, may_bisect: bool = True
    ) -> tuple[bytes, bytes] | None:
        """Return (low, high): converted to each of `types` in turn, stored values below low are less than the
        constant, values from high on are greater, and values in [low, high) are equal.

        Returns None if this needs a bisection and `may_bisect` is False.
        """
        sought = encode_value(constant)
        if len(types) == 1 and self.stored == types[0]:
            step = self.step(sought)
            return self.cut(step), self.cut(step + 1)
        guess = self.guess(constant)
        if guess is not None:
            below, near, above = (self.converted(guess + aside, types) for aside in (-1, 0, 1))
            if below < sought < above:
                return self.cut(guess + (near < sought)), self.cut(guess + (near <= sought))
        if not may_bisect:
            return None
        low = self.bisect(0, types, lambda key: key >= sought)
        return self.cut(low), self.cut(self.bisect(low, types, lambda key: key > sought))

    def guess(self, constant: pa.Scalar) -> int | None:
        """Return the step of the constant, cut to the stored type."""
        try:
            return self.step(encode_value(constant.cast(self.stored, safe=False)))
        except (*_FAR, pa.ArrowNotImplementedError):
            return None

    def bisect(self, low: int, types: Sequence[pa.DataType], beyond: Callable[[bytes], bool]) -> int:
        """Return the first step from `low` on whose converted value has a key with `beyond(key)`."""
        high = self.steps
        while low < high:
            middle = (low + high) // 2
            if beyond(self.converted(middle, types)):
                high = middle
            else:
                low = middle + 1
        return low

    def converted(self, step: int, types: Sequence[pa.DataType]) -> bytes:
        if not 0 <= step < self.steps:
            return b"" if step < 0 else END
        value = pa.repeat(value_of(self.key(step), self.stored), 1)
        try:
            # Nanoseconds are cut off, as in the evaluator.
            is_nanoseconds = pt.is_timestamp(self.stored) and self.stored.unit == "ns"
            value = value.cast(types[0], safe=not is_nanoseconds)
            for kind in types[1:]:
                value = cast_array(value, kind)
            return encode_value(value[0])
        except _FAR:
            # The time is out of range in microseconds.
            return b"" if step < self.steps // 2 else END

    def cut(self, step: int) -> bytes:
        """Return the key of a step. Before the first and after the last one, it is the same for all types."""
        return VALUES if step <= 0 else self.key(step) if step < self.steps else END

    def key(self, step: int) -> bytes:
        return VALUES + (self.first + step).to_bytes(self.width, "big")

    def step(self, key: bytes) -> int:
        return int.from_bytes(key[1:], "big") - self.first

    def step_at(self, bound: bytes) -> int:
        return 0 if bound <= VALUES else self.steps if bound >= END else self.step(bound)

    def values(self, low: bytes, high: bytes, most: int) -> list[bytes] | None:
        """Return the keys of all values in [low, high), which contains no null; None for more than `most`."""
        first, end = self.step_at(low), self.step_at(high)
        return [self.key(step) for step in range(first, end)] if end - first <= most else None


class FloatAxis(FixedAxis):
    """Floats in their order. All NaNs are one value above infinity. -0.0 is 0.0 and has no step:

    value    -inf  ...  -5e-324    0.0    5e-324  ...   inf      NaN
    step     0          z - 1      z      z + 1         n - 2    n - 1      z = minus_zero, n = steps
    """

    def __init__(self, stored: pa.DataType) -> None:
        top: int = 1 << (stored.bit_width - 1)
        infinite = int.from_bytes(encode_value(pa.scalar(float("inf"), stored))[1:], "big")
        super().__init__(stored, stored.bit_width // 8, 2 * top - 1 - infinite, infinite)
        self.minus_zero = top - 1 - self.first
        # -0.0 has no step, and NaN has one: there are as many as from -inf to inf.
        self.not_a_number = self.steps - 1

    def key(self, step: int) -> bytes:
        if step == self.not_a_number:
            return encode_value(pa.scalar(float("nan"), self.stored))
        return super().key(step + (step >= self.minus_zero))

    def step(self, key: bytes) -> int:
        step = super().step(key)
        return min(step - int(step > self.minus_zero), self.not_a_number)


class BytesAxis(FixedAxis):
    """Binaries of one length, compared with constants of any length."""

    def __init__(self, width: int) -> None:
        super().__init__(pa.binary(width), width, 0, (1 << 8 * width) - 1)

    def cuts(
        self, types: Sequence[pa.DataType], constant: pa.Scalar, may_bisect: bool = True
    ) -> tuple[bytes, bytes]:
        sought: bytes = constant.as_py()
        step = int.from_bytes(sought[: self.width].ljust(self.width, b"\0"), "big")
        # (low, high) as steps, for values of two bytes: "ab" equals 6162, so (6162, 6163). "abc" lies just
        # above 6162, so (6163, 6163): no value is equal. "a" lies just below 6100, so (6100, 6100).
        low, high = step + (len(sought) > self.width), step + (len(sought) >= self.width)
        return self.cut(low), self.cut(high)


class TextAxis:
    """Strings and binaries of any length. Conversions between them do not change the bytes."""

    def __init__(self, utf8: bool) -> None:
        self.utf8 = utf8

    def cuts(
        self, types: Sequence[pa.DataType], constant: pa.Scalar, may_bisect: bool = True
    ) -> tuple[bytes, bytes]:
        low = encode_value(constant)
        high = successor(low)
        if self.utf8 and not _is_utf8(constant):
            high = low  # no text has these bytes
        return (VALUES if low == _EMPTY else low), high

    def prefixed(self, prefix: bytes) -> tuple[bytes, bytes]:
        """Return the bounds of the values that begin with these bytes."""
        low = encode_value(pa.scalar(prefix, pa.binary())).removesuffix(_TEXT_END)
        return low, successor(low)

    def values(self, low: bytes, high: bytes, most: int) -> list[bytes] | None:
        key = _EMPTY if low == VALUES else low
        return [key] if most and key.endswith(_TEXT_END) and high == successor(key) else None


def _is_utf8(constant: pa.Scalar) -> bool:
    try:
        constant.as_buffer().to_pybytes().decode()
    except UnicodeDecodeError:
        return False
    return True


Axis = FixedAxis | TextAxis
