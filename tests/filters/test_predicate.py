"""Filters: what each construct means, and what is refused."""

from __future__ import annotations

import datetime
import math
import pickle
import re
from decimal import Decimal

import pyarrow as pa
import pytest
from sqlglot.tokens import TokenType

from elasticscan.base.errors import FilterError, NotFound
from elasticscan.base.limits import MAX_FILTER_BYTES
from elasticscan.filters.aggregates import Aggregate
from elasticscan.filters.assignment import Assignment
from elasticscan.filters.casts import cast_array
from elasticscan.filters.parser import FilterSql
from elasticscan.filters.predicate import Predicate

NAN, INF = math.nan, math.inf
UTC = datetime.UTC


def _moment(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


ROWS = pa.record_batch(
    {
        "id": [0, 1, 2, 3, 4],
        "n": pa.array([1, -2, None, 0, 7], pa.int32()),
        "tiny": pa.array([1, -128, None, 0, 127], pa.int8()),
        "big": pa.array([2**63 - 1, -(2**63), None, 0, 2**53 + 1], pa.int64()),
        "x": pa.array([NAN, -0.0, None, INF, 1.5], pa.float64()),
        "real": pa.array([0.1, -0.0, None, NAN, 1.5], pa.float32()),
        "price": pa.array(
            [Decimal("1.50"), Decimal("-2.25"), None, Decimal("0.00"), Decimal("99999999.99")],
            pa.decimal128(10, 2),
        ),
        "wide": pa.array([Decimal(1), Decimal(2), None, Decimal(10**37), Decimal(0)], pa.decimal128(38, 0)),
        "name": ["O'Brien", "straße", None, "", "a%b\n"],
        "raw": pa.array([b"\x01", b"", None, b"\xff", b"ab"], pa.binary()),
        "day": pa.array(
            [
                datetime.date(2020, 1, 1), datetime.date(1969, 12, 31), None,
                datetime.date(2024, 2, 29), datetime.date(1, 1, 1),
            ]
        ),
        "at": pa.array(
            [
                _moment(2020, 1, 1), _moment(1969, 12, 31, 23, 59, 59, 500_000), None,
                _moment(2024, 2, 29, 12), _moment(1, 1, 1),
            ],
            pa.timestamp("us", "UTC"),
        ),
        "flag": [True, False, None, True, False],
        "place": pa.array(
            [
                {"x": 1, "City": {"code": "q"}}, None, {"x": None, "City": None},
                {"x": 5, "City": {"code": None}}, {"x": 6, "City": {"code": "q"}},
            ]
        ),
        "odd name": [1, 2, 3, 4, 5],
        "tags": pa.array([["a"], [], None, ["b"], [None]], pa.list_(pa.string())),
    }
)  # fmt: skip


def answer(text: str, rows: pa.RecordBatch = ROWS) -> list[bool | None]:
    values: list[bool | None] = Predicate.parse(text, rows.schema).mask(rows).to_pylist()
    return values


def kept(text: str, rows: pa.RecordBatch = ROWS) -> list[int]:
    """The ids of the rows that a filter keeps."""
    ids: list[int] = rows.filter(Predicate.parse(text, rows.schema).mask(rows)).column("id").to_pylist()
    return ids


# -------------------------------------------------------------------------------- three-valued logic


def test_and_or_not_follow_three_valued_logic() -> None:
    truth: list[bool | None] = [True, False, None]
    pairs = [(left, right) for left in truth for right in truth]
    rows = pa.record_batch({"a": [left for left, _ in pairs], "b": [right for _, right in pairs]})
    conjunction = [False if False in pair else None if None in pair else True for pair in pairs]
    disjunction = [True if True in pair else None if None in pair else False for pair in pairs]
    assert answer("a AND b", rows) == conjunction
    assert answer("a OR b", rows) == disjunction
    assert answer("NOT a", rows) == [None if left is None else not left for left, _ in pairs]
    assert answer("a <=> b", rows) == [left is right for left, right in pairs]


# True, false or unknown for each row of `ROWS`.
ANSWERS = [
    # Tests for truth, null and ranges.
    ("flag", [True, False, None, True, False]),
    ("flag IS TRUE", [True, False, False, True, False]),
    ("flag IS NOT FALSE", [True, False, True, True, False]),
    ("n = 1 IS NULL", [False, False, True, False, False]),
    ("n <=> NULL", [False, False, True, False, False]),
    ("n <=> 1", [True, False, False, False, False]),
    ("tags IS NOT NULL", [True, True, False, True, True]),
    ("TRUE", [True] * 5),
    ("NULL", [None] * 5),
    ("1 = 1", [True] * 5),
    ("n BETWEEN 0 AND 5", [True, False, None, True, False]),
    ("n BETWEEN NULL AND 0", [False, None, None, None, False]),
    # IN is unknown when only a null could match.
    ("n IN (1, 7)", [True, False, None, False, True]),
    ("n IN (1, NULL)", [True, None, None, None, None]),
    ("n NOT IN (1, NULL)", [False, None, None, None, None]),
    ("n NOT IN (1, 7)", [False, True, None, True, False]),
    ("x IN (0, CAST('NaN' AS DOUBLE))", [True, True, None, False, False]),
    ("name IN ('', 'straße')", [False, True, None, True, False]),
    ("n IN (big, 7)", [False, False, None, True, True]),
    ("raw IN (X'FF', X'01')", [True, False, None, True, False]),
    ("flag IN (TRUE)", [True, False, None, True, False]),
    ("NULL IN (1)", [None] * 5),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), ANSWERS)
