"""Replacement of the parameters of a condition by literals: `id = :id`, `city IN :cities`."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Set
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import islice
from numbers import Integral, Real
from typing import Any

import numpy as np
import pyarrow as pa
from sqlglot import Token, TokenType
from sqlglot.errors import SqlglotError, TokenError

from elasticscan.base.errors import FilterError
from elasticscan.base.formatting import brief
from elasticscan.base.limits import MAX_FILTER_PARTS
from elasticscan.filters.coercion import TIMESTAMP, TIMESTAMP_NTZ
from elasticscan.filters.expression import Expression, decimal_literal_type, literal, to_sql
from elasticscan.filters.parser import FilterSql, not_closed


def with_parameters(text: str, parameters: Mapping[str, Any]) -> str:
    """Replace each `:name` of a condition by a literal. A value cannot change the structure of the condition.

    Lists, tuples, sets, ranges, arrays and series become the list of an IN: `city IN :cities`, or
    `city IN (:cities)`.

    Raises:
        FilterError: a parameter has no value, a value has no parameter, or a value has no literal.
    """
    try:
        tokens = FilterSql().tokenize(text)
    except TokenError:
        raise not_closed(text) from None
    except SqlglotError as error:
        raise FilterError(f"cannot read the filter: {error}", filter=text) from None
    pieces, end, used = [], 0, set()
    for number, token in enumerate(tokens):
        name = parameter_at(tokens, number, text)
        if name is None:
            continue
        if name not in parameters:
            raise FilterError(
                f"the parameter :{name} has no value; add it to parameters, which has {_listed(parameters)}",
                filter=text,
            )
        pieces += [text[end : token.start], _written(name, parameters[name])]
        end = tokens[number + 1].end + 1
        used.add(name)
    unused = [name for name in parameters if name not in used]
    if unused:
        raise FilterError(
            f"the filter has no parameter :{unused[0]}; leave it out, or use {_listed(sorted(used))}",
            filter=text,
        )
    return "".join([*pieces, text[end:]])


def parameter_at(tokens: list[Token], number: int, text: str) -> str | None:
    """Return the name of the parameter that begins at a token; None for others, as the colon in `a:b`."""
    token = tokens[number]
    if token.token_type != TokenType.COLON or number + 1 == len(tokens):
        return None
    before = tokens[number - 1] if number else None
    after = tokens[number + 1]
    name = text[after.start : after.end + 1]
    is_apart = before is None or before.end + 1 < token.start or not (before.text[-1:].isalnum())
    return name if is_apart and after.start == token.end + 1 and name.isidentifier() else None


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) or "none"


def _written(name: str, value: Any) -> str:
    """Return the literal of a value, or the list of an IN. `name` is for errors."""
    items = _items(value)
    if items is None:
        return literal_of(name, value)
    values = list(islice(items, MAX_FILTER_PARTS + 1))  # a range may have very many
    if not values:
        raise FilterError(f"parameter {name!r} is an empty list, and IN needs at least one value")
    if len(values) > MAX_FILTER_PARTS:
        raise FilterError(
            f"parameter {name!r} has more than {MAX_FILTER_PARTS:,} values; use get(keys), or join the rows"
        )
    return f"({', '.join(literal_of(name, item) for item in values)})"


def literal_of(name: str, value: Any) -> str:
    """Return the literal of one value."""
    expression = _of(value.as_py() if isinstance(value, pa.Scalar) else value)
    if expression is None:
        raise FilterError(
            f"parameter {name!r}={brief(value)} ({type(value).__name__}) has no literal; "
            "give a plain value, a time to the microsecond"
        )
    text = to_sql(expression)
    return f"({text})" if text.startswith("-") else text  # otherwise `x -:n` would become a comment


def _items(value: Any) -> Collection[Any] | None:
    """Return the values of a list, array or series of any library; None for a single value."""
    if isinstance(value, (list, tuple, range, Set)):
        return value
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return list(value.to_pylist())
    is_listed = hasattr(value, "dtype") and bool(
        getattr(value, "shape", False)
    )  # of NumPy, pandas and Polars
    return list(value) if is_listed else None


def _of(value: Any) -> Expression | None:
    """Return the literal of a value; None if it has none."""
    if value is None or isinstance(value, bool):
        return literal(value, pa.null() if value is None else pa.bool_())
    if isinstance(value, np.datetime64):
        moment = value.astype("datetime64[us]")  # item() of a finer unit is a number
        return _of(moment.item()) if moment == value or np.isnat(value) else None
    if isinstance(value, np.generic | np.ndarray):
        return _of(value.item())
    if isinstance(value, Integral):
        number = operator.index(value)
        if -(2**63) <= number < 2**63:
            return literal(number, pa.int64(), implicit=True)
        value = Decimal(number)
    if isinstance(value, Decimal):
        fits = value.is_finite() and len(value.as_tuple().digits) <= 38
        return literal(value, decimal_literal_type(value)) if fits else None
    if isinstance(value, Real):
        return literal(float(value), pa.float64())
    if isinstance(value, str | bytes):
        return literal(value, pa.string() if isinstance(value, str) else pa.binary())
    if isinstance(value, datetime):
        if value != value:  # NaT of pandas
            return literal(None, pa.null())
        if getattr(value, "nanosecond", 0):  # of pandas; a literal has only microseconds
            return None
        if value.tzinfo is None:
            return literal(value, TIMESTAMP_NTZ)
        return literal(value.astimezone(UTC), TIMESTAMP)
    return literal(value, pa.date32()) if isinstance(value, date) else None
