"""Hashes are those of Spark, whatever the types, chunks and offsets of the columns."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from elasticscan.base import hashing
from elasticscan.base.errors import InvalidKey, InvalidOption, SchemaMismatch
from elasticscan.base.hashing import slots_of, spark_hash
from elasticscan.base.key_encoding import PRIMARY_ENCODERS
from tests.base.examples import examples

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
    """The bytes that Spark hashes for a value: one word, two words, or those of a text or big integer."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return struct.pack("<f" if kind.bit_width == 32 else "<d", value + 0.0)  # minus zero is zero
    if isinstance(value, Decimal):
        value = int(value.scaleb(kind.scale, Context(prec=76)))
        if kind.precision > 18:
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
    (pa.decimal128(18, 2), [Decimal("-9999999999999999.99")], [1962370902]),
    (pa.decimal128(19, 0), [Decimal(128), Decimal(2**63)], [-544401882, 1479175736]),
    (pa.decimal128(38, 10), [Decimal("-1.5")], [1831729871]),
    (pa.float32(), [-0.0, NAN], [933211791, -349261430]),
    (pa.float64(), [-0.0, NAN, 5e-324], [-1670924195, -1281358385, -1712319331]),
]


@pytest.mark.parametrize(("kind", "values", "expected"), SPARK_SAYS, ids=str)
def test_a_column_hashes_as_in_spark(kind: pa.DataType, values: list[Any], expected: list[int]) -> None:
    hashes = spark_hash([pa.array(values, kind)])
    assert hashes.dtype == np.int32
    assert hashes.tolist() == [murmur(hashed_as(value, kind), 42) for value in values] == expected


# -------------------------------------------------------------------------------------- properties


def random_integer(bits: int) -> Callable[[random.Random], int]:
    """All magnitudes alike, and the edges often."""
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def one(rng: random.Random) -> int:
        size = rng.randrange(bits)
        return rng.choice(
            [low, high, 0, -1, rng.randint(low, high), rng.randint(-(1 << size), (1 << size) - 1)]
        )

    return one


def random_decimal(precision: int, scale: int) -> Callable[[random.Random], Decimal]:
    def one(rng: random.Random) -> Decimal:
        digits = rng.randint(1, precision)
        value = rng.choice([0, 10**digits - 1, 1 - 10**digits, rng.randint(1 - 10**digits, 10**digits - 1)])
        value = rng.choice([value, rng.choice([1, -1]) * 2 ** rng.randrange(max(1, precision * 3))])
        return Decimal(f"{value}e-{scale}")

    return one


def random_text(rng: random.Random) -> str:
    alphabet = rng.choice(["abc", "abc\0 \n", "aé日😀𝄞\U0010ffff\ue000\ud7ff"])
    return "".join(rng.choices(alphabet, k=rng.choice([0, 1, 2, 3, 4, 5, 8, 13, 40])))


def random_float(largest: float) -> Callable[[random.Random], float]:
    return lambda rng: rng.choice([0.0, -0.0, NAN, float(np.float32(rng.uniform(-largest, largest)))])


COLUMNS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "flag": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "tiny": (pa.int8(), random_integer(8)),
    "small": (pa.int16(), random_integer(16)),
    "whole": (pa.int32(), random_integer(32)),
    "big": (pa.int64(), random_integer(64)),
    "txt": (pa.string(), random_text),
    "bin": (pa.binary(), lambda rng: rng.randbytes(rng.choice([rng.randrange(20), rng.randrange(400)]))),
    "day": (pa.date32(), lambda rng: rng.randint(-700_000, 2_900_000)),
    "instant": (pa.timestamp("us", "UTC"), lambda rng: rng.randint(-62_135_596_800_000_000, 2**57)),
    "local": (pa.timestamp("us"), lambda rng: rng.randint(-62_135_596_800_000_000, 2**57)),
    "dec9": (pa.decimal128(9, 4), random_decimal(9, 4)),
    "dec18": (pa.decimal128(18, 2), random_decimal(18, 2)),
    "dec19": (pa.decimal128(19, 0), random_decimal(19, 0)),
    "dec38": (pa.decimal128(38, 10), random_decimal(38, 10)),
    "real": (pa.float32(), random_float(1e30)),
    "dbl": (pa.float64(), random_float(1e38)),
}
# Types that Spark has not, hashed as one that it has.
LIKE_OTHERS = {pa.large_string(): "txt", pa.large_binary(): "bin", pa.binary(0): "bin", pa.binary(7): "bin"}