def test_a_condition_is_true_false_or_unknown_for_each_row(text: str, expected: list[bool | None]) -> None:
    assert answer(text) == expected


# ------------------------------------------------------------------------------- what each construct means

# The ids of the rows of `ROWS` that a condition keeps.
KEPT = [
    # NaN equals itself and exceeds every number, and zero has no sign.
    ("x = CAST('NaN' AS DOUBLE)", [0]),
    ("x > 1e308", [0, 3]),
    ("x >= 0 AND x <= 0", [1]),
    ("x < CAST('NaN' AS DOUBLE)", [1, 3, 4]),
    ("x <> x", []),
    ("isnan(x)", [0]),
    # Numbers of different types compare without losing digits.
    ("big = 9223372036854775807.0", [0]),
    ("big > 9007199254740992.5", [0, 4]),
    ("big = 9007199254740993", [4]),
    ("big = 9007199254740993.0D", [4]),
    ("n < 1.5", [0, 1, 3]),
    ("price = 1.5", [0]),
    ("price = 1.5D", [0]),
    ("real = 0.1", []),
    ("real = CAST(0.1 AS FLOAT)", [0]),
    ("n = '1'", [0]),
    ("price < '2'", [0, 1, 3]),
    ("tiny = 127Y", [4]),
    # Arithmetic.
    ("n + 1 = 2", [0]),
    ("n / 2 = 0.5", [0]),
    ("n % 2 = 1", [0, 4]),
    ("-7 % 3 = n + 1", [1]),
    ("big % -1 = 0", [0, 1, 3, 4]),
    ("n DIV 2 = 3", [4]),
    ("-n = 2", [1]),
    ("abs(n) = 2", [1]),
    ("n + NULL = 1", []),
    # What a condition guards is not computed for the rows that it excludes.
    ("n <> 0 AND 10 / n > 1", [0, 4]),
    ("n = 0 OR 10 / n > 1", [0, 3, 4]),
    ("CASE WHEN n = 0 THEN FALSE ELSE 10 / n > 1 END", [0, 4]),
    ("IF(n = 0, TRUE, 10 / n > 1)", [0, 3, 4]),
    ("10 / NULLIF(n, 0) > 1", [0, 4]),
    ("COALESCE(n = 0 OR NULL, 10 / n > 1)", [0, 3, 4]),
    # Text.
    ("name = 'O''Brien'", [0]),
    ("name = 'O\\'Brien'", [0]),
    ("name > 'a'", [1, 4]),
    ("upper(name) = 'STRASSE'", [1]),
    ("lower(name) = 'o''brien'", [0]),
    ("trim('  a ') = 'a' AND ltrim(' a') = rtrim('a ')", [0, 1, 2, 3, 4]),
    ("concat(name, '-', n) = 'straße--2'", [1]),
    ("name || '!' = '!'", [3]),
    ("startswith(name, 'O') OR endswith(name, 'e') OR contains(name, '%')", [0, 1, 4]),
    ("startswith(name, NULL)", []),
    # Patterns.
    ("name LIKE 'a%'", [4]),
    ("name LIKE '%e'", [1]),
    ("name LIKE 's_r%e'", [1]),
    ("name LIKE ''", [3]),
    ("name LIKE 'a\\\\%b_'", [4]),
    ("name NOT LIKE 'a\\\\%%'", [0, 1, 3]),
    ("name LIKE 'a\\\\%b'", []),
    ("name LIKE 'a.b_'", []),
    ("name ILIKE 'STRA%'", [1]),
    ("name LIKE NULL", []),
    # Times, bytes, conversions.
    ("day = DATE '2020-01-01'", [0]),
    ("day = DATE '2019-12-31' + INTERVAL '1' DAY", [0]),
    ("day = DATE '2020-05-01' - INTERVAL 4 MONTHS", [0]),
    ("day = DATE '2021-01-01' - INTERVAL '1' YEAR", [0]),
    ("day < at", [1, 3]),
    ("at = day", [0, 4]),
    ("at >= '2020-01-01T01:00:00+01:00'", [0, 3]),
    ("at = TIMESTAMP '1969-12-31 23:59:59.5'", [1]),
    ("at = TIMESTAMP '1969-12-31 18:59:59.5-05:00'", [1]),
    ("at > TIMESTAMP_NTZ '2020-01-01 00:00:00'", [3]),
    ("year(at) = 1969 AND month(day) = 12 AND day(day) = 31", [1]),
    ("CAST(at AS DATE) = DATE '1969-12-31'", [1]),
    ("CAST(at AS STRING) = '1969-12-31 23:59:59.5'", [1]),
    ("CAST(day AS STRING) LIKE '2024%'", [3]),
    ("raw = X'FF'", [3]),
    ("length(raw) = 2", [4]),
    ("CAST(' +7 ' AS INT) = n", [4]),
    ("CAST(x AS FLOAT) = 1.5", [4]),
    ("CAST(flag AS INT) = 1", [0, 3]),
    ("CAST(price AS INT) = 99999999", [4]),
    ("CAST(price AS DECIMAL(10, 0)) = 2", [0]),
    ("CAST(price AS DECIMAL(10, 1)) = -2.3", [1]),
    ("n::STRING = '0'", [3]),
    # CASE, IF, COALESCE.
    ("CASE n WHEN 1 THEN 'a' WHEN 7 THEN 'b' END = 'b'", [4]),
    ("CASE WHEN flag THEN n ELSE 2.5 END = 2.5", [1, 2, 4]),
    ("IF(flag, n, 0) = 1", [0]),
    ("COALESCE(n, 0) = 0", [2, 3]),
    ("NVL(n, 5) = 5", [2]),
    ("NULLIF(n, 7) IS NULL", [2, 4]),
]


