"""Hashes are those of Spark, whatever the types, chunks and offsets of the columns."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
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
LONG_TEXT = "x" * 37

# What Spark 4.3 answered to `select hash(a)`.
SPARK_SAYS: dict[str, tuple[pa.DataType, list[Any], list[int]]] = {
    "bool": (pa.bool_(), [True, False, None], [-559580957, 933211791, 42]),
    "int8": (
        pa.int8(),
        [-128, -1, 0, 1, 127, None],
        [1110053733, -1604776387, 933211791, -559580957, 1135925485, 42],
    ),
    "int16": (
        pa.int16(),
        [-32768, -1, 0, 300, 32767],
        [-1871935946, -1604776387, 933211791, -2133297984, 1249274084],
    ),
    "int32": (
        pa.int32(),
        [-(2**31), -1, 0, 1, 2**31 - 1],
        [723455942, -1604776387, 933211791, -559580957, 133916647],
    ),
    "int64": (
        pa.int64(),
        [-(2**63), -1, 0, 1, 2**32, 2**63 - 1, None],
        [-853646085, -939490007, -1670924195, -1712319331, -1307033787, -1604625029, 42],
    ),
    "string": (
        pa.string(),
        ["", "a", "ab", "abc", "abcd", "abcde", "elasticity", None],
        [142593372, 1485273170, -97053317, 1322437556, -396302900, 814637928, -943700444, 42],
    ),
    "string beyond letters": (
        pa.string(),
        ["\0", "\x7f", "é", "日本語", "😀", "a😀b\0c", LONG_TEXT],
        [-783713497, 1185089389, 2119106806, -1143049834, 1877935379, 1615075220, 1439221402],
    ),
    "binary": (
        pa.binary(),
        [b"", b"\xff", b"\x80\x7f", b"\0\0\0\0", bytes(range(250, 256)), bytes(range(255)), None],
        [142593372, 1398487324, 896343744, 933211791, 1971565129, -1825100369, 42],
    ),
    "date": (
        pa.date32(),
        [-719162, -1, 0, 20000, 2932896],
        [-1147107224, -1604776387, 933211791, -257527722, 1135886659],
    ),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [-62135596800000000, -1, 0, 1, 1700000000123456],
        [269467232, -939490007, -1670924195, -1712319331, -1935367823],
    ),
    "decimal of 5 digits": (
        pa.decimal128(5, 0),
        [Decimal(0), Decimal(-1), Decimal(99999)],
        [-1670924195, -939490007, 790288776],
    ),
    "decimal of 18 digits": (
        pa.decimal128(18, 2),
        [Decimal(t) for t in ("0.00", "0.01", "-0.01", "9999999999999999.99", "-9999999999999999.99")]
        + [None],
        [-1670924195, -1712319331, -939490007, -1795328666, 1962370902, 42],
    ),
    "decimal of 19 digits": (
        pa.decimal128(19, 0),
        [Decimal(n) for n in (0, 1, -1, 127, 128, -128, -129, 255)],
        [-783713497, -386724586, 1398487324, 1185089389, -544401882, 775851899, -771458971, 1246198977],
    ),
    "decimal of 19 digits and more bytes": (
        pa.decimal128(19, 0),
        [Decimal(n) for n in (256, 32767, 32768, -32769, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1)],
        [188218374, -1459034263, -99371362, 2014060947, -1627571634, 1479175736, -1794377518, -1667168926],
    ),
    "decimal of 38 digits": (
        pa.decimal128(38, 10),
        [Decimal(t) for t in ("0", "1.5", "-1.5", "9" * 28 + "." + "9" * 10, "-" + "9" * 28 + "." + "9" * 10)]
        + [None],
        [-783713497, -994477761, 1831729871, -817514053, 1400911110, 42],
    ),
    "float": (
        pa.float32(),
        [0.0, -0.0, 1.5, -1.5, NAN, float("inf"), float("-inf"), None],
        [933211791, 933211791, -221251528, 1765572753, -349261430, 2026854605, 427440766, 42],
    ),
    "double": (
        pa.float64(),
        [0.0, -0.0, 1.5, -1.5, NAN, float("inf"), 5e-324, None],
        [-1670924195, -1670924195, 1290763749, 2099784398, -1281358385, 833680482, -1712319331, 42],
    ),
}

BINARIES = st.one_of(st.none(), st.binary(max_size=40))
LONGS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
WIDE_DECIMALS = st.one_of(
    st.none(), st.integers(0, 126).flatmap(lambda bits: st.integers(-(2**bits), 2**bits))
)


def murmur_reference(data: bytes | None, seed: int = 42) -> int:
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


def shrink_blocks(patch: pytest.MonkeyPatch) -> None:
    """Blocks so small that a handful of rows crosses several of their seams."""
    patch.setattr(hashing, "_BLOCK_ROWS", 4)


# ------------------------------------------------------------------------------------ known values


@pytest.mark.parametrize("name", SPARK_SAYS)
def test_a_column_hashes_as_in_spark_whole_in_slices_and_in_chunks(name: str) -> None:
    kind, values, expected = SPARK_SAYS[name]
    column = pa.array(values, kind)
    hashes = spark_hash([column])
    assert hashes.dtype == np.int32
    assert hashes.tolist() == expected
    for start in range(len(column)):
        assert spark_hash([column.slice(start, 2)]).tolist() == expected[start : start + 2]
        assert spark_hash([column.slice(0, start)]).tolist() == expected[:start]
    chunked = pa.chunked_array([column[:1], column[:0], column[1:3], column[3:]], kind)
    assert spark_hash([chunked]).tolist() == expected


def test_the_hash_of_one_column_seeds_the_next_and_a_null_passes_it_through() -> None:
    number = pa.array([1, 1, None, None], pa.int64())
    text = pa.array(["x", None, "x", None])
    assert spark_hash([number, text]).tolist() == [-1438117640, -1712319331, -80340190, 42]
    assert spark_hash([text, number]).tolist() == [-1275199412, -1712319331, -80340190, 42]
    assert spark_hash([text, number], seed=7).tolist()[3] == 7


def test_large_types_hash_as_their_small_ones() -> None:
    for small, large in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())):
        _, values, expected = SPARK_SAYS[str(small)]
        assert spark_hash([pa.array(values, large)]).tolist() == expected
        assert spark_hash([pa.array(values, large)[1:]]).tolist() == expected[1:]


def test_bytes_of_fixed_size_hash_as_binary() -> None:
    rng = random.Random(3)
    for width in (0, 1, 3, 4, 7, 16):
        values = [rng.randbytes(width) if i % 4 else None for i in range(40)]
        expected = spark_hash([pa.array(values, pa.binary())]).tolist()
        column = pa.array(values, pa.binary(width))
        assert spark_hash([column]).tolist() == expected
        assert spark_hash([column[5:]]).tolist() == expected[5:]


def test_timestamps_of_any_unit_hash_as_their_microseconds_rounded_down() -> None:
    seconds = [-62135596800, -1, 0, 1, 1700000000, None]
    expected = spark_hash(
        [pa.array([None if s is None else s * 10**6 for s in seconds], pa.int64())]
    ).tolist()
    for unit, factor in (("s", 1), ("ms", 10**3), ("us", 10**6)):
        values = [None if s is None else s * factor for s in seconds]
        assert spark_hash([pa.array(values, pa.timestamp(unit))]).tolist() == expected
        assert spark_hash([pa.array(values, pa.timestamp(unit, "UTC"))[1:]]).tolist() == expected[1:]
    nanoseconds = pa.array([-2001, -2000, -1, 0, 999, 1000, None], pa.timestamp("ns"))
    floored = pa.array([-3, -2, -1, 0, 0, 1, None], pa.int64())
    assert spark_hash([nanoseconds]).tolist() == spark_hash([floored]).tolist()


def test_a_timestamp_beyond_microseconds_is_refused() -> None:
    with pytest.raises(InvalidKey, match="microseconds"):
        spark_hash([pa.array([2**60], pa.timestamp("s"))])


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize(
    "kind",
    [pa.uint32(), pa.list_(pa.int8()), pa.string_view(), pa.decimal256(40, 1), pa.time64("us"), pa.null()],
    ids=str,
)
def test_other_types_are_refused_even_without_rows(kind: pa.DataType, rows: int) -> None:
    with pytest.raises(SchemaMismatch, match="cannot be hashed"):
        spark_hash([pa.nulls(rows, kind)])


def test_every_type_that_a_key_may_have_has_a_hash() -> None:
    like_others = {pa.large_string().id, pa.large_binary().id, pa.binary(1).id}
    assert set(PRIMARY_ENCODERS) <= {kind.id for kind, _, _ in SPARK_SAYS.values()} | like_others


# -------------------------------------------------------------------------------------- properties


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(BINARIES, max_size=25), st.integers(0, 5), st.integers(-(2**31), 2**31 - 1))
def test_binaries_hash_as_the_reference_whatever_their_lengths(
    values: list[bytes | None], start: int, seed: int
) -> None:
    expected = [murmur_reference(value, seed) for value in values[start:]]
    with pytest.MonkeyPatch.context() as patch:
        shrink_blocks(patch)
        assert spark_hash([pa.array(values, pa.binary())[start:]], seed).tolist() == expected


@settings(deadline=None, max_examples=examples(30))
@given(st.lists(st.integers(0, 400), max_size=60), st.booleans(), st.integers(0, 99))
def test_long_binaries_hash_as_the_reference_be_they_few_or_many(
    lengths: list[int], equal: bool, seed: int
) -> None:
    generator = random.Random(seed)
    values = [generator.randbytes(max(lengths) if equal else length) for length in lengths]
    expected = [murmur_reference(value, 42) for value in values]
    assert spark_hash([pa.array(values, pa.binary())]).tolist() == expected


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(WIDE_DECIMALS, max_size=20))
def test_wide_decimals_hash_as_their_fewest_bytes(values: list[int | None]) -> None:
    def fewest(value: int) -> bytes:
        magnitude = value if value >= 0 else ~value
        return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)

    column = pa.array([None if value is None else Decimal(value) for value in values], pa.decimal128(38, 0))
    expected = [murmur_reference(None if value is None else fewest(value)) for value in values]
    assert spark_hash([column]).tolist() == expected


def test_what_lies_below_a_null_is_never_looked_at() -> None:
    # The second of three rows is null and holds the byte 0xff, which is no text.
    validity, ends = pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 2, 3, 5], np.int32))
    column = pa.Array.from_buffers(
        pa.string(), 3, [validity, ends, pa.py_buffer("éé".encode()[:2] + b"\xffab")]
    )
    assert spark_hash([column]).tolist() == [murmur_reference("é".encode()), 42, murmur_reference(b"ab")]


# ------------------------------------------------------------------------------------------- slots


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(LONGS, max_size=20), st.one_of(st.integers(1, 65_536), st.integers(0, 16).map(lambda n: 2**n))
)
def test_the_slot_is_the_positive_remainder_of_the_hash(values: list[int | None], slots: int) -> None:
    column = pa.array(values, pa.int64())
    assert slots_of([column], slots).tolist() == [h % slots for h in spark_hash([column]).tolist()]


def test_extreme_hashes_have_slots_too() -> None:
    extremes = [-(2**31), 2**31 - 1, -1, 0]
    column = pa.array([-1206686999, 2131931348, -1703619863, -1693959553], pa.int32())
    assert spark_hash([column]).tolist() == extremes
    for slots in (1, 3, 1000, 4096, 65_535, 65_536):
        found = slots_of([column], slots)
        assert found.tolist() == [h % slots for h in extremes]
        assert found.dtype == np.uint16


@pytest.mark.parametrize("slots", [0, -1, 65_537])
def test_an_impossible_number_of_slots_is_refused(slots: int) -> None:
    with pytest.raises(InvalidOption, match="slots"):
        slots_of([pa.array([1])], slots)


# ------------------------------------------------------------------------------------ Spark itself


def random_text(rng: random.Random) -> str:
    alphabet = rng.choice(["abc", "abc\0 \n", "aé日😀𝄞\U0010ffff\ue000\ud7ff"])
    return "".join(rng.choices(alphabet, k=rng.choice([0, 1, 2, 3, 4, 5, 8, 13, 40])))


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


RANDOM_COLUMNS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "flag": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "tiny": (pa.int8(), random_integer(8)),
    "small": (pa.int16(), random_integer(16)),
    "whole": (pa.int32(), random_integer(32)),
    "big": (pa.int64(), random_integer(64)),
    "txt": (pa.string(), random_text),
    "bin": (pa.binary(), lambda rng: rng.randbytes(rng.randrange(20))),
    "day": (pa.date32(), lambda rng: rng.randint(-700_000, 2_900_000)),
    "instant": (pa.timestamp("us", "UTC"), lambda rng: rng.randint(-62_135_596_800_000_000, 2**57)),
    "local": (pa.timestamp("us"), lambda rng: rng.randint(-62_135_596_800_000_000, 2**57)),
    "dec9": (pa.decimal128(9, 4), random_decimal(9, 4)),
    "dec18": (pa.decimal128(18, 2), random_decimal(18, 2)),
    "dec19": (pa.decimal128(19, 0), random_decimal(19, 0)),
    "dec38": (pa.decimal128(38, 10), random_decimal(38, 10)),
    "real": (pa.float32(), lambda rng: rng.choice([0.0, -0.0, NAN, rng.uniform(-1e30, 1e30)])),
    "dbl": (pa.float64(), lambda rng: rng.choice([0.0, -0.0, NAN, rng.uniform(-1e300, 1e300)])),
}
COMBINATIONS = [
    *([name] for name in RANDOM_COLUMNS),
    ["big", "txt"],
    ["txt", "big"],
    ["dec38", "bin", "flag", "day"],
    list(RANDOM_COLUMNS),
]


def random_table(rows: int, seed: int) -> pa.Table:
    rng = random.Random(seed)
    columns = {}
    for name, (kind, one) in RANDOM_COLUMNS.items():
        columns[name] = pa.array([None if rng.random() < 0.08 else one(rng) for _ in range(rows)], kind)
    return pa.table(columns)


@pytest.mark.long
@pytest.mark.spark
def test_random_rows_have_the_hashes_and_slots_that_spark_gives_them(spark: SparkSession) -> None:
    table = random_table(3_000, seed=20)
    selected = []
    for number, names in enumerate(COMBINATIONS):
        selected.append(f"hash({', '.join(names)}) AS h{number}")
        selected.append(f"pmod(hash({', '.join(names)}), 4096) AS p{number}")
        selected.append(f"pmod(hash({', '.join(names)}), 60001) AS q{number}")
    answers = spark.createDataFrame(table).selectExpr(*selected).toArrow()
    for number, names in enumerate(COMBINATIONS):
        columns = [table[name] for name in names]
        np.testing.assert_array_equal(spark_hash(columns), answers[f"h{number}"].to_numpy(), str(names))
        np.testing.assert_array_equal(slots_of(columns, 4096), answers[f"p{number}"].to_numpy(), str(names))
        np.testing.assert_array_equal(slots_of(columns, 60_001), answers[f"q{number}"].to_numpy(), str(names))
