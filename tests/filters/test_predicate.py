"""Filters: names, texts, errors and limits. What conditions mean, `test_like_spark.py` says."""

from __future__ import annotations

import datetime
import math
import random
import re
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from sqlglot.tokens import TokenType

from elasticscan.base.errors import ElasticScanError, FilterError, NotFound
from elasticscan.base.limits import MAX_FILTER_BYTES
from elasticscan.filters.aggregates import Aggregate
from elasticscan.filters.assignment import Assignment
from elasticscan.filters.casts import cast_array
from elasticscan.filters.parameters import with_parameters
from elasticscan.filters.parser import FilterSql
from elasticscan.filters.predicate import Predicate
from tests.base.examples import examples
from tests.filters.generator import CONDITIONS, SCHEMA, SEEDS, evaluated, mask_of, random_rows

NAN, INF = math.nan, math.inf
NOON = datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC)
PLACE = pa.struct([("x", pa.int64()), ("City", pa.struct([("code", pa.string())]))])
ROWS = pa.record_batch(
    {
        "n": pa.array([1, -2, None, 0, 7], pa.int32()),
        "tiny": pa.array([1, -128, None, 0, 127], pa.int8()),
        "big": pa.array([2**63 - 1, -(2**63), None, 0, 2**53 + 1], pa.int64()),
        "x": pa.array([NAN, -0.0, None, INF, 1.5], pa.float64()),
        "price": pa.array(
            [Decimal("1.50"), None, None, Decimal(0), Decimal("99999999.99")], pa.decimal128(10, 2)
        ),
        "wide": pa.array([Decimal(1), None, None, Decimal(10**37), Decimal(0)], pa.decimal128(38, 0)),
        "name": ["O'Brien", "straße", None, "", "a%b\n"],
        "raw": pa.array([b"\x01", b"", None, b"\xff", b"ab"], pa.binary()),
        "day": pa.array([NOON.date(), None, None, NOON.date(), datetime.date(1, 1, 1)]),
        "at": pa.array([NOON, None, None, NOON, NOON], pa.timestamp("us", "UTC")),
        "flag": [True, False, None, True, False],
        "place": pa.array([{"x": 1, "City": {"code": "q"}}, None, {"x": None}, {"x": 5}, {"x": 6}], PLACE),
        "odd name": [1, 2, 3, 4, 5],
        "tags": pa.array([["a"], [], None, ["b"], [None]], pa.list_(pa.string())),
    }
)


def answer(text: str) -> list[bool | None]:
    values: list[bool | None] = Predicate.parse(text, ROWS.schema).mask(ROWS).to_pylist()
    return values


@pytest.mark.parametrize(
    "text",
    [
        "big + 1 > 0", "big * 2 = 0", "-big = 0", "abs(big) = 0", "tiny + tiny = 1", "10 / n > 1",
        "x / x > 1", "n % 0 = 1", "n DIV 0 = 1", "CAST(big AS INT) = 0", "CAST(x AS BIGINT) = 0", "name = 1",
        "CAST(price AS TINYINT) = 1", "CAST(price AS DECIMAL(3, 2)) = 1", "CAST(name AS INT) = 1",
        "CAST(raw AS STRING) = 'a'", "n = 2147483647 + 1", "n > 1 DIV 0", "n <=> 2147483647 * 2",
    ],
)  # fmt: skip
def test_overflow_division_by_zero_and_failed_conversions_are_errors(text: str) -> None:
    predicate = Predicate.parse(text, ROWS.schema)
    with pytest.raises(FilterError, match="the filter"):
        predicate.mask(ROWS)


# ----------------------------------------------------------------------------------------- columns


def test_columns_are_found_whatever_their_case_and_named_as_the_schema_names_them() -> None:
    predicate = Predicate.parse("NAME = 'x' AND `ODD name` > 1 AND Place.city.CODE = 'q'", ROWS.schema)
    assert predicate.columns == {"name", "odd name", "place"}
    assert str(predicate) == "name = 'x' AND `odd name` > 1 AND place.City.code = 'q'"
    assert answer("place.x = 5 OR Place.city.CODE = 'q'") == [True, None, None, True, None]
    assert answer("place IS NULL") == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("prise > 1", "did you mean 'price'"),
        ("place.City.kode = 'q'", r"place\.City has no field kode; did you mean 'code'"),
        ("place.unlike = 'q'", "there are: x, City"),
        ("trips.n > 1", "there is no column trips"),
        ("TWICE = 1", "ambiguous"),
    ],
)
def test_a_column_that_is_unknown_or_may_be_two_is_an_error(text: str, why: str) -> None:
    schema = pa.schema([*ROWS.schema, pa.field("twice", pa.int8()), pa.field("Twice", pa.int8())])
    with pytest.raises(NotFound, match=why):
        Predicate.parse(text, schema)