@pytest.mark.parametrize(("text", "expected"), KEPT)
def test_a_filter_keeps_the_rows_that_spark_would_keep(text: str, expected: list[int]) -> None:
    assert kept(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "big + 1 > 0",
        "big * 2 = 0",
        "-big = 0",
        "abs(big) = 0",
        "tiny + tiny = 1",
        "10 / n > 1",
        "x / x > 1",
        "n % 0 = 1",
        "n DIV 0 = 1",
        "CAST(big AS INT) = 0",
        "CAST(x AS BIGINT) = 0",
        "CAST(price AS TINYINT) = 1",
        "CAST(price AS DECIMAL(3, 2)) = 1",
        "CAST(name AS INT) = 1",
        "name = 1",
        "CAST(raw AS STRING) = 'a'",
    ],
)
def test_overflow_division_by_zero_and_failed_conversions_are_errors(text: str) -> None:
    predicate = Predicate.parse(text, ROWS.schema)
    with pytest.raises(FilterError, match="the filter"):
        predicate.mask(ROWS)


@pytest.mark.parametrize(
    "text",
    [
        "name LIKE 'a\\\\'",
        "name LIKE '\\\\a'",
        "name LIKE name",
    ],
)
def test_a_pattern_that_cannot_be_followed_exactly_is_refused(text: str) -> None:
    with pytest.raises(FilterError, match=r"pattern|missing"):
        Predicate.parse(text, ROWS.schema)


