"""Value sets against the evaluator: no row that a filter keeps has its key outside of the set."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import FilterError
from elasticscan.base.key_encoding import END, VALUES, encode_value, successor
from elasticscan.filters.bounds import decode_key, keeps_order
from elasticscan.filters.key_sets import EVERYTHING, NOTHING, NULLS, Interval, KeySet
from elasticscan.filters.parser import parse_condition
from elasticscan.filters.predicate import Predicate
from elasticscan.filters.value_sets import ColumnDomain, value_set
from tests.base.examples import examples

NAN, INF = math.nan, math.inf
DAY = 86_400_000_000

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [-128, -1, 0, 1, 2, 127]),
    "i": (pa.int32(), [-(2**31), -1, 0, 1, 2, 3, 2**31 - 1]),
    "l": (pa.int64(), [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1]),
    "f": (pa.float32(), [-INF, -1.5, -0.0, 0.0, 1e-45, 0.1, 2.5, 3.4028234663852886e38, INF, NAN]),
    "d": (pa.float64(), [-INF, -1.5, -0.0, 0.0, 5e-324, 0.1, 2.5, 2.0**53, INF, NAN]),
    "m": (pa.decimal128(10, 2), [Decimal(each) for each in ("-99999999.99", "-1.50", "0", "1.00", "2.50")]),
    "wide": (pa.decimal128(38, 10), [Decimal(each) for each in ("-1.5", "0", "1e-10", "2.5", "9e27")]),
    "s": (pa.string(), ["", "a", "ab", "a\0", "a\0b", "b", "\x7f", "é", "日本", "\U0010ffff"]),
    "large": (pa.large_string(), ["", "a", "ab", "true", "false"]),
    "seen": (pa.string_view(), ["", "a", "ab"]),
    "bin": (pa.binary(), [b"", b"\0", b"a", b"a\0", b"\xff\xff"]),
    "fix": (pa.binary(2), [b"\0\0", b"a\0", b"ab", b"\xff\xff"]),
    "flag": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [-719162, -1, 0, 1, 18262, 2932896]),
    "us": (pa.timestamp("us", "UTC"), [-1, 0, 1, DAY - 1, DAY, 18262 * DAY]),
    "ns": (pa.timestamp("ns"), [-(2**63), -1001, -1, 0, 999, 1000, 18262 * DAY * 1000, 2**63 - 1]),
    "ms": (pa.timestamp("ms", "UTC"), [-1, 0, 1, 86_400_000]),
    "sec": (pa.timestamp("s"), [-1, 0, 1, 86_400]),
    "u": (pa.uint16(), [0, 1, 65535]),
    "named": (pa.dictionary(pa.int8(), pa.string()), ["a", "b"]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
NUMBERS = ["i8", "i", "l", "f", "d", "m", "wide"]
TEXTS = ["s", "large", "seen", "named"]
TIMES = ["day", "us", "ns", "ms", "sec"]
NUMERALS = [
    *("0", "1", "-1", "2", "128", "-129", "300", "2147483648", "2.5", "-1.5", "1.00", "0.1", "1E-10", "NULL"),
    *("-0.0D", "2.5D", "1E300", "1e-46", "9007199254740992D", "-9223372036854775808D", "99999999.99"),
    *(
        "9223372036854775807L",
        "-9223372036854775808L",
        "9223372036854775808",
        "9007199254740993",
        "100000000",
    ),
    *(
        "CAST('NaN' AS DOUBLE)",
        "CAST('-Infinity' AS DOUBLE)",
        "CAST('Infinity' AS FLOAT)",
        "CAST(0.1 AS FLOAT)",
    ),
]
MOMENTS = [
    *("DATE '1970-01-01'", "DATE '2020-01-01'", "DATE '0001-01-01'", "'1969-12-31'", "NULL"),
    *("TIMESTAMP '1970-01-01 00:00:00'", "TIMESTAMP '1969-12-31 23:59:59.999999'"),
    *("TIMESTAMP_NTZ '1970-01-01 00:00:00.000001'", "TIMESTAMP '9999-12-31 00:00:00'"),
]
WORDS = ["''", "'a'", "'ab'", "'a\0'", "'é'", "'\U0010ffff'", "'b'", "NULL"]
NUMBER_TYPES = ["DOUBLE", "FLOAT", "DECIMAL(38, 10)", "DECIMAL(12, 1)", "BIGINT", "INT", "STRING"]
CONSTANTS = {
    **dict.fromkeys(NUMBERS, NUMERALS),
    **dict.fromkeys(TEXTS, WORDS),
    **dict.fromkeys(TIMES, MOMENTS),
    "bin": ["X''", "X'00'", "X'61'", "X'6100'", "X'FFFF'", "NULL"],
    "fix": ["X''", "X'00'", "X'61'", "X'6100'", "X'6162'", "X'616200'", "X'FFFF'", "X'FFFFFF'"],
    "flag": ["TRUE", "FALSE", "NULL", "'true'"],
}
CASTS = {
    **dict.fromkeys(NUMBERS, NUMBER_TYPES),
    **{name: ["BINARY"] for name in TEXTS},
    **{name: ["DATE", "TIMESTAMP", "TIMESTAMP_NTZ"] for name in TIMES},
    "flag": ["INT", "DOUBLE", "STRING", "DECIMAL(3, 1)"],
}
PATTERNS = ["", "a", "a%", "%", "a_", "a%b", "%b", "a\\\\_%", "_", "é%"]


@st.composite
def conditions_on_a_column(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(CONSTANTS)))
    side, constants = name, CONSTANTS[name]
    if name in CASTS and draw(st.integers(0, 3)) == 0:
        kind = draw(st.sampled_from(CASTS[name]))
        side = f"CAST({name} AS {kind})"
        if kind == "STRING":
            constants = CONSTANTS["s"]
        elif kind == "BINARY":
            constants = CONSTANTS["bin"]
        elif name == "flag":
            constants = ["0", "1", "0.5", "2"]
    constant = st.sampled_from(constants)
    shape = draw(st.integers(0, 6))
    if shape <= 2:
        op = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "<=>"]))
        one, two = draw(st.sampled_from([(side, draw(constant)), (draw(constant), side)]))
        return f"{one} {op} {two}"
    if shape == 3:
        return f"{side} IN ({', '.join(draw(st.lists(constant, min_size=1, max_size=4)))})"
    if shape == 4:
        return f"{side} BETWEEN {draw(constant)} AND {draw(constant)}"
    if shape == 5 and name in TEXTS:
        pattern = draw(st.sampled_from(PATTERNS))
        return draw(
            st.sampled_from(
                [f"{name} LIKE '{pattern}'", f"startswith({name}, 'a')", f"endswith({name}, 'a')"]
            )
        )
    if shape == 6 and name == "flag":
        return draw(st.sampled_from(["flag", "flag IS TRUE", "flag IS FALSE"]))
    return f"{side} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"


LEAVES = st.one_of(
    conditions_on_a_column(),
    conditions_on_a_column(),
    conditions_on_a_column(),
    st.sampled_from(["TRUE", "FALSE", "CAST(NULL AS BOOLEAN)", "1 = 1", "u IS NULL", "i + 1 > 2L", "i < j"]),
).map(lambda text: text.replace("i < j", "l < d"))
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda each: f"NOT ({each})"),
        st.tuples(inner, st.sampled_from(["IS NULL", "IS NOT TRUE", "IS FALSE"])).map(
            lambda two: f"({two[0]}) {two[1]}"
        ),
        *(
            st.lists(inner, min_size=2, max_size=3).map(
                lambda parts, word=word: word.join(f"({each})" for each in parts)
            )
            for word in (" AND ", " OR ")
        ),
    ),
    max_leaves=5,
)


def column_of(name: str, picks: list[int | None]) -> pa.Array:
    kind, values = COLUMNS[name]
    chosen = [None if pick is None else values[pick % len(values)] for pick in picks]
    if pa.types.is_timestamp(kind):
        return pa.array(chosen, pa.int64()).view(kind)
    if pa.types.is_date(kind):
        return pa.array(chosen, pa.int32()).view(kind)
    return pa.array(chosen, kind)


def found_in(text: str, name: str) -> ColumnDomain:
    return value_set(parse_condition(text, SCHEMA), SCHEMA.field(name))


def keys_of(values: list[Any], kind: pa.DataType) -> list[bytes]:
    return [encode_value(pa.scalar(value, kind)) for value in values]


def points(found: ColumnDomain, kind: pa.DataType) -> list[Any]:
    assert found.keys.singles
    return [decode_key(each.key, kind).as_py() for each in found.keys.intervals]


ROW_PICKS = st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=9)


def check(text: str, batch: pa.RecordBatch) -> None:
    try:
        predicate = Predicate.parse(text, SCHEMA)
    except FilterError:
        return
    try:
        # Arrow cannot filter views, so only the columns that matter are handed over.
        read = batch.select(sorted(predicate.columns)) if predicate.columns else batch
        kept = predicate.mask(read).to_pylist()
    except FilterError:
        return
    for at, field in enumerate(SCHEMA):
        found = value_set(predicate.condition, field)
        column = batch.column(at)
        if pa.types.is_dictionary(field.type):
            column = column.dictionary_decode()
        keys = [encode_value(each) for each in column]
        for key, keep in zip(keys, kept, strict=True):
            inside = found.keys.contains(key)
            assert inside or keep is not True, (text, field.name, key)
            assert not found.exact or inside == (keep is True), (text, field.name, key)


@settings(deadline=None, max_examples=examples(200))
@given(text=CONDITIONS, seeds=ROW_PICKS, stride=st.integers(1, 7))
def test_every_row_that_a_filter_keeps_has_its_key_in_the_set_of_each_column(
    text: str, seeds: list[int | None], stride: int
) -> None:
    columns = [
        column_of(name, [None if seed is None else seed + at * stride for seed in seeds])
        for at, name in enumerate(COLUMNS)
    ]
    check(text, pa.record_batch(columns, schema=SCHEMA))


@settings(deadline=None, max_examples=examples(300))
@given(text=conditions_on_a_column())
def test_a_test_of_one_column_is_right_for_every_one_of_its_values(text: str) -> None:
    picks: list[int | None] = [None, *range(10)]
    check(text, pa.record_batch([column_of(name, picks) for name in COLUMNS], schema=SCHEMA))


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("(i = 1 AND l = 2) OR (i = 3 AND l > 4)", "i", [1, 3]),
        ("i IN (1, 2, 2) AND s = 'x'", "i", [1, 2]),
        ("i >= 5 AND i <= 5", "i", [5]),
        ("i = 1 + 2", "i", [3]),
        ("10 * 60 = l", "l", [600]),
        ("i IN (1 + 1, -(-3))", "i", [2, 3]),
        ("i > 2147483646 + (2 - 2)", "i", [2**31 - 1]),
        ("i BETWEEN 1 + 1 AND 7 DIV 3", "i", [2]),
        ("f = 1 / 2", "f", [0.5]),
        ("i < 1 + CAST(NULL AS INT)", "i", []),
        ("i > 4 AND i < 6", "i", [5]),
        ("i = 2.5", "i", []),
        ("i = 1 AND NOT i = 1", "i", []),
        ("i IS NULL OR i <=> 7", "i", [None, 7]),
        ("i8 = 300", "i8", []),
        ("i <= -2147483648L", "i", [-(2**31)]),
        ("flag", "flag", [True]),
        ("flag IS NOT TRUE", "flag", [None, False]),
        ("f = 0.5 OR f = -0.0D", "f", [0.0, 0.5]),
        ("d > CAST('Infinity' AS DOUBLE)", "d", [NAN]),
        ("s LIKE 'abc' OR s <= ''", "s", ["", "abc"]),
        ("fix > X'FFFE'", "fix", [b"\xff\xff"]),
        ("FALSE OR i = 1 AND TRUE", "i", [1]),
        ("NOT i IN (1, NULL)", "i", []),
        ("NOT ((i IN (1, NULL)) IS NULL)", "i", [1]),
    ],
)
def test_single_values_are_found(text: str, name: str, values: list[Any]) -> None:
    assert repr(points(found_in(text, name), SCHEMA.field(name).type)) == repr(values)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("i < 2.5", VALUES, keys_of([3], pa.int32())[0]),
        ("i > 1.5 AND i <= 9999999999", keys_of([2], pa.int32())[0], END),
        ("day >= TIMESTAMP '1970-01-01 00:00:01'", keys_of([1], pa.date32())[0], END),
        ("CAST(us AS DATE) = '1970-01-01'", *keys_of([0, DAY], pa.timestamp("us"))),
        ("s LIKE 'a\\\\_%'", b"\1a_", b"\1a`"),
        ("s LIKE 'ab_%c'", b"\1ab", b"\1ac"),
    ],
)
def test_bounds_are_those_of_the_stored_type(text: str, low: bytes, high: bytes) -> None:
    (name,) = Predicate.parse(text, SCHEMA).columns
    assert [(each.low, each.high) for each in found_in(text, name).keys.intervals] == [(low, high)]


@pytest.mark.parametrize(
    ("text", "name", "exact"),
    [
        ("i > 5", "i", True),
        ("i > 5 AND l = 1", "i", False),
        ("i > 5 AND i < 3 AND l = 1", "i", True),
        ("s LIKE 'a%'", "s", True),
        ("s LIKE 'a%b'", "s", False),
        ("i + 1 = 2", "i", False),
        ("u IS NOT NULL", "u", True),
        ("i = 1 + 2", "i", True),
        ("i = 2147483647 + 1", "i", False),
        ("i = 1 DIV 0", "i", False),
    ],
)
def test_a_set_is_exact_if_nothing_else_has_to_be_asked(text: str, name: str, exact: bool) -> None:
    assert found_in(text, name).exact is exact


@pytest.mark.parametrize(
    ("source", "target", "kept"),
    [
        (pa.decimal128(10, 2), pa.decimal128(10, 1), True),
        (pa.decimal128(10, 2), pa.decimal128(9, 1), False),  # 99999999.99 becomes 100000000.0
        (pa.int64(), pa.decimal128(20, 1), True),
        (pa.int64(), pa.decimal128(18, 0), False),
        (pa.int64(), pa.float32(), True),
        (pa.int64(), pa.int32(), False),
        (pa.float64(), pa.int64(), False),
        (pa.int32(), pa.bool_(), False),
        (pa.int32(), pa.string(), False),
        (pa.binary(), pa.string(), False),
    ],
)
def test_conversions_that_may_fail_or_turn_values_round_are_not_followed(
    source: pa.DataType, target: pa.DataType, kept: bool
) -> None:
    assert keeps_order(source, target) is kept


def test_what_is_not_understood_leaves_everything_possible() -> None:
    for text, name in (
        ("upper(s) = 'A'", "s"),
        ("CAST(l AS INT) = 5", "l"),
        ("named = 'a'", "named"),
        ("l = d", "l"),
    ):
        assert found_in(text, name) == ColumnDomain(EVERYTHING, exact=False), text


def test_a_long_list_is_looked_up_as_far_as_that_is_quick() -> None:
    halves = found_in(f"i IN ({', '.join(f'{each}.0' for each in range(1_000))}, 7.5)", "i")
    assert len(halves.keys.intervals) == 1_000
    assert halves.exact
    huge = ", ".join(f"{10**18 + each}D" for each in range(0, 300_000, 1_000))
    assert found_in(f"l IN ({huge})", "l") == ColumnDomain(EVERYTHING, exact=False)
    assert found_in(f"NOT l = {10**18}D", "l").exact


@pytest.mark.long
def test_long_chains_take_no_square_time() -> None:
    found = found_in(" AND ".join(f"i <> {each}" for each in range(0, 8000, 2)), "i")
    assert len(found.keys.intervals) == 4001  # nulls are not among them
    assert found.exact
    assert len(found_in(" OR ".join(f"i = {each}" for each in range(4000)), "i").keys.intervals) == 4000


BOUNDS = st.lists(st.binary(min_size=1, max_size=2), min_size=2, max_size=2).map(sorted)
SETS = st.lists(BOUNDS.map(lambda two: Interval(*two)), max_size=4).map(KeySet.of)
PROBES = st.binary(min_size=1, max_size=2)


@settings(deadline=None, max_examples=examples(200))
@given(one=SETS, two=SETS, key=PROBES, other=PROBES)
def test_sets_obey_the_laws_of_sets(one: KeySet, two: KeySet, key: bytes, other: bytes) -> None:
    assert (one | two).contains(key) == (one.contains(key) or two.contains(key))
    assert (one & two).contains(key) == (one.contains(key) and two.contains(key))
    if key < END:
        assert one.complement().contains(key) != one.contains(key)
    assert one.coarsened(1).contains(key) or not one.contains(key)
    low, high = sorted((key, other))
    assert one.overlaps(low, high) == (not (one & KeySet.of([Interval(low, high)])).is_empty)
    for each in (one | two, one & two, one.complement()):
        assert all(
            left.high < right.low for left, right in zip(each.intervals, each.intervals[1:], strict=False)
        )


def test_single_values_that_touch_stay_apart_and_ranges_that_touch_do_not() -> None:
    five, six = (Interval(*ends, True) for ends in ((b"\1\5", b"\1\6"), (b"\1\6", b"\1\7")))
    assert KeySet.of([six, five, five]).intervals == (five, six)
    assert KeySet.of([six, Interval(b"\1\7", END), five]).intervals == (five, Interval(b"\1\6", END))
    assert (NULLS | NULLS.complement()) == EVERYTHING
    assert (NULLS & NULLS.complement()) == NOTHING
    assert NULLS.intervals[0].key == b"\0"
    assert successor(five.low) == five.high
