"""Any text is a filter or is refused with an error of ours."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from elasticscan.base.errors import ElasticScanError, FilterError
from elasticscan.filters import Predicate

DIGITS = "9" * 5_000
FILTERS = [
    f"id = {DIGITS}",
    f"id = -{DIGITS}",
    f"id IN (1, {DIGITS})",
    f"id > {DIGITS}.5",
    f"id > 1e{DIGITS}",
    f"CAST(s AS DECIMAL({DIGITS}, 2)) = 1",
    "CAST(s AS DECIMAL(²,2)) = 1",
    f"substring(s, {DIGITS}, 1) = 'a'",
    "s = '\ud800'",
    "map( 1",
    "x -> 1BD `",
]


@pytest.mark.parametrize("text", FILTERS, ids=lambda text: text[:20].encode("ascii", "replace").decode())
def test_filters_that_a_parser_stumbles_over_are_refused(text: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
    with pytest.raises(FilterError):
        Predicate.parse(text, schema)


_WORDS = r"""
id s = < > <= <> AND OR NOT IN LIKE RLIKE IS NULL BETWEEN ( ) , 1 -1 1.5 'a' '%' TRUE CAST( AS INT) STRING)
DECIMAL(3,²) DATE '2020-01-01' 1e309 0x1F X'00' CASE WHEN THEN ELSE END upper( + - * / % || <=> [ ] . :: ?? '
` \ é @ # $x { } ; -- /* */ EXISTS( SELECT 1L 1Y 1BD NaN array( map( -> ESCAPE ANY( year( ROUND(
"""
PIECES = [*_WORDS.split(), DIGITS, "\0"]


@pytest.mark.parametrize("seed", range(3))
def test_any_words_are_a_filter_or_refused(seed: int) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
    rows = pa.RecordBatch.from_pylist([{"id": None, "s": None}, {"id": 1, "s": "a"}], schema=schema)
    dice = random.Random(seed)
    for _ in range(600):
        text = " ".join(dice.choice(PIECES) for _ in range(dice.randint(1, 12)))
        try:
            Predicate.parse(text, schema).mask(rows)
        except ElasticScanError:
            continue