# ----------------------------------------------------------------------------------------- columns


def test_columns_are_found_whatever_their_case_and_named_as_the_schema_names_them() -> None:
    predicate = Predicate.parse("NAME = 'x' AND `ODD name` > 1 AND Place.city.CODE = 'q'", ROWS.schema)
    assert predicate.columns == {"name", "odd name", "place"}
    assert str(predicate) == "name = 'x' AND `odd name` > 1 AND place.City.code = 'q'"


def test_a_field_of_a_null_struct_is_null() -> None:
    assert answer("place.x = 5") == [False, None, None, True, False]
    assert answer("place.City.code IS NULL") == [False, True, True, True, False]
    assert answer("place IS NULL") == [False, True, False, False, False]


def test_an_unknown_column_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(NotFound, match="did you mean 'price'"):
        Predicate.parse("prise > 1", ROWS.schema)
    with pytest.raises(NotFound, match=r"place\.City has no field kode; did you mean 'code'"):
        Predicate.parse("place.City.kode = 'q'", ROWS.schema)
    with pytest.raises(NotFound, match="there are: x, City"):
        Predicate.parse("place.unlike = 'q'", ROWS.schema)


def test_a_column_behind_the_name_of_its_table_is_unknown() -> None:
    for text in ("trips.n > 1", "db.trips.N > 1", "trips.nothing > 1"):
        with pytest.raises(NotFound, match=r"there is no column (trips|db)"):
            Predicate.parse(text, ROWS.schema)


@pytest.mark.parametrize(
    ("text", "piece", "inner"),
    [
        ("\"name\" = 'Oslo'", '"name"', "name"),
        ('name = "O\'Brien"', '"O\'Brien"', "O'Brien"),
        ("name <> 'a' AND day > date\"2024-01-01\"", '"2024-01-01"', "2024-01-01"),
        ('name = r"a"', 'r"a"', "a"),
        ('raw = X"41"', '"41"', "41"),
        ("name IN ('x', \"y\")", '"y"', "y"),
        ('"na""me" IS NULL', '"na""me"', 'na""me'),
    ],
)
def test_double_quotes_are_refused_with_the_two_ways_to_write_it(text: str, piece: str, inner: str) -> None:
    with pytest.raises(FilterError) as caught:
        Predicate.parse(text, ROWS.schema)
    assert f"{piece} may be a text or a name; write '{inner}' for text" in caught.value.message
    assert f"`{inner}` for a column" in caught.value.message
    with pytest.raises(FilterError, match="may be a text or a name"):
        Assignment.parse(f"CASE WHEN {text} THEN 1 END", ROWS.schema.field("n"), ROWS.schema)
    with pytest.raises(FilterError, match="may be a text or a name"):
        Aggregate.parse(f"min(CASE WHEN {text} THEN 1 END)", ROWS.schema)


