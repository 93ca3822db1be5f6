"""Expressions of pyarrow as conditions: the same rows, or refused."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import FilterError, NotFound
from elasticscan.filters import Predicate, sql_of_expression
from tests.base.examples import examples

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "null": (pa.int64(), [None, 0, 1, -5, 2**53 + 1]),
    "f": (pa.float64(), [None, 0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 2.0**53]),
    "g": (pa.float32(), [None, 0.5, 1.5, math.nan]),
    "s": (pa.string(), [None, "", "a", "b\"'\\", "é"]),
    "true": (pa.bool_(), [None, True, False]),
    "d": (pa.date32(), [None, date(1969, 12, 31), date(2024, 2, 29)]),
    "t": (pa.timestamp("us", "UTC"), [None, datetime(2024, 1, 1, tzinfo=UTC)]),
    "m": (pa.decimal128(10, 2), [None, Decimal("1.50"), Decimal("-7.00")]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
ROWS = pa.table(
    {name: pa.array([some[n % len(some)] for n in range(120)], kind) for name, (kind, some) in VALUES.items()}
)


@st.composite
def leaves(draw: st.DrawFn) -> pc.Expression:
    name = draw(st.sampled_from(list(VALUES)))
    field, (kind, some) = pc.field(name), VALUES[name]
    others = [value for value in some if value is not None and value == value]
    what = draw(st.sampled_from(("compare", "in", "null", "valid")))
    if what == "in" and not pa.types.is_floating(kind):
        return field.isin(pa.array(draw(st.lists(st.sampled_from(others), max_size=3)), kind))
    if what in ("null", "valid"):
        return field.is_null() if what == "null" else field.is_valid()
    value = draw(st.sampled_from(others))
    compare = draw(st.sampled_from((eq, ne, lt, le, gt, ge)))
    if draw(st.booleans()):
        return compare(field, value)
    return compare(pc.scalar(pa.scalar(value) if name in "fg" else pa.scalar(value, kind)), field)


CONDITIONS = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        inner.map(lambda one: ~one),
        st.tuples(st.sampled_from((and_, or_)), st.lists(inner, min_size=2, max_size=3)).map(
            lambda drawn: reduce(*drawn)
        ),
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=examples(100))
@given(condition=CONDITIONS)
def test_an_expression_keeps_the_rows_that_arrow_keeps(condition: pc.Expression) -> None:
    predicate = Predicate.parse(sql_of_expression(condition, SCHEMA), SCHEMA)
    numbered = ROWS.append_column("n", pa.array(range(ROWS.num_rows)))
    (batch,) = numbered.to_batches()
    assert batch.filter(predicate.mask(batch))["n"].to_pylist() == numbered.filter(condition)["n"].to_pylist()


@pytest.mark.parametrize(
    "condition",
    [
        pc.field("null") + 1 > 5,
        pc.field("null").cast(pa.int32()) > 5,
        pc.field("f") == pa.scalar(math.nan),
        pc.field("f").is_null(nan_is_null=True),
        pc.field("f").isin([0.0]),
        pc.field("g") > 1,
        pc.field("null").isin([1, None]),
        pc.field("null") == pc.field("f"),
        pc.field("s") > 1,
        pc.and_(pc.field("true"), pc.field("true")),
        pc.starts_with(pc.field("s"), "a"),
        pc.field("null"),
        pc.scalar(1),
    ],
    ids=str,
)
def test_what_cannot_be_said_exactly_is_refused(condition: pc.Expression) -> None:
    with pytest.raises(FilterError):
        sql_of_expression(condition, SCHEMA)


def test_a_column_that_there_is_not_is_reported() -> None:
    with pytest.raises(NotFound, match="'I'; there are: null, f"):
        sql_of_expression(pc.field("I") > 1, SCHEMA)
    nested = pa.schema([("st", pa.struct([("a`b", pa.int64())]))])
    assert sql_of_expression(pc.field("st", "a`b") == 4, nested) == "(st.`a``b` = 4)"
    with pytest.raises(NotFound):
        sql_of_expression(pc.field("st", "c") == 4, nested)
