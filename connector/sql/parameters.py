"""Replacement of a query's parameters by literals, so that their values limit the rows that are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlglot import TokenType

from elasticscan.base.errors import FilterError
from elasticscan.base.formatting import is_whole
from elasticscan.connector.sql.tokens import NotUnderstoodError, tokens_of
from elasticscan.filters import literal_of, parameter_at

Arguments = Mapping[str, Any] | Sequence[Any]
_KINDS = (type(None), bool, int, float, str, bytes, Decimal, date)


def with_literals(text: str, arguments: Arguments | None) -> str:
    """Replace `?` and `:name` in a statement by literals of the types that `spark.sql` gives the values.

    Raises `NotUnderstoodError` if this might change the meaning of the statement.
    """
    if not arguments:
        return text
    if "\\" in text:
        raise NotUnderstoodError(
            "a backslash may end its strings elsewhere; write the parameters into the text"
        )
    tokens = tokens_of(text)
    named = arguments if isinstance(arguments, Mapping) else {}
    values = iter(() if isinstance(arguments, Mapping) else arguments)
    pieces, at = list[str](), 0
    for place, token in enumerate(tokens):
        name, is_position = parameter_at(tokens, place, text), token.token_type == TokenType.PLACEHOLDER
        if name is None and not is_position:
            continue
        literal = _literal(next(values, ...) if name is None else named.get(name, ...))
        if literal is None:
            raise NotUnderstoodError("a parameter has no literal here; write its value into the text")
        pieces += [text[at : token.start], literal]
        at = tokens[place + (name is not None)].end + 1
    if next(values, ...) is not ...:
        raise NotUnderstoodError("it has fewer parameters than there are values")
    return "".join([*pieces, text[at:]])


def _literal(value: Any) -> str | None:
    """Return an expression for a value; None if its exact type is not known here."""
    if type(value) is datetime:  # without a zone its moment depends on the session's time zone
        return None if value.tzinfo is None else f"TIMESTAMP'{value.isoformat(' ')}'"
    if type(value) not in _KINDS or (type(value) is int and not -(2**63) <= value < 2**63):
        return None
    try:
        literal = literal_of("", value)
    except FilterError:
        return None
    return literal if is_whole(literal) else None