def test_double_quotes_within_texts_names_and_comments_are_no_quotes() -> None:
    schema = pa.schema({'a"b': pa.string()})
    for text in ("`a\"b` = 'x'", '`a"b` = \'"x"\'', '`a"b` = \'x\' /* "y" */ -- "z"'):
        Predicate.parse(text, schema)


@pytest.mark.parametrize("text", ["FALSE", "NULL", "1 = 1", "'id' = 'id'", "1 < 2 OR TRUE", "NOT FALSE"])
def test_a_condition_of_a_change_names_a_column_or_is_true(text: str) -> None:
    Predicate.parse(text, ROWS.schema)
    with pytest.raises(FilterError, match="names no column; write TRUE for all rows"):
        Predicate.parse_for_change(text, ROWS.schema)
    for right in ("TRUE", " ( true ) ", "n > 1 AND 1 = 1", "n IS NULL"):
        assert Predicate.parse_for_change(right, ROWS.schema) == Predicate.parse(right, ROWS.schema)


def test_a_column_name_that_fits_two_columns_is_an_error() -> None:
    schema = pa.schema([("a", pa.int32()), ("A", pa.int32())])
    with pytest.raises(NotFound, match="ambiguous"):
        Predicate.parse("a = 1", schema)


def test_a_mask_needs_only_the_columns_of_the_filter_in_any_order() -> None:
    predicate = Predicate.parse("n > 0 AND flag", ROWS.schema)
    assert predicate.mask(ROWS.select(["flag", "id", "n"])).to_pylist() == [True, False, None, False, False]
    with pytest.raises(NotFound, match="flag"):
        predicate.mask(ROWS.select(["n"]))
    with pytest.raises(FilterError, match="column n is"):
        Predicate.parse("n > 0", ROWS.schema).mask(pa.record_batch({"n": ["a"]}))


def test_a_mask_of_no_rows_is_empty_and_constants_fill_the_whole_mask() -> None:
    assert answer("n > 0 AND 1 / n > 0", ROWS.slice(0, 0)) == []
    assert answer("FALSE OR 'a' < 'b'", ROWS.slice(1, 2)) == [True, True]


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
)  # fmt: skip
def test_other_encodings_of_text_mean_the_same(kind: pa.DataType) -> None:
    plain = pa.array(["a", None, "b"])
    encoded = plain.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else plain.cast(kind)
    assert answer("s = 'b'", pa.record_batch({"s": encoded})) == [False, None, True]


