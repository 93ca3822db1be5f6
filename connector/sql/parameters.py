"""Values of a query's parameters, written into its text as literals, so that they can limit what is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from elasticscan.base.formatting import is_whole
from elasticscan.connector.sql.tokens import Token, tokens_of

Arguments = Mapping[str, Any] | Sequence[Any]


def with_literals(text: str, arguments: Arguments) -> str | None:
    """Write values for `?` and `:name` into a statement; None where that might change its meaning.

    A literal has the type that `spark.sql` gives the value. Of strings with quotes, backslashes or control
    characters the bytes are written, to be decoded.
    """
    if "\\" in text:  # strings end elsewhere, by the session's rules for them
        return None
    named = arguments if isinstance(arguments, Mapping) else None
    values = iter(() if isinstance(arguments, Mapping) else arguments)
    tokens = tokens_of(text)
    pieces, at, may_be_position = list[str](), 0, False
    for place, token in enumerate(tokens):
        may_be_position |= token.upper == "BY"
        if token.upper not in ("?", ":"):
            continue
        end = token.end
        if token.upper == "?":
            value = next(values, ...) if named is None else ...
        else:
            name = _name_behind(tokens, place)
            value = ... if named is None or name is None else named.get(name.word, ...)
            end = end if name is None else name.end
        literal = None if value is ... else _literal(value)
        if literal is None:
            return None
        if may_be_position and literal.isdigit() and tokens[place - 1].upper not in ("LIMIT", "OFFSET"):
            literal = f"({literal} + 0)"  # a number alone names a column by its position
        pieces += [text[at : token.start], literal]
        at = end
    return None if next(values, ...) is not ... else "".join([*pieces, text[at:]])


def _name_behind(tokens: Sequence[Token], place: int) -> Token | None:
    """Return the name of `:name`; None for the colons of `x::INT` and `STRUCT<a:INT>`."""
    colon, after = tokens[place], tokens[place + 1 : place + 2]
    before = tokens[place - 1] if place and tokens[place - 1].end == colon.start else None
    is_apart = before is None or (before.kind in ("text", "other") and before.word != ":")
    is_name = bool(after) and after[0].kind == "word" and after[0].start == colon.end
    return after[0] if is_apart and is_name else None


def _literal(value: Any) -> str | None:
    """Return an expression for a value, by its exact type: NumPy's float, say, writes itself otherwise."""
    kind = type(value)
    if value is None:
        return "NULL"
    if kind is bool:
        return str(value).upper()
    if kind is int and -(2**63) < value < 2**63:
        return f"({value})" if value < 0 else str(value)
    if kind is float and math.isfinite(value):
        return f"({value!r}D)" if value < 0 else f"{value!r}D"
    if kind is str and is_whole(value):
        plain = value.isprintable() and not {"'", "\\"} & {*value}
        return f"'{value}'" if plain else f"decode(X'{value.encode().hex()}', 'utf-8')"
    if kind is bytes:
        return f"X'{value.hex()}'"
    if kind is Decimal and value.is_finite():
        return f"({value:f}BD)"
    if kind is datetime and value.tzinfo is not None:
        return f"TIMESTAMP'{value.isoformat(' ')}'"
    return f"DATE'{value.isoformat()}'" if kind is date else None