@pytest.mark.parametrize(
    ("text", "piece", "inner"),
    [
        ("\"name\" = 'Oslo'", '"name"', "name"),
        ('name = "O\'Brien"', '"O\'Brien"', "O'Brien"),
        ('name = r"a"', 'r"a"', "a"),
        ('raw = X"41"', '"41"', "41"),
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


def test_a_mask_needs_only_the_columns_of_the_filter_in_any_order() -> None:
    predicate = Predicate.parse("n > 0 AND flag", ROWS.schema)
    assert predicate.mask(ROWS.select(["flag", "x", "n"])).to_pylist() == [True, False, None, False, False]
    with pytest.raises(NotFound, match="flag"):
        predicate.mask(ROWS.select(["n"]))
    with pytest.raises(FilterError, match="column n is"):
        Predicate.parse("n > 0", ROWS.schema).mask(pa.record_batch({"n": ["a"]}))


@pytest.mark.parametrize(
    "kind", [pa.timestamp("s", "UTC"), pa.timestamp("ms", "Europe/Paris"), pa.timestamp("ns", "+02:00")]
)
def test_timestamps_of_any_unit_and_zone_are_instants(kind: pa.DataType) -> None:
    values = pa.array([NOON, None, NOON + datetime.timedelta(1)], pa.timestamp("us", "UTC")).cast(kind)
    later = Predicate.parse("t > TIMESTAMP '2020-01-01 18:00:00'", pa.schema({"t": kind}))
    assert later.mask(pa.record_batch({"t": values})).to_pylist() == [False, None, True]


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n =", "cannot read the filter near '='"),
        ("n = 'open", 'cannot read the filter: a quote or a comment is not closed in "n = \'open"'),
        ("n IN (SELECT 1)", "do not support 'n IN .SELECT 1"),
        ("  n   =  'one' ", "in \"n = 'one'\""),
        ("n = 1 AND Date_Trunc('day', day) = day", "do not support .*TRUNC"),
        ("place = place", r"cannot be compared; test it with IS \[NOT\] NULL"),
        ("price / 2 = 1", "CAST one side to DOUBLE"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        Predicate.parse(text, ROWS.schema)


@pytest.mark.parametrize(
    "text",
    [
        "n + 1", "", "n = 1 LIMIT 3", "n = `open", "n = 1; flag", "sum( n ) > 1", "n = 1 AND n in 2",
        "name is 'Oslo'", "name SIMILAR TO 'a'", "n = DATE '2024-99-99'", "my_udf(n) = 1", ":p = 1", "n = ?",
        "current_date() = day", "try_cast(name AS INT) = 1", "trim(BOTH 'x' FROM name) = ''", "n IN ()",
        "n BETWEEN SYMMETRIC 1 AND 2", "n & 1 = 1", "INTERVAL '1' DAY IS NULL", "tags[0] = 'a'", "n = flag",
        "n AND flag", "day + 1 = day", "flag = 'true'", "name LIKE 'a!%' ESCAPE '!'", "isnull(n)",
        "name LIKE 'a\\\\'", "name LIKE '\\\\a'", "name LIKE name", "day + INTERVAL '1' DAY = day",
        "day = DATE '2024-01-01' + INTERVAL '1' HOUR", "day = DATE '9999-12-31' + INTERVAL '1' DAY",
        "year(n) = 1", "CAST(day AS INT) = 1", "CAST(n AS INTERVAL) = 1", "upper(raw) = 'A'", "wide = 1.5",
        "n = 99999999999999999999999999999999999999999", "day = '2024-02-30'", "x = 1e400", "tiny = 128Y",
        "at = '2020-01-01 00:00:00 Europe/Paris'", "CASE WHEN NULL THEN n END = 1", "flag = n > 1",
        "substring(name, 2) = 'a'",
    ],
)  # fmt: skip
def test_what_cannot_be_given_exactly_its_meaning_is_refused(text: str) -> None:
    with pytest.raises(FilterError):
        Predicate.parse(text, ROWS.schema)


DIGITS = "9" * 5_000


@pytest.mark.parametrize(
    "text",
    [
        "(" * 20_000 + "flag" + ")" * 20_000, "NOT " * 15_000 + "flag", "n = " + "- " * 20_000 + "1",
        "n = 1" + " + 1" * 10_000, "CASE WHEN " * 5_000, "coalesce(" * 5_000,
        "place" + ".x" * 20_000 + " = 1", "n IN (" + ", ".join(["1"] * 21_000) + ")",
        "name = '" + "a" * MAX_FILTER_BYTES + "'",
        f"n = {DIGITS}", f"n IN (1, -{DIGITS})", f"n > {DIGITS}.5", f"n > 1e{DIGITS}", "x -> 1BD `", "map( 1",
        f"CAST(name AS DECIMAL({DIGITS}, 2)) = 1", "CAST(name AS DECIMAL(²,2)) = 1", "name = '\ud800'",
        f"substring(name, {DIGITS}, 1) = 'a'",
    ],
    ids=lambda text: text[:12].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_text_that_is_too_long_or_too_deep_is_refused_without_harm(text: str) -> None:
    with pytest.raises((FilterError, NotFound)):
        Predicate.parse(text, ROWS.schema)


def test_a_filter_of_the_greatest_depth_can_be_used_in_every_way() -> None:
    predicate = Predicate.parse("n" + " + 1" * 95 + " > 96", ROWS.schema)
    assert predicate.mask(ROWS).to_pylist() == [False, False, None, False, True]
    assert predicate == Predicate.parse(str(predicate), ROWS.schema)
    long = " OR ".join(f"n = {number}" for number in range(3_000))  # and not deep
    assert answer(long) == [True, False, None, True, True]


_WORDS = r"""
n name = < > <= <> AND OR NOT IN LIKE RLIKE IS NULL BETWEEN ( ) , 1 -1 1.5 'a' '%' TRUE CAST( AS INT) STRING)
DECIMAL(3,²) DATE '2020-01-01' 1e309 0x1F X'00' CASE WHEN THEN ELSE END upper( + - * / % || <=> [ ] . :: ?? '
` \ é @ # $x { } ; -- /* */ EXISTS( SELECT 1L 1Y 1BD NaN array( map( -> ESCAPE ANY( year( ROUND(
"""
PIECES = [*_WORDS.split(), DIGITS, "\0"]


@pytest.mark.parametrize("seed", range(3))
def test_any_words_are_a_filter_or_refused(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(600):
        text = " ".join(dice.choice(PIECES) for _ in range(dice.randint(1, 12)))
        try:
            Predicate.parse(text, ROWS.schema).mask(ROWS)
        except ElasticScanError:
            continue


# -------------------------------------------------------------------------------- text and identity


@settings(deadline=None, max_examples=examples(200))
@given(text=CONDITIONS, seed=SEEDS)
def test_the_normalised_text_means_the_same(text: str, seed: int) -> None:
    rows = random_rows(random.Random(seed), 12)
    found = evaluated(text, rows)
    if found is None:
        return
    predicate, mask = found
    assert predicate == Predicate.parse(f" {text}\n", SCHEMA)
    assert mask_of(Predicate.parse(str(predicate), SCHEMA), rows) == mask


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
    for number in (NAN, INF, -INF, 1e38, 99999.5):
        with pytest.raises((FilterError, pa.ArrowInvalid)):
            cast_array(pa.array([number]), pa.decimal128(5, 0))


def test_a_decimal_becomes_the_double_that_its_digits_are_read_as() -> None:
    texts = [f"{n / 100:.2f}" for n in range(100)] + ["1.1", "123456789012.345", "-0.000000000000003"]
    for text in texts:
        decimals = pa.array([None, Decimal(text), Decimal(0)])
        rows = pa.record_batch({"x": [0.25, float(text), None], "d": decimals}).slice(1)
        for condition in (f"x = {text}", f"x IN ({text})", "x = d", f"x = {text}D"):
            mask = Predicate.parse(condition, rows.schema).mask(rows)
            assert mask.to_pylist() == [True, None], condition


def test_errors_show_numbers_without_the_suffixes_of_their_types() -> None:
    schema = pa.schema([("a", pa.int64()), ("`5L`", pa.decimal128(10, 2))])
    read = Predicate.parse(
        "a * 10000000000 > 5 AND ```5L``` > 100000000 AND '7L' <> '8D' AND a / 2 > 0.5", schema
    )
    assert "10000000000L" in str(read)
    assert (
        read.shown() == "a * 10000000000 > 5 AND ```5L``` > 100000000.00 AND '7L' <> '8D' AND a / 2.0 > 0.5"
    )


def test_a_list_is_that_of_an_in_with_parentheses_and_without() -> None:
    for text in ("n IN :some", "n IN (:some)"):
        written = with_parameters(text, {"some": range(1, 3)})
        assert str(Predicate.parse(written, ROWS.schema)) == "n IN (1, 2)"


def test_an_error_of_a_row_shows_what_the_user_wrote() -> None:
    for text in ("1/0   > n", "cast(name as bigint)>1", "N * 9223372036854775807 > 1 -- all"):
        read = Predicate.parse(f" {text}\n", ROWS.schema)
        for predicate in (read, Predicate(read.condition, read.text)):
            with pytest.raises(FilterError, match=f"the filter {re.escape(text)}( fails|.$)"):
                predicate.mask(ROWS)
        assert Predicate(read.condition) == read  # in any spelling