@pytest.mark.parametrize(
    "kind", [pa.timestamp("s", "UTC"), pa.timestamp("ms", "Europe/Paris"), pa.timestamp("ns", "+02:00")]
)
def test_timestamps_of_any_unit_and_zone_are_instants(kind: pa.DataType) -> None:
    values = pa.array([_moment(2020, 1, 1), None, _moment(2020, 1, 2)], pa.timestamp("us", "UTC")).cast(kind)
    assert answer("t > TIMESTAMP '2020-01-01 12:00:00'", pa.record_batch({"t": values})) == [
        False,
        None,
        True,
    ]


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n + 1", "must be true or false"),
        ("", "cannot read the filter"),
        ("n =", "cannot read the filter near '='"),
        ("n = 1 LIMIT 3", "cannot read the filter near 'LIMIT'"),
        ("n = 'open", 'cannot read the filter: a quote or a comment is not closed in "n = \'open"'),
        ("n = `open", "cannot read the filter: a quote or a comment is not closed in 'n = `open'"),
        ("n = 1; flag", "BLOCK"),
        ("n IN (SELECT 1)", "subqueries, as in 'SELECT 1'"),
        ("sum( n ) > 1", r"sum, as in 'SUM\(n\)'"),
        ("n = 1 AND n in 2", "this form of IN, as in 'n IN 2'"),
        ("name  is 'Oslo'", "IS, as in \"name IS 'Oslo'\""),
        ("name SIMILAR TO 'a'", "SIMILARTO"),
        ("n = DATE '2024-99-99'", "'2024-99-99'"),
        ("  n   =  'one' ", "in \"n = 'one'\""),
        ("my_udf(n) = 1", "my_udf"),
        ("n = 1 AND Date_Trunc('day', day) = day", "Date_Trunc"),
        ("current_date() = day", "current_date"),
        ("try_cast(name AS INT) = 1", "TRYCAST"),
        ("trim(BOTH 'x' FROM name) = ''", "this form of TRIM"),
        (":p = 1", "parameters"),
        ("n = ?", "has no value; pass parameters="),
        ("n BETWEEN SYMMETRIC 1 AND 2", "this form of BETWEEN"),
        ("n IN ()", "at least one value"),
        ("n & 1 = 1", "BITWISEAND"),
        ("INTERVAL '1' DAY IS NULL", "INTERVAL"),
        ("tags[0] = 'a'", "BRACKET"),
        ("n = flag", "INT, BOOLEAN cannot be compared"),
        ("place = place", r"cannot be compared; test it with IS \[NOT\] NULL"),
        ("n AND flag", "where a condition is needed"),
        ("day + 1 = day", r"DATE \+ INT is not supported"),
        ("flag = 'true'", "STRING, which does not convert to BOOLEAN"),
        ("name LIKE 'a!%' ESCAPE '!'", "ESCAPE"),
        ("isnull(n)", "ISNULL"),
        ("day + INTERVAL '1' DAY = day", "that is a constant"),
        ("day = DATE '2024-01-01' + INTERVAL '1' HOUR", "a whole number of days, months or years"),
        ("day = DATE '9999-12-31' + INTERVAL '1' DAY", "outside of the years 1 to 9999"),
        ("year(n) = 1", "does not convert to DATE"),
        ("CAST(day AS INT) = 1", "does not convert to INT"),
        ("CAST(n AS INTERVAL) = 1", "cannot CAST to"),
        ("upper(raw) = 'A'", "CAST it to STRING"),
        ("price / 2 = 1", "CAST one side to DOUBLE"),
        ("wide = 1.5", "more than 38"),
        ("n = 99999999999999999999999999999999999999999", "more than 38"),
        ("n = 'one'", "cannot convert 'one' to BIGINT"),
        ("day = '2024-02-30'", "2024-02-30"),
        ("at = '2020-01-01 00:00:00 Europe/Paris'", "Europe/Paris"),
        ("x = 1e400", "out of the range of DOUBLE"),
        ("tiny = 128Y", "128 does not convert to TINYINT"),
        ("CASE WHEN NULL THEN n END = 1", "cannot be a bare NULL"),
        ("flag = n > 1", "parentheses"),
        ("substring(name, 2) = 'a'", "SUBSTRING"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        Predicate.parse(text, ROWS.schema)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 20_000 + "flag" + ")" * 20_000,
        "NOT " * 15_000 + "flag",
        "n = " + "- " * 20_000 + "1",
        "n = 1" + " + 1" * 10_000,
        "CASE WHEN " * 5_000,
        "coalesce(" * 5_000,
        "place" + ".x" * 20_000 + " = 1",
        "n IN (" + ", ".join(["1"] * 21_000) + ")",
        "name = '" + "a" * MAX_FILTER_BYTES + "'",
    ],
    ids=lambda text: text[:12],
)
def test_text_that_is_too_long_or_too_deep_is_refused_without_harm(text: str) -> None:
    with pytest.raises((FilterError, NotFound)):
        Predicate.parse(text, ROWS.schema)


def test_a_filter_of_the_greatest_depth_can_be_used_in_every_way() -> None:
    predicate = Predicate.parse("n" + " + 1" * 95 + " > 96", ROWS.schema)
    assert predicate.mask(ROWS).to_pylist() == [False, False, None, False, True]
    assert pickle.loads(pickle.dumps(predicate)) == Predicate.parse(str(predicate), ROWS.schema)


def test_a_long_chain_is_not_deep() -> None:
    text = " OR ".join(f"n = {number}" for number in range(3_000))
    assert kept(text) == [0, 3, 4]


