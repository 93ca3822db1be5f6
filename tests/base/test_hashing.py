"""Hashes are those of Spark, whatever the types, chunks and offsets of the columns."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base import hashing
from elasticscan.base.errors import SchemaMismatch
from elasticscan.base.hashing import slots_of, spark_hash
from elasticscan.base.key_encoding import PRIMARY_ENCODERS
from tests.base.examples import examples
from tests.base.test_key_encoding import BINARIES, VALUES, array_of, integers

NAN = float("nan")


@pytest.fixture(autouse=True, params=[4, 16_384])
def block_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also blocks so small that a handful of rows crosses several of their seams."""
    monkeypatch.setattr(hashing, "_BLOCK_ROWS", request.param)


# --------------------------------------------------------------------------------------- the oracle


def murmur(data: bytes | None, seed: int) -> int:
    """One string at a time, as `Murmur3_x86_32.hashUnsafeBytes` is written down."""
    if data is None:
        return seed
    mask = 0xFFFFFFFF

    def rotate(x: int, bits: int) -> int:
        return (x << bits | x >> (32 - bits)) & mask

    whole = len(data) // 4 * 4
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, whole, 4)]
    words += [byte - (byte >> 7 << 8) for byte in data[whole:]]
    h = seed & mask
    for word in words:
        h ^= rotate(word * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
        h = (rotate(h, 13) * 5 + 0xE6546B64) & mask
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    h ^= h >> 16
    return h - (h >> 31 << 32)


def hashed_as(value: Any, kind: pa.DataType) -> bytes | None:
    """The bytes that Spark hashes for a value: one word, two words, or those of a text or big integer.

    Decimals are given in units of their last place.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return struct.pack("<f" if kind.bit_width == 32 else "<d", value + 0.0)  # minus zero is zero
    if pa.types.is_decimal(kind) and kind.precision > 18:
        bits = (value if value >= 0 else ~value).bit_length()
        return bytes(value.to_bytes(bits // 8 + 1, "big", signed=True))
    return bytes(int(value).to_bytes(8 if kind.bit_width >= 64 else 4, "little", signed=True))


# What Spark 4.3 answered to `select hash(a)`, so that the oracle is right without Spark as well.
SPARK_SAYS: list[tuple[pa.DataType, list[Any], list[int]]] = [
    (pa.bool_(), [True, False, None], [-559580957, 933211791, 42]),
    (pa.int8(), [-128, 127], [1110053733, 1135925485]),
    (pa.int32(), [-(2**31), -1], [723455942, -1604776387]),
    (pa.int64(), [-(2**63), 2**32], [-853646085, -1307033787]),
    (pa.string(), ["", "abcde", "a😀b\0c"], [142593372, 814637928, 1615075220]),
    (pa.binary(), [b"\x80\x7f", bytes(range(250, 256))], [896343744, 1971565129]),
    (pa.date32(), [-719162], [-1147107224]),
    (pa.timestamp("us", "UTC"), [-62135596800000000], [269467232]),
    (pa.decimal128(18, 2), [-999999999999999999], [1962370902]),
    (pa.decimal128(19, 0), [128, 2**63], [-544401882, 1479175736]),
    (pa.decimal128(38, 10), [-15_000_000_000], [1831729871]),
    (pa.float32(), [-0.0, NAN], [933211791, -349261430]),
    (pa.float64(), [-0.0, NAN, 5e-324], [-1670924195, -1281358385, -1712319331]),
]


@pytest.mark.parametrize(("kind", "values", "expected"), SPARK_SAYS, ids=str)
def test_a_column_hashes_as_in_spark(kind: pa.DataType, values: list[Any], expected: list[int]) -> None:
    hashes = spark_hash([array_of(values, kind)])
    assert hashes.dtype == np.int32
    assert hashes.tolist() == [murmur(hashed_as(value, kind), 42) for value in values] == expected


def test_several_columns_hash_as_in_spark() -> None:
    one, two = pa.array([1, None], pa.int64()), pa.array(["ab\x80x", "q"])
    assert spark_hash([one, two]).tolist() == [-960935864, 8338346]
    assert spark_hash([two, one]).tolist() == [487434986, 8338346]


# -------------------------------------------------------------------------------------- properties


FLOATS = st.sampled_from([0.0, -0.0, NAN]) | st.floats(width=32)
COLUMNS = VALUES | {pa.float32(): FLOATS, pa.float64(): FLOATS | st.floats(), pa.binary(0): st.just(b"")}
COLUMNS |= {pa.binary(): BINARIES | st.binary(max_size=400), pa.timestamp("us"): integers(64)}
HASHED = [kind for kind in COLUMNS if kind not in (pa.timestamp("s"), pa.timestamp("ns"))]  # of microseconds


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.sampled_from(HASHED), min_size=1, max_size=3), st.data())
def test_columns_of_any_types_hash_as_the_oracle_in_slices_and_in_chunks(
    kinds: list[pa.DataType], data: st.DataObject
) -> None:
    rows, seed, chance = data.draw(st.integers(0, 60)), data.draw(integers(32)), data.draw(st.randoms())
    start, cut = chance.randint(0, rows), chance.randint(0, rows)
    columns, expected = list[pa.ChunkedArray](), [seed] * (rows - start)
    for kind in kinds:
        values = chance.choices(data.draw(st.lists(st.none() | COLUMNS[kind], min_size=1)), k=rows)
        column = array_of(values, kind)
        columns.append(pa.chunked_array([column[start:cut], column[max(start, cut) :]], kind))
        expected = [murmur(hashed_as(v, kind), h) for v, h in zip(values[start:], expected, strict=True)]
    assert spark_hash(columns, seed).tolist() == expected
    slots = chance.choice([1, 2, 3, 1_000, 4_096, 65_535, 65_536])
    found = slots_of(columns, slots)
    assert found.dtype == np.uint16
    assert found.tolist() == [h % slots for h in spark_hash(columns).tolist()]


def test_every_type_that_a_key_may_have_has_a_hash() -> None:
    assert set(PRIMARY_ENCODERS) <= {kind.id for kind in HASHED}


def test_extreme_hashes_have_slots_too() -> None:
    extremes = [-(2**31), 2**31 - 1, -1, 0]
    column = pa.array([-1206686999, 2131931348, -1703619863, -1693959553], pa.int32())
    assert spark_hash([column]).tolist() == extremes
    for slots in (1, 3, 1_000, 65_535, 65_536):
        assert slots_of([column], slots).tolist() == [h % slots for h in extremes]


def test_timestamps_of_any_unit_hash_as_their_microseconds_rounded_down() -> None:
    for unit, values, microseconds in (
        ("s", [-1, 0, 1_700_000_000], [-1_000_000, 0, 1_700_000_000_000_000]),
        ("ms", [-1, 0, 1], [-1_000, 0, 1_000]),
        ("ns", [-2001, -2000, -1, 0, 999, 1000], [-3, -2, -1, 0, 0, 1]),
    ):
        expected = spark_hash([pa.array(microseconds, pa.int64())]).tolist()
        assert spark_hash([pa.array(values, pa.timestamp(unit, "UTC"))]).tolist() == expected
    with pytest.raises(SchemaMismatch, match="microseconds"):
        spark_hash([pa.array([2**60], pa.timestamp("s"))])


def test_what_lies_below_a_null_is_never_looked_at() -> None:
    # The second of three rows is null and holds the byte 0xff, which is no text.
    validity, ends = pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 2, 3, 5], np.int32))
    column = pa.Array.from_buffers(pa.string(), 3, [validity, ends, pa.py_buffer("é".encode() + b"\xffab")])
    assert spark_hash([column]).tolist() == [murmur("é".encode(), 42), 42, murmur(b"ab", 42)]


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize(
    "kind",
    [pa.uint32(), pa.list_(pa.int8()), pa.string_view(), pa.decimal256(40, 1), pa.time64("us"), pa.null()],
    ids=str,
)
def test_other_types_are_refused_even_without_rows(kind: pa.DataType, rows: int) -> None:
    with pytest.raises(SchemaMismatch, match="cannot be hashed"):
        spark_hash([pa.nulls(rows, kind)])
