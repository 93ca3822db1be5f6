"""Evaluation of a typed expression on record batches with Arrow kernels.

`compile_expression` turns a tree into nested functions once; each call then computes whole columns. Spark
evaluates the later operands of AND, OR, CASE and COALESCE only on rows where the earlier ones do not decide
the result. So operands that can fail (a division, a narrowing CAST) are computed only on such rows:
`n <> 0 AND 10 / n > 2` must not fail on rows where n is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from elasticscan.base.errors import FilterError, NotFound
from elasticscan.filters.casts import always_fits, cast_array
from elasticscan.filters.coercion import computed_type, is_float, is_integer, type_name
from elasticscan.filters.expression import COMPARISONS, Expression, column_names, literal

# Errors of Arrow's kernels for unsupported values and types.
ARROW_REFUSALS = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
    pa.ArrowIndexError,
    pa.ArrowKeyError,
)
Datum: TypeAlias = pa.Array | pa.Scalar
Evaluator = Callable[["Rows"], Datum]


class Rows:
    """The columns of a batch, or of a part of its rows, in the types of the computation."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.length: int = batch.num_rows
        self._columns: dict[tuple[str, ...], pa.Array] = {}

    def column(self, path: tuple[str, ...], kind: pa.DataType) -> pa.Array:
        array = self._columns.get(path)
        if array is None:
            at = self.batch.schema.get_field_index(path[0])
            if at < 0:
                raise NotFound(
                    f"the rows have no column {path[0]!r}, which the filter needs",
                    column=path[0],
                    kind="column",
                )
            values = self.batch.column(at)
            if path[1:]:
                values = pc.struct_field(values, list(path[1:]))
            array = self._columns[path] = _as_computed(values, kind, path)
        return array

    def where(self, mask: pa.BooleanArray) -> Rows:
        return Rows(self.batch.filter(mask))

    def array(self, datum: Datum) -> pa.Array:
        return pa.repeat(datum, self.length) if isinstance(datum, pa.Scalar) else datum


def _as_computed(values: pa.Array, kind: pa.DataType, path: tuple[str, ...]) -> pa.Array:
    if values.type == kind:
        return values
    if computed_type(values.type) != kind:
        raise FilterError(
            f"column {'.'.join(path)} is {values.type}, but the filter was made for {type_name(kind)}",
            column=path[0],
        )
    # Spark has no nanoseconds: they are cut off without an error.
    cut_off = pt.is_timestamp(values.type) and values.type.unit == "ns"
    return values.cast(kind, safe=not cut_off)


def compile_expression(node: Expression) -> Evaluator:
    """Return a function from rows to values: an array, or a scalar if the expression reads no column."""
    return _compiled(constant_of(node) or node)


def _compiled(node: Expression) -> Evaluator:
    match node.op:
        case "COLUMN":
            return lambda rows: rows.column(node.value, node.type)
        case "LITERAL":
            scalar = pa.scalar(node.value, node.type)
            return lambda rows: scalar
        case "AND":
            return _connective(node.args, pc.and_kleene, decided_by=False)
        case "OR":
            return _connective(node.args, pc.or_kleene, decided_by=True)
        case "CASE":
            return _case(node)
        case "COALESCE":
            return _coalesce(node)
    return _call(node)


def evaluator_of(node: Expression) -> Callable[[pa.RecordBatch], pa.Array]:
    """Return a function from batches, which have the columns of the expression, to its values."""
    columns, evaluate = column_names(node), compile_expression(node)

    def values(batch: pa.RecordBatch) -> pa.Array:
        # An operand that is evaluated on a part of the rows filters every column.
        needed = [name for name in batch.schema.names if name in columns]
        rows = Rows(batch.select(needed) if needed else batch)
        return rows.array(evaluate(rows))

    return values


def constant_of(node: Expression) -> Expression | None:
    """Return the value of an expression as a literal; None if it reads a column, or fails."""
    if node.is_literal:
        return node
    if column_names(node):
        return None
    try:
        rows = Rows(pa.record_batch([pa.nulls(1)], names=["none"]))
        return literal(rows.array(_compiled(node)(rows))[0].as_py(), node.type, implicit=True)
    except (FilterError, pa.ArrowException):
        return None


def can_fail(node: Expression) -> bool:
    """Return True if the evaluation may raise for some values."""
    match node.op:
        case "CAST" if not always_fits(node.args[0].type, node.type):
            return True
        case "/" | "DIV" | "%":
            return True
        case "+" | "-" | "*" | "NEGATE" | "ABS" if is_integer(node.type):
            return True
    return any(map(can_fail, node.args))


# ----------------------------------------------------------------------- evaluation on a part of the rows


