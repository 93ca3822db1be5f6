"""Keys compare as their values do, can be read back, and refuse what they never wrote."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import SchemaMismatch
from elasticscan.base.key_encoding import VALUES as TAG
from elasticscan.base.key_encoding import check_key_type, encode_row, sort_codes, value_of
from tests.base.examples import examples


def integers(bits: int) -> st.SearchStrategy[int]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.one_of(
        st.integers(low, high), st.integers(-3, 3), st.sampled_from([low, low + 1, high - 1, high])
    )


def decimals(precision: int) -> st.SearchStrategy[int]:
    top = 10**precision - 1
    return st.one_of(st.integers(-top, top), st.integers(-3, 3), st.sampled_from([-top, top]))


# Few letters, so that equal values, prefixes and zeros are common.
TEXTS = st.one_of(st.text("\0\1aé\uffff😀", max_size=5), st.text(max_size=8))
BINARIES = st.one_of(
    st.lists(st.sampled_from([0, 1, 254, 255]), max_size=5).map(bytes), st.binary(max_size=8)
)

# Every type, and its values as what Python orders as the type is ordered: times as integers,
# decimals by their unscaled value.
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): integers(8),
    pa.int16(): integers(16),
    pa.int32(): integers(32),
    pa.int64(): integers(64),
    pa.date32(): integers(32),
    pa.timestamp("s"): integers(64),
    pa.timestamp("us", "UTC"): integers(64),
    pa.timestamp("ns"): integers(64),
    pa.decimal128(9, 2): decimals(9),
    pa.decimal128(38, 0): decimals(38),
    pa.decimal128(38, 37): decimals(38),
    pa.decimal128(20, -3): decimals(20),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.binary(): BINARIES,
    pa.large_binary(): BINARIES,
    pa.binary(3): st.one_of(
        st.binary(min_size=3, max_size=3), st.sampled_from([b"\0\0\0", b"\0\0\1", b"\xff\0\0"])
    ),
}


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal128(kind):
        exact = decimal.Context(prec=76)
        values = [v if v is None else decimal.Decimal(v).scaleb(-kind.scale, exact) for v in values]
    return pa.array(values, kind)


def in_order(value: Any) -> Any:
    """Strings are ordered by their UTF-8 bytes."""
    return value.encode() if isinstance(value, str) else value


@st.composite
def tables(draw: st.DrawFn, kinds: list[pa.DataType]) -> tuple[list[pa.Array], list[tuple[Any, ...]]]:
    """Up to three columns behind an offset, and their rows."""
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))
    rows = draw(st.lists(st.tuples(*(VALUES[kind] for kind in chosen)), min_size=1, max_size=8))
    skipped = draw(st.integers(0, len(rows) - 1))
    columns = [array_of([row[i] for row in rows], kind).slice(skipped) for i, kind in enumerate(chosen)]
    return columns, [tuple(in_order(value) for value in row) for row in rows[skipped:]]


def key_of(*cells: tuple[Any, pa.DataType]) -> bytes:
    return encode_row([pa.array([value], kind) for value, kind in cells], 0)


# --------------------------------------------------------------------------------------- properties


@settings(deadline=None, max_examples=examples(600))
@given(tables(list(VALUES)))
def test_keys_of_several_columns_are_ordered_as_tuples_and_decode_and_none_begins_another(
    table: tuple[list[pa.Array], list[tuple[Any, ...]]],
) -> None:
    columns, rows = table
    keys = [encode_row(columns, row) for row in range(len(rows))]
    codes = list(zip(*(sort_codes(column).tolist() for column in columns), strict=True))
    for number, (key, code, row) in enumerate(zip(keys, codes, rows, strict=True)):
        for other_key, other_code, other_row in zip(keys, codes, rows, strict=True):
            assert (key < other_key) == (code < other_code) == (row < other_row)
            assert other_key.startswith(key) == (code == other_code) == (row == other_row)
        for column in columns:
            scalar = value_of(TAG + encode_row([column], number), column.type)
            assert scalar.type == column.type and scalar.equals(column[number])
    assert all(sort_codes(column).dtype.kind in "iu" for column in columns)


# ------------------------------------------------------------------------------------ known bytes


def test_the_bytes_of_every_type_are_these() -> None:
    known = [
        (True, pa.bool_(), "01"),
        (-1, pa.int8(), "7f"),
        (5, pa.int16(), "8005"),
        (-(2**31), pa.int32(), "00000000"),
        (1, pa.int64(), "8000000000000001"),
        (0, pa.date32(), "80000000"),
        (-1, pa.timestamp("us", "UTC"), "7fffffffffffffff"),
        (decimal.Decimal("2.56"), pa.decimal128(9, 2), "80000000000000000000000000000100"),
        (decimal.Decimal("-0.01"), pa.decimal128(38, 2), "7fffffffffffffffffffffffffffffff"),
        (b"\0a\xff", pa.binary(3), "0061ff"),
        ("a\0b", pa.string(), "6100ff620000"),
        ("é", pa.large_string(), "c3a90000"),
        (b"\0\xff", pa.binary(), "00ffff0000"),
        (b"", pa.large_binary(), "0000"),
    ]
    for value, kind, expected in known:
        assert key_of((value, kind)).hex() == expected, kind
    assert key_of(("a", pa.string()), (3, pa.int8()), (b"", pa.binary())).hex() == "610000830000"


def test_keys_do_not_depend_on_the_precision_that_a_program_calculates_with() -> None:
    wide = decimal.Decimal("-" + "9" * 38)
    kind = pa.decimal128(38, 0)
    with decimal.localcontext(prec=3):
        key = key_of((wide, kind))
        assert value_of(TAG + key, kind).as_py() == wide
    assert key == key_of((wide, kind))


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_every_listed_type_may_be_a_key_and_none_may_be_null(kind: pa.DataType) -> None:
    check_key_type("id", kind)
    column = pa.nulls(1, kind)
    with pytest.raises(SchemaMismatch, match="null"):
        sort_codes(column)
    assert sort_codes(column[:0]).tolist() == []


@pytest.mark.parametrize(
    "kind",
    [pa.float64(), pa.uint8(), pa.date64(), pa.decimal256(40, 2), pa.list_(pa.int8()), pa.null()],
    ids=str,
)
def test_other_types_are_refused_by_name_with_those_that_are_allowed(kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match=r"'price' .* allowed are bool, int8") as caught:
        check_key_type("price", kind)
    assert caught.value.fields["column"] == "price"


def test_codes_of_integers_times_and_narrow_decimals_are_views_of_the_column() -> None:
    for kind in (pa.int8(), pa.int64(), pa.date32(), pa.timestamp("ms"), pa.decimal128(18, 2)):
        codes = sort_codes(array_of([3, -1, 2], kind).slice(1))
        assert codes.tolist() == [-1, 2]
        assert not codes.flags.owndata and not codes.flags.writeable