# -------------------------------------------------------------------------------- text and identity

STABLE = [
    "n = 1",
    "n > 0 AND (big < 5 OR NOT flag)",
    "NOT (n > 0 AND flag)",
    "x = 1.5D AND price = 1.50 AND big = 7L",
    "n - (1 - n) > -1",
    "-(-n) = 1",
    "n / 2.0D > 0.2D",
    "x IN (0.0D, CAST('NaN' AS DOUBLE), CAST('-Infinity' AS DOUBLE))",
    "name = 'it\\'s\\n\\\\%'",
    "name LIKE 'a\\\\%_' AND name ILIKE '%b'",
    "raw = X'00FF'",
    "day = DATE '2020-01-01' AND at < TIMESTAMP '2020-01-01 00:00:00'",
    "CAST(at AS TIMESTAMP_NTZ) = TIMESTAMP_NTZ '2020-01-01 00:00:00'",
    "CASE WHEN n = 1 THEN 'a' ELSE NULL END = 'a'",
    "CONCAT(name, '-', UPPER(name)) = 'a'",
    "(n = 1) IS NULL AND flag IS TRUE",
    "CAST(n AS DECIMAL(12, 2)) + 1.5 > 2 AND CAST(1.5D AS FLOAT) = real",
    "`odd name` IN (1, NULL) AND place.City.code <=> NULL",
]


@pytest.mark.parametrize("text", STABLE)
def test_the_normalised_text_reads_back_as_the_same_condition(text: str) -> None:
    predicate = Predicate.parse(text, ROWS.schema)
    again = Predicate.parse(str(predicate), ROWS.schema)
    assert again == predicate
    assert hash(again) == hash(predicate)
    assert str(again) == str(predicate)
    assert again.mask(ROWS).equals(predicate.mask(ROWS))


WORDS = sorted(
    word
    for word in {
        *FilterSql.Tokenizer.KEYWORDS,
        *FilterSql.Parser.FUNCTIONS,
        *(kind.name for kind in TokenType),
    }
    if word.isidentifier()
)


@pytest.mark.long
@pytest.mark.parametrize("first", range(26), ids=lambda at: chr(65 + at))
def test_a_column_may_have_any_word_of_sql_as_its_name(first: int) -> None:
    for word in (word.lower() for word in WORDS if ord(word[0].upper()) == 65 + first):
        schema = pa.schema([(word, pa.int64()), ("b_", pa.int64()), ("c_", pa.bool_())])
        for form in (
            "{0} > 3",
            "NOT c_ AND {0} IN (1, 2) OR b_ = -{0}",
            "CASE WHEN {0} = {0} % 2 THEN 1 ELSE {0} END = 1",
        ):
            predicate = Predicate.parse(form.format(f"`{word}`"), schema)
            assert Predicate.parse(str(predicate), schema) == predicate, word


@pytest.mark.parametrize("text", ["i = 2147483647 + 1", "i > 1 DIV 0", "i <=> 2147483647 * 2"])
def test_a_constant_that_overflows_fails_when_rows_are_looked_at(text: str) -> None:
    rows = pa.record_batch({"i": pa.array([1], pa.int32())})
    predicate = Predicate.parse(text, rows.schema)
    with pytest.raises(FilterError):
        predicate.mask(rows)


@pytest.mark.parametrize(
    ("numbers", "digits", "expected"),
    [
        ([1.005, -2.675, 0.5, 1e-300, None, 2 / 3], (20, 2), ["1.01", "-2.68", "0.50", "0.00", None, "0.67"]),
        ([1e20, 1.5e-7, 123456789012345680.0], (38, 9), ["1E20", "1.50E-7", "123456789012345680"]),
        ([5e-39, -4.9e-39], (38, 38), ["1E-38", "0"]),
        ([9.99e37], (38, 0), ["9.99E37"]),
    ],
)
def test_a_double_becomes_the_decimal_of_the_digits_it_is_written_with(
    numbers: list[float | None], digits: tuple[int, int], expected: list[str | None]
) -> None:
    made = cast_array(pa.array(numbers), pa.decimal128(*digits))
    assert made.to_pylist() == [None if text is None else Decimal(text) for text in expected]


