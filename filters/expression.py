"""The typed expression tree of a filter, and its normalised SQL text.

Nodes are frozen values with the type of their result. Implicit conversions of Spark are nodes too (`CAST`
with `implicit`), so the evaluation needs no rules for them. The text omits them, since parsing it adds them
again.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from elasticscan.filters.coercion import decimal_type, type_name

COLUMN, LITERAL, CAST = "COLUMN", "LITERAL", "CAST"
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>")

Value = None | bool | int | float | Decimal | str | bytes | datetime.date | datetime.datetime

# The precedence of operators in Spark's grammar; an operand of lower precedence gets parentheses.
_OR, _AND, _NOT, _TEST, _ADD, _MULTIPLY, _UNARY, _ATOM = range(8)
_BINDING = {
    "OR": _OR, "AND": _AND, "+": _ADD, "-": _ADD, "*": _MULTIPLY, "/": _MULTIPLY, "%": _MULTIPLY,
    "DIV": _MULTIPLY, **dict.fromkeys(COMPARISONS, _TEST),
}  # fmt: skip
_SUFFIXES = {pa.int8(): "Y", pa.int16(): "S", pa.int64(): "L"}
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# Words that need quotes as names of columns.
_RESERVED = re.compile(
    r"(?:all|alter|and|any|as|between|call|case|connect_by_root|create|cross|current_date|"
    r"current_timestamp|current_user|distinct|drop|else|end|except|execute|explain|false|fetch|"
    r"for|from|glob|grant|having|if|ilike|in|inner|insert|intersect|interval|into|is|join|lateral|"
    r"like|minus|not|notnull|null|on|optimize|or|outer|partitioned_by|prepare|qualify|regexp|"
    r"rename|returning|revoke|rlike|rollback|select|serdeproperties|session_user|show|tablesample|"
    r"then|true|uncache|union|using|vacuum|values|when|where|with|xor)\Z",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Expression:
    """An operator or a function over its arguments, or a leaf.

    Attributes:
        op: `COLUMN`, `LITERAL`, `CAST`, or the operator (`=`, `AND`, `IN`, `LIKE`, `CASE`, ...) or function.
        args: the arguments. IN has the operand, then constants; CASE has each condition and value, then the
            default.
        type: the type of the result.
        value: the path of a column or of a field in a struct; the value of a literal; the None, True or False
            of IS; the pattern of LIKE.
        implicit: whether a conversion is one of Spark's; whether the text of a number shows no type.
    """

    op: str
    args: tuple[Expression, ...]
    type: pa.DataType
    value: Any = None
    implicit: bool = field(default=False, compare=False)

    @property
    def is_literal(self) -> bool:
        return self.op == LITERAL


def literal(value: Value, kind: pa.DataType, implicit: bool = False) -> Expression:
    return Expression(LITERAL, (), kind, value, implicit)


def condition(op: str, *args: Expression, value: Any = None) -> Expression:
    """Return an expression whose result is a boolean."""
    return Expression(op, args, pa.bool_(), value)


def all_of(parts: Sequence[Expression]) -> Expression:
    """Return the AND of all parts."""
    return parts[0] if len(parts) == 1 else condition("AND", *parts)


def parts_of(node: Expression) -> tuple[Expression, ...]:
    """Return the operands of an AND; of another condition the condition itself."""
    return node.args if node.op == "AND" else (node,)


def column_names(node: Expression) -> frozenset[str]:
    """Return the top-level columns that an expression reads."""
    if node.op == COLUMN:
        return frozenset(node.value[:1])
    return frozenset().union(*map(column_names, node.args))


def to_sql(node: Expression) -> str:
    """Return SQL text with the same meaning in Spark."""
    return _render(node)[0]


# Quoted text, which is not changed, or a number with a suffix for its type.
_SUFFIXED = re.compile(r"('(?:\\.|[^'\\])*'|`(?:``|[^`])*`)|\b(\d[\d.]*(?:[eE][+-]?\d+)?)(?:BD|[LDSY])\b")


def to_text(node: Expression) -> str:
    """Return SQL text for people: as `to_sql`, without the suffixes of numbers."""
    return _SUFFIXED.sub(lambda match: match[1] or match[2], to_sql(node))


def _wrap(node: Expression, least: int) -> str:
    text, binding = _render(node)
    return text if binding >= least else f"({text})"


def _render(node: Expression) -> tuple[str, int]:
    args, op = node.args, node.op
    binding = _BINDING.get(op, _ATOM)
    match op:
        case "COLUMN":
            return ".".join(map(quote_name, node.value)), _ATOM
        case "LITERAL":
            text = _render_literal(node)
            return text, _UNARY if text.startswith("-") else _ATOM
        case "CAST" if node.implicit:
            return _render(args[0])
        case "CAST":
            return f"CAST({to_sql(args[0])} AS {type_name(node.type)})", _ATOM
        case "NOT":
            return f"NOT {_wrap(args[0], _TEST)}", _NOT
        case "AND" | "OR":
            return f" {op} ".join(_wrap(part, binding + 1) for part in args), binding
        case "IS":
            state = "NULL" if node.value is None else str(node.value).upper()
            return f"{_wrap(args[0], _ADD)} IS {state}", _TEST
        case "IN":
            return f"{_wrap(args[0], _ADD)} IN ({', '.join(map(to_sql, args[1:]))})", _TEST
        case "LIKE" | "ILIKE":
            return f"{_wrap(args[0], _ADD)} {op} {_quote_text(node.value)}", _TEST
        case "CASE":
            *branches, default = map(to_sql, args)
            pairs = zip(branches[::2], branches[1::2], strict=True)
            whens = " ".join(f"WHEN {when} THEN {then}" for when, then in pairs)
            return f"CASE {whens} ELSE {default} END", _ATOM
        case "NEGATE":
            return f"-{_wrap(args[0], _ATOM)}", _UNARY
    if binding < _ATOM:  # comparisons do not chain
        return f"{_wrap(args[0], max(binding, _ADD))} {op} {_wrap(args[1], binding + 1)}", binding
    return f"{op}({', '.join(map(to_sql, args))})", _ATOM


def _render_literal(node: Expression) -> str:
    value: Value = node.value
    match value:
        case None | bool():
            text = "NULL" if value is None else str(value).upper()
            is_typed = node.implicit or value is not None or pa.types.is_null(node.type)
            return text if is_typed else _cast_text(text, node)
        case int():
            return f"{value}{'' if node.implicit else _SUFFIXES.get(node.type, '')}"
        case float():
            return _render_float(value, node)
        case Decimal():
            text = f"{value:f}"
            if not node.implicit and node.type != decimal_literal_type(value):
                return _cast_text(f"{text}BD", node)
            return text if node.implicit or "." in text else f"{text}BD"
        case str():
            return _quote_text(value)
        case bytes():
            return f"X'{value.hex().upper()}'"
        case datetime.datetime():
            zone = "_NTZ" if node.type.tz is None else ""
            return f"TIMESTAMP{zone} '{value.replace(tzinfo=None).isoformat(sep=' ')}'"
        case datetime.date():
            return f"DATE '{value.isoformat()}'"


def _render_float(value: float, node: Expression) -> str:
    if not math.isfinite(value):
        return _cast_text(
            f"'{'NaN' if math.isnan(value) else 'Infinity' if value > 0 else '-Infinity'}'", node
        )
    text = repr(value)
    if pa.types.is_float32(node.type):
        return _cast_text(text if "e" in text else f"{text}D", node)
    # Without the D it would be a decimal, which has other rules of comparison and division.
    return text if "e" in text else f"{text}D"


def decimal_literal_type(value: Decimal) -> pa.DataType:
    """Return the type of a decimal literal in Spark, which has exactly its digits."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "a literal is finite"
    scale = max(-exponent, 0)
    return decimal_type(max(len(digits) + max(exponent, 0), scale), scale)


def _cast_text(text: str, node: Expression) -> str:
    return f"CAST({text} AS {type_name(node.type)})"


def shortened(text: str, most: int = 200) -> str:
    """Return a text for people, cut after `most` characters."""
    return text if len(text) <= most else f"{text[:most]}..."


def quote_name(name: str) -> str:
    """Return a column's name for SQL, in backticks if it needs them."""
    if _PLAIN_NAME.match(name) and not _RESERVED.match(name):
        return name
    return "`{}`".format(name.replace("`", "``"))


def _quote_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"