@settings(deadline=None, max_examples=examples(100))
@given(
    st.lists(st.sampled_from([*COLUMNS, *LIKE_OTHERS]), min_size=1, max_size=3),
    st.integers(0, 60),
    st.randoms(use_true_random=False),
    st.integers(-(2**31), 2**31 - 1),
)
def test_columns_of_any_types_hash_as_the_oracle_in_slices_and_in_chunks(
    names: list[Any], rows: int, rng: random.Random, seed: int
) -> None:
    start, cut = rng.randint(0, rows), rng.randint(0, rows)
    columns, expected = list[pa.ChunkedArray](), [seed] * (rows - start)
    for name in names:
        kind, one = COLUMNS[LIKE_OTHERS.get(name, name)]
        kind = name if name in LIKE_OTHERS else kind
        width = getattr(kind, "byte_width", 0) if pa.types.is_fixed_size_binary(kind) else None
        values = [one(rng) if width is None else rng.randbytes(width) for _ in range(rows)]
        values = [None if rng.random() < 0.2 else value for value in values]
        column = pa.array(values, kind)
        columns.append(pa.chunked_array([column[start:cut], column[max(start, cut) :]], kind))
        expected = [murmur(hashed_as(v, kind), h) for v, h in zip(values[start:], expected, strict=True)]
    assert spark_hash(columns, seed).tolist() == expected
    slots = rng.choice([1, 2, 3, 1_000, 4_096, 65_535, 65_536])
    found = slots_of(columns, slots)
    assert found.dtype == np.uint16
    assert found.tolist() == [h % slots for h in spark_hash(columns).tolist()]


def test_every_type_that_a_key_may_have_has_a_hash() -> None:
    assert set(PRIMARY_ENCODERS) <= {
        kind.id for kind in (*(kind for kind, _ in COLUMNS.values()), *LIKE_OTHERS)
    }


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
    with pytest.raises(InvalidKey, match="microseconds"):
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
def test_other_types_are_refused_even_without_rows_and_so_are_impossible_numbers_of_slots(
    kind: pa.DataType, rows: int
) -> None:
    with pytest.raises(SchemaMismatch, match="cannot be hashed"):
        spark_hash([pa.nulls(rows, kind)])
    for slots in (0, -1, 65_537):
        with pytest.raises(InvalidOption, match="slots"):
            slots_of([pa.array([1])], slots)


# ------------------------------------------------------------------------------------ Spark itself


@pytest.mark.long
@pytest.mark.spark
def test_random_rows_have_the_hashes_and_slots_that_spark_gives_them(spark: SparkSession) -> None:
    rng, rows = random.Random(20), range(3_000)
    table = pa.table(
        {
            name: pa.array([None if rng.random() < 0.08 else one(rng) for _ in rows], kind)
            for name, (kind, one) in COLUMNS.items()
        }
    )
    combined = [["big", "txt"], ["txt", "big"], ["dec38", "bin", "flag", "day"], list(COLUMNS)]
    combinations = [*([name] for name in COLUMNS), *combined]
    selected = []
    for number, names in enumerate(combinations):
        selected.append(f"hash({', '.join(names)}) AS h{number}")
        selected += [
            f"pmod(hash({', '.join(names)}), {slots}) AS p{slots}_{number}" for slots in (4096, 60_001)
        ]
    answers = spark.createDataFrame(table).selectExpr(*selected).toArrow()
    for number, names in enumerate(combinations):
        columns = [table[name] for name in names]
        np.testing.assert_array_equal(spark_hash(columns), answers[f"h{number}"].to_numpy(), str(names))
        for slots in (4096, 60_001):
            expected = answers[f"p{slots}_{number}"].to_numpy()
            np.testing.assert_array_equal(slots_of(columns, slots), expected, str(names))
