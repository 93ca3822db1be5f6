"""Whole and decimal numbers that are added up, in 64 bits or more, against Python's own."""

from __future__ import annotations

import random
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import FilterError
from elasticscan.filters.exact import Units
from elasticscan.filters.expression import Call, Cast, Column, Expression, Literal, has_several_constants
from elasticscan.filters.inputs import Inputs
from elasticscan.filters.kernels import Rows
from elasticscan.filters.parser import parse_value
from elasticscan.filters.units import as_decimals, to_units

MOST, CONTEXT = 2**63 - 1, Context(prec=100)
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [-128, 0, 127]),
    "i32": (pa.int32(), [-(2**31), -1, 0, 5, 2**31 - 1]),
    "i64": (pa.int64(), [-MOST - 1, -1, 0, 3, 3_037_000_500, MOST]),
    "d5": (pa.decimal128(5, 2), [Decimal("999.99"), Decimal("-0.01"), Decimal("0.00")]),
    "d15": (pa.decimal128(15, 2), [Decimal("9999999999999.99"), Decimal("-1.10"), Decimal("0.01")]),
    "d38": (pa.decimal128(38, 3), [Decimal(10**34), Decimal("-0.001"), Decimal("1.000")]),
}


def some_rows(draw: random.Random, count: int) -> pa.RecordBatch:
    few = draw.random() < 0.5  # then 64 bits hold most results
    arrays = []
    for kind, values in COLUMNS.values():
        of = values[-2:] if few and pa.types.is_decimal(kind) else values
        nulls = draw.choice([0, 0.3])
        arrays.append(
            pa.array([None if draw.random() < nulls else draw.choice(of) for _ in range(count)], kind)
        )
    return pa.record_batch(arrays, names=list(COLUMNS))


def some_text(draw: random.Random, depth: int) -> str:
    if not depth or draw.random() < 0.2:
        return draw.choice([*COLUMNS, *COLUMNS, "1", "7L", "0.05", "-2"])
    if draw.random() < 0.15:
        return f"-({some_text(draw, depth - 1)})"
    sides = [some_text(draw, depth - 1) for _ in range(2)]
    return f"({sides[0]} {draw.choice('+-*')} {sides[1]})"


class Beyond(Exception):
    """A number does not fit its type."""


def of_row(node: Expression, row: dict[str, Any]) -> Any:
    """The number of a row, or None, in the order in which Spark looks at the parts."""
    if isinstance(node, Column):
        return row[node.path[0]]
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Cast):
        value = of_row(node.child, row)
        return value if value is None or not pa.types.is_decimal(node.type) else Decimal(value)
    assert isinstance(node, Call)
    left = 0 if node.name == "NEGATE" else of_row(node.args[0], row)
    if left is None:
        return None
    right = of_row(node.args[-1], row)
    if right is None:
        return None
    one, two = Decimal(left), Decimal(right)
    compute = {"+": CONTEXT.add, "*": CONTEXT.multiply}.get(node.name, CONTEXT.subtract)
    value = compute(one, two)
    if pa.types.is_decimal(node.type):
        fits = abs(value.scaleb(node.type.scale, CONTEXT)) < 10**node.type.precision
    else:
        bound = 2 ** (node.type.bit_width - 1)
        fits = -bound <= value < bound
    if not fits:
        raise Beyond
    return value


@pytest.mark.parametrize("seed", range(150))
def test_random_expressions_are_those_of_python(seed: int) -> None:
    draw = random.Random(seed)
    rows = some_rows(draw, draw.choice([0, 1, 40]))
    padded = pa.concat_batches([some_rows(draw, 3), rows]).slice(3)
    for _ in range(6):
        try:
            node = parse_value(some_text(draw, draw.choice([1, 2, 3])), rows.schema)
        except FilterError:  # more digits than there are
            continue
        if isinstance(node, Literal) or not any(name in str(node) for name in COLUMNS):
            continue
        scale = node.type.scale if pa.types.is_decimal(node.type) else 0
        inputs = Inputs(pa.Table.from_batches([padded]), {node})
        numbers, in_units = inputs.addends(node, pa.decimal256(76, scale))
        if in_units:
            numbers = as_decimals(numbers.combine_chunks(), pa.decimal128(38, scale))
        failed = inputs.failed.get(node, [])
        for place, (row, value) in enumerate(zip(rows.to_pylist(), numbers.to_pylist(), strict=True)):
            try:
                expected = of_row(node, row)
            except Beyond:
                assert place in failed, (node, row)
                continue
            assert place not in failed, (node, row)
            assert value == expected, (node, row)


def test_numbers_that_fit_are_computed_in_64_bits_and_parts_of_them_once() -> None:
    schema = pa.schema([(name, pa.decimal128(15, 2)) for name in ("price", "off", "tax")])
    rows = pa.RecordBatch.from_pylist([dict.fromkeys(schema.names, Decimal("1.10"))] * 3, schema=schema)
    units = Units(Rows(rows))
    charge = parse_value("price * (1 - off) * (1 + tax)", schema)
    computed = units.of(charge)
    assert computed is not None and computed.to_pylist() == [-231_000] * 3
    assert charge.type == pa.decimal128(38, 6)
    known = dict(units._parts)
    assert units.of(parse_value("price * (1 - off)", schema)) is not None
    assert units._parts == known


def test_of_many_rows_that_fail_those_around_some_are_set_aside_too() -> None:
    rows = pa.table({"i": pa.array([2**31 - 1] * 100 + [1] * 4000, pa.int32())})
    node = parse_value("i + 1", rows.schema)
    inputs = Inputs(rows, {node})
    values = inputs.values(node)
    failed = inputs.failed[node]
    assert set(range(100)) <= set(failed) and values.null_count == len(failed) < 2000
    assert values[-1].as_py() == 2
    with pytest.raises(FilterError, match=r"i \+ 1 fails: overflow"):
        Inputs(rows, {}).values(node)


def test_constants_that_spark_computes_first_are_found() -> None:
    schema = pa.schema({"i": pa.int32()})
    assert has_several_constants(parse_value("i + 1 + -1", schema))
    assert not has_several_constants(parse_value("(i + 1) * i", schema))


def test_decimals_become_units_and_decimals_again_wherever_an_array_begins() -> None:
    kind = pa.decimal128(18, 2)
    values = [Decimal("0.01"), None, Decimal("-9999999999999999.99"), Decimal("9999999999999999.99")]
    array = pa.array([Decimal(7), *values], kind).slice(1)
    assert to_units(array).to_pylist() == [1, None, -(10**18) + 1, 10**18 - 1]
    assert as_decimals(to_units(array), kind).equals(array)
    assert [to_units(one).as_py() for one in array] == to_units(array).to_pylist()
    assert to_units(array.slice(4)).equals(pa.array([], pa.int64()))
