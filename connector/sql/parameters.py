"""Values of a query's parameters, written into its text as literals, so that they can limit what is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlglot import TokenType
from sqlglot.errors import SqlglotError

from elasticscan.base.errors import FilterError
from elasticscan.base.formatting import is_whole
from elasticscan.filters import STUMBLES, FilterSql, literal_of, parameter_at

Arguments = Mapping[str, Any] | Sequence[Any]
_KINDS = (type(None), bool, int, float, str, bytes, Decimal, date)


def with_literals(text: str, arguments: Arguments) -> str | None:
    """Write values for `?` and `:name` into a statement; None where that might change its meaning.

    A literal has the type that `spark.sql` gives the value.
    """
    if "\\" in text:  # strings end elsewhere, by the session's rules for them
        return None
    try:
        tokens = FilterSql().tokenize(text)
    except (SqlglotError, *STUMBLES):
        return None
    named = arguments if isinstance(arguments, Mapping) else {}
    values = iter(() if isinstance(arguments, Mapping) else arguments)
    pieces, at, may_be_position = list[str](), 0, False
    for place, token in enumerate(tokens):
        may_be_position |= token.text.upper().endswith("BY")
        name, is_position = parameter_at(tokens, place, text), token.token_type == TokenType.PLACEHOLDER
        if name is None and not is_position:
            continue
        literal = _literal(next(values, ...) if name is None else named.get(name, ...))
        if literal is None:
            return None
        if (
            may_be_position
            and literal.isdigit()
            and tokens[place - 1].text.upper() not in ("LIMIT", "OFFSET")
        ):
            literal = f"({literal} + 0)"  # a number alone names a column by its position
        pieces += [text[at : token.start], literal]
        at = tokens[place + (name is not None)].end + 1
    return None if next(values, ...) is not ... else "".join([*pieces, text[at:]])


def _literal(value: Any) -> str | None:
    """Return an expression for a value, by its exact type: others are converted by Spark's own rules."""
    if type(value) is datetime:  # the session's time zone says which moment one without a zone is
        return None if value.tzinfo is None else f"TIMESTAMP'{value.isoformat(' ')}'"
    if type(value) not in _KINDS or (type(value) is int and not -(2**63) <= value < 2**63):
        return None
    try:
        literal = literal_of("", value)
    except FilterError:
        return None
    return literal if is_whole(literal) else None