def _lazily(node: Expression) -> Callable[[Rows, pa.BooleanArray | None], Datum]:
    """Return a function that evaluates rows where a mask (without nulls) is true; others are unspecified.

    An expression that cannot fail is evaluated on all rows, which is faster, and needs no mask.
    """
    evaluate, kind = compile_expression(node), node.type
    if not can_fail(node):
        return lambda rows, mask: evaluate(rows)

    def evaluate_some(rows: Rows, mask: pa.BooleanArray) -> Datum:
        if mask.true_count == rows.length:
            return evaluate(rows)
        if mask.true_count == 0:
            return pa.scalar(None, kind)
        part = rows.where(mask)
        chosen = np.asarray(mask)
        return part.array(evaluate(part)).take(pa.array(np.cumsum(chosen) - 1, mask=~chosen))

    return evaluate_some


def _connective(
    parts: Sequence[Expression], combine: Callable[[Datum, Datum], Datum], *, decided_by: bool
) -> Evaluator:
    first, rest = compile_expression(parts[0]), [_lazily(part) for part in parts[1:]]
    risky = [can_fail(part) for part in parts[1:]]

    def evaluate(rows: Rows) -> Datum:
        result = first(rows)
        for part, is_risky in zip(rest, risky, strict=True):
            open_rows = rows.array(pc.fill_null(pc.not_equal(result, decided_by), True)) if is_risky else None
            # A part is null on rows where it was not computed. There the result is decided, and stays.
            result = combine(result, part(rows, open_rows))
        return result

    return evaluate


def _case(node: Expression) -> Evaluator:
    *parts, default = map(_lazily, node.args)
    branches = list(zip(parts[::2], parts[1::2], strict=True))

    def evaluate(rows: Rows) -> Datum:
        undecided = pa.repeat(True, rows.length)
        result: Datum = pa.nulls(rows.length, node.type)
        for when, then in branches:
            taken = pc.and_(undecided, pc.fill_null(rows.array(when(rows, undecided)), False))
            result = pc.if_else(taken, then(rows, taken), result)
            undecided = pc.and_not(undecided, taken)
        return pc.if_else(undecided, default(rows, undecided), result)

    return evaluate


def _coalesce(node: Expression) -> Evaluator:
    choices = [_lazily(choice) for choice in node.args]

    def evaluate(rows: Rows) -> Datum:
        result: Datum = pa.nulls(rows.length, node.type)
        for choice in choices:
            missing = result.is_null()
            result = pc.if_else(missing, choice(rows, missing), result)
        return result

    return evaluate


# ----------------------------------------------------------------------------------- comparisons


def _comparison(node: Expression) -> Callable[[Datum, Datum], Datum]:
    kind = node.args[0].type
    compare = (_FLOAT_COMPARISONS if is_float(kind) else _COMPARISONS)[node.op]
    if pt.is_null(kind):
        # Arrow cannot compare values of the type null.
        unknown = pa.scalar(True if node.op == "<=>" else None, pa.bool_())
        return lambda left, right: unknown
    return compare


def _null_safe(equal: Callable[[Datum, Datum], Datum], left: Datum, right: Datum) -> Datum:
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(both_null, pc.fill_null(equal(left, right), False))


# In Spark NaN is greater than every other number, and equal to itself.


def _float_equal(left: Datum, right: Datum) -> Datum:
    return pc.or_kleene(pc.equal(left, right), pc.and_kleene(pc.is_nan(left), pc.is_nan(right)))


def _float_less(left: Datum, right: Datum) -> Datum:
    return pc.or_kleene(pc.less(left, right), pc.and_not_kleene(pc.is_nan(right), pc.is_nan(left)))


_COMPARISONS: dict[str, Callable[[Datum, Datum], Datum]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<=>": partial(_null_safe, pc.equal),
}
_FLOAT_COMPARISONS: dict[str, Callable[[Datum, Datum], Datum]] = {
    "=": _float_equal,
    "<>": lambda left, right: pc.invert(_float_equal(left, right)),
    "<": _float_less,
    "<=": lambda left, right: pc.invert(_float_less(right, left)),
    ">": lambda left, right: _float_less(right, left),
    ">=": lambda left, right: pc.invert(_float_less(left, right)),
    "<=>": partial(_null_safe, _float_equal),
}


def _in(node: Expression) -> Callable[[Datum], Datum]:
    members, kind = node.args[1:], node.args[0].type
    values = pa.array([member.value for member in members if member.value is not None], kind)
    has_null = len(values) < len(members)
    if is_float(kind):
        # Adding zero turns -0.0, which hashes differently, into 0.0.
        values = pc.add(values, pa.scalar(0.0, kind))

    def is_in(operand: Datum) -> Datum:
        sought = pc.add(operand, pa.scalar(0.0, kind)) if is_float(kind) else operand
        hit = pc.is_in(sought, value_set=values)
        unknown = pc.and_not(pc.is_valid(operand), hit) if has_null else pa.scalar(False)
        return pc.if_else(pc.or_(pc.is_null(operand), unknown), pa.scalar(None, pa.bool_()), hit)

    return is_in


