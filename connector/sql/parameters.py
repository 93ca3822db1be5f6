"""Values of a query's parameters, written into its text as literals, so that they can limit what is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from elasticscan.connector.sql.tokens import TOKEN

Arguments = Mapping[str, Any] | Sequence[Any]


def with_literals(text: str, arguments: Arguments, for_change: bool = False) -> str | None:
    """Write values for `?` and `:name` into a query; None where that might change its meaning.

    As `some_literals` does, but all or nothing. Into a statement that changes rows, decimals, bytes,
    moments with a zone and all strings are written, too, as expressions where there is no literal: it does
    not matter that these are not handed to a table.
    """
    complete, left = _written(text, arguments, _expression if for_change else _literal)
    return complete if left is None else None


def some_literals(text: str, arguments: Arguments) -> tuple[str, Arguments | None]:
    """Write values for `?` and `:name` into a query where that is exact, and return the other parameters.

    Exact for booleans, 64-bit integers, finite doubles, dates, None, and strings without quotes and
    backslashes: the literal has the type that `spark.sql` gives the value. Everything else is Spark's,
    and so are all values where it is not certain what in the text is a parameter.
    """
    return _written(text, arguments, _literal)


def _written(
    text: str, arguments: Arguments, literal: Callable[[Any], str | None]
) -> tuple[str, Arguments | None]:
    as_given = text, arguments
    if "\\" in text:  # strings end elsewhere, by the session's rules for them
        return as_given
    named = arguments if isinstance(arguments, Mapping) else None
    values = iter(() if isinstance(arguments, Mapping) else arguments)
    left_named: dict[str, Any] = {}
    left: list[Any] = []
    pieces: list[str] = []
    tokens = list(TOKEN.finditer(text))
    number, may_be_position = 0, False
    while number < len(tokens):
        token = tokens[number][0]
        number += 1
        if token not in ("?", ":"):
            pieces.append(token)
            may_be_position |= token.upper() == "BY"
            continue
        name = ""
        if token == ":":
            if named is None or not _begins_a_name(tokens, number - 1):
                return as_given
            name = tokens[number][0]
            number += 1
        elif named is not None:
            return as_given
        value = next(values, ...) if named is None else named.get(name, ...)
        if value is ...:
            return as_given
        word = literal(value)
        # After ORDER BY or GROUP BY an integer that is written names a column by its position.
        if word is None or (may_be_position and word.isdigit()):
            word = token + name
            left_named[name] = value
            left.append(value)
        pieces.append(word)
    if next(values, ...) is not ...:
        return as_given
    return "".join(pieces), (left if named is None else left_named) or None


def _begins_a_name(tokens: Sequence[Any], number: int) -> bool:
    """Return True for the colon of `:name`; false for those of `x::INT` and `STRUCT<a:INT>`."""
    before = tokens[number - 1] if number else None
    after = tokens[number + 1] if number + 1 < len(tokens) else None
    is_apart = before is None or (before["word"] is None and before["quoted"] is None and before[0] != ":")
    return is_apart and after is not None and after["word"] is not None


def _expression(value: Any) -> str | None:
    """Return an expression for a value, if it can be written at all."""
    literal = _literal(value)
    if literal is not None:
        return literal
    if type(value) is str:
        return f"decode(X'{value.encode().hex()}', 'utf-8')"
    if type(value) is bytes:
        return f"X'{value.hex()}'"
    if type(value) is Decimal and value.is_finite():
        return f"({value:f}BD)"
    if type(value) is datetime and value.tzinfo is not None:
        return f"TIMESTAMP'{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}Z'"
    return None


def _literal(value: Any) -> str | None:
    """Return the literal of a value, by its exact type: NumPy's float, say, writes itself otherwise."""
    kind = type(value)
    if value is None:
        return "NULL"
    if kind is bool:
        return str(value).upper()
    if kind is int and -(2**63) < value < 2**63:
        return f"({value})" if value < 0 else str(value)
    if kind is float and math.isfinite(value):
        return f"({value!r}D)" if value < 0 else f"{value!r}D"
    if kind is str and not {"'", "\\"} & {*value} and value.isprintable():
        return f"'{value}'"
    return f"DATE'{value.isoformat()}'" if kind is date else None