def test_a_decimal_becomes_the_double_that_its_digits_are_read_as() -> None:
    texts = [f"{n / 100:.2f}" for n in range(100)] + ["1.1", "123456789012.345", "-0.000000000000003"]
    for text in texts:
        decimals = pa.array([None, Decimal(text), Decimal(0)])
        rows = pa.record_batch({"x": [0.25, float(text), None], "d": decimals}).slice(1)
        for condition in (f"x = {text}", f"x IN ({text})", "x = d", f"x = {text}D"):
            assert answer(condition, rows) == [True, None], condition


@pytest.mark.parametrize("number", [NAN, INF, -INF, 1e38, 99999.5])
def test_a_double_that_no_such_decimal_holds_is_refused(number: float) -> None:
    with pytest.raises((FilterError, pa.ArrowInvalid)):
        cast_array(pa.array([number]), pa.decimal128(5, 0))


@pytest.mark.parametrize("value", ["O'Brien", "a\\", "\\' OR true OR '", "it''s \\n", ""])
def test_text_with_quotes_and_backslashes_doubled_is_that_text(value: str) -> None:
    quoted = "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    rows = pa.record_batch({"name": [value, "other"]})
    chosen = Predicate.parse(f"name = {quoted}", rows.schema)
    assert chosen.mask(rows).to_pylist() == [True, False]


def test_errors_show_numbers_without_the_suffixes_of_their_types() -> None:
    schema = pa.schema([("a", pa.int64()), ("`5L`", pa.decimal128(10, 2))])
    text = "a * 10000000000 > 5 AND ```5L``` > 10000000000000000000 AND '7L' <> '8D' AND a / 2 > 0.5"
    read = Predicate.parse(text, schema)
    assert "10000000000L" in str(read)
    shown = Predicate(read.condition)._show()
    assert shown == (
        "a * 10000000000 > 5 AND ```5L``` > 10000000000000000000.00 AND '7L' <> '8D' AND a / 2.0 > 0.5"
    )


def test_an_error_of_a_row_shows_what_the_user_wrote() -> None:
    for text in ("1/0   > n", "cast(name as bigint)>1", "N * 9223372036854775807 > 1 -- all"):
        read = Predicate.parse(f" {text}\n", ROWS.schema)
        for predicate in (read, pickle.loads(pickle.dumps(read)), Predicate(read.condition, read.text)):
            with pytest.raises(FilterError, match=f"the filter {re.escape(text)}( fails|.$)"):
                predicate.mask(ROWS)
        assert Predicate(read.condition) == read  # in any spelling


def test_a_filter_is_read_once_for_each_schema() -> None:
    wide, narrow = (pa.schema({"x": kind}) for kind in (pa.int64(), pa.string()))
    first = Predicate.parse("x = '7'", wide)
    assert Predicate.parse("x = '7'", pa.schema({"x": pa.int64()})) is first
    assert Predicate.parse("x = '7'", narrow) != first
    for _ in range(2):
        with pytest.raises(NotFound):
            Predicate.parse("x = '7'", pa.schema({"y": pa.int64()}))


def test_long_filters_are_read_once_as_well_and_few_are_kept() -> None:
    schema = pa.schema([("k", pa.int64())])

    def text(number: int) -> str:
        return " OR ".join(f"(k >= {at} AND k < {at + number})" for at in range(1_000, 200_000, 1_000))

    assert len(text(1)) > 4_000
    first = Predicate.parse(text(1), schema)
    assert Predicate.parse(text(1), schema) is first
    for number in range(2, 8):
        Predicate.parse(text(number), schema)
    again = Predicate.parse(text(1), schema)
    assert again == first
    assert again is not first