# -------------------------------------------------------------------------------------- patterns


def _change_case(text: pa.Array, case: str) -> pa.Array:
    """Change the case by the rules of Unicode ('ß' becomes 'SS'), as Spark and `str`, but not Arrow, do."""
    if pc.all(pc.string_is_ascii(text)).as_py() is not False:
        return pc.ascii_upper(text) if case == "upper" else pc.ascii_lower(text)
    encoded = text.dictionary_encode()
    change = str.upper if case == "upper" else str.lower
    return pa.array(map(change, encoded.dictionary.to_pylist()), pa.string()).take(encoded.indices)


# ------------------------------------------------------------------------ arithmetic and functions


def _call(node: Expression) -> Evaluator:
    operands = node.args[:1] if node.op == "IN" else node.args
    first, others = compile_expression(operands[0]), [_lazily(arg) for arg in operands[1:]]
    is_risky, takes_null = any(map(can_fail, operands[1:])), node.op == "<=>"
    function = _function(node)

    def evaluate(rows: Rows) -> Datum:
        values = [first(rows)]
        mask = None
        if is_risky:  # as in Spark, other operands are not evaluated where the first is null
            mask = rows.array(pa.scalar(True) if takes_null else pc.is_valid(values[0]))
        values += [arg(rows, mask) for arg in others]
        if not any(isinstance(value, pa.Array) for value in values):
            values = [rows.array(value) for value in values]
        return function(*values)

    return evaluate


def _function(node: Expression) -> Callable[..., Datum]:
    op, kind = node.op, node.type
    if op in COMPARISONS:
        return _comparison(node)
    match op:
        case "CAST":
            return lambda child: cast_array(child, kind)
        case "IS" if node.value is None:
            return pc.is_null  # type: ignore[no-any-return]
        case "IS":
            return lambda child: pc.fill_null(pc.equal(child, node.value), False)
        case "IN":
            return _in(node)
        case "LIKE":
            # Arrow compiles a pattern only if there is text to match: a pattern that is too large fails here.
            pc.match_like(pa.array(["x"]), node.value)
            return lambda text: pc.match_like(text, node.value)
        case "ILIKE":
            pattern = node.value.lower()
            return lambda text: pc.match_like(_change_case(text, "lower"), pattern)
        case "LENGTH" if pt.is_binary(node.args[0].type):
            return pc.binary_length  # type: ignore[no-any-return]
    return (_FUNCTIONS if is_float(kind) else _FUNCTIONS | _CHECKED)[op]


def _refuse_zero(operation: str, compute: Callable[[Datum, Datum], Datum]) -> Callable[..., Datum]:
    """Return a function of (dividend, divisor) that raises if a divisor is 0."""

    def checked(left: Datum, right: Datum) -> Datum:
        zero = pc.and_(pc.equal(right, pa.scalar(0, right.type)), pc.is_valid(left))
        if pc.any(zero).as_py():
            raise FilterError(f"{operation} by zero; guard it with a condition, as in NULLIF(divisor, 0)")
        return compute(left, right)

    return checked


def _remainder(left: Datum, right: Datum) -> Datum:
    if is_integer(left.type):
        # The smallest number divided by -1 overflows although the remainder is 0.
        right = pc.if_else(pc.equal(right, pa.scalar(-1, right.type)), pa.scalar(1, right.type), right)
    return pc.remainder(left, right)


_CHECKED: dict[str, Callable[..., Datum]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
    "NEGATE": pc.negate_checked,
    "ABS": pc.abs_checked,
}
_FUNCTIONS: dict[str, Callable[..., Datum]] = {
    "NOT": pc.invert,
    "+": pc.add,
    "-": pc.subtract,
    "*": pc.multiply,
    "NEGATE": pc.negate,
    "ABS": pc.abs,
    "/": _refuse_zero("division", pc.divide),
    "DIV": _refuse_zero("division", pc.divide_checked),
    "%": _refuse_zero("remainder", _remainder),
    "CONCAT": lambda *parts: pc.binary_join_element_wise(*parts, ""),
    "UPPER": lambda text: _change_case(text, "upper"),
    "LOWER": lambda text: _change_case(text, "lower"),
    # Spark trims only spaces.
    "TRIM": partial(pc.utf8_trim, characters=" "),
    "LTRIM": partial(pc.utf8_ltrim, characters=" "),
    "RTRIM": partial(pc.utf8_rtrim, characters=" "),
    "LENGTH": pc.utf8_length,
    "ISNAN": lambda number: pc.fill_null(pc.is_nan(number), False),
    "YEAR": lambda date: pc.year(date).cast(pa.int32()),
    "MONTH": lambda date: pc.month(date).cast(pa.int32()),
    "DAY": lambda date: pc.day(date).cast(pa.int32()),
}
