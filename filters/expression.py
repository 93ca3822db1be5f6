"""The typed expression tree of a filter, and its normalised SQL text.

Nodes are frozen values that know the type they compute. Conversions that Spark would insert by
itself are nodes too (`Cast` with `implicit`), so evaluation never has to guess; the text leaves
them out, since reading it again puts them back.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

import pyarrow as pa

from elasticscan.filters.coercion import decimal_type, type_name

Value = None | bool | int | float | Decimal | str | bytes | datetime.date | datetime.datetime

# How tightly operators bind in Spark's grammar; an operand that binds less tightly gets parentheses.
_OR, _AND, _NOT, _TEST, _ADD, _MULTIPLY, _UNARY, _ATOM = range(8)
_BINDING = {"+": _ADD, "-": _ADD, "*": _MULTIPLY, "/": _MULTIPLY, "%": _MULTIPLY, "DIV": _MULTIPLY}
_SUFFIXES = {pa.int8(): "Y", pa.int16(): "S", pa.int64(): "L"}
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# Words that mean something else than a column of that name where they stand without quotes.
_RESERVED = re.compile(
    r"(?:all|alter|and|any|as|between|call|case|connect_by_root|create|cross|current_date|"
    r"current_timestamp|current_user|distinct|drop|else|end|except|execute|explain|false|fetch|"
    r"for|from|glob|grant|having|if|ilike|in|inner|insert|intersect|interval|into|is|join|lateral|"
    r"like|minus|not|notnull|null|on|optimize|or|outer|partitioned_by|prepare|qualify|regexp|"
    r"rename|returning|revoke|rlike|rollback|select|serdeproperties|session_user|show|tablesample|"
    r"then|true|uncache|union|using|vacuum|values|when|where|with|xor)\Z",
    re.IGNORECASE,
)
_BOOLEAN = pa.bool_()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, or a field inside a struct column."""

    path: tuple[str, ...]
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Literal:
    value: Value
    type: pa.DataType
    implicit: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Cast:
    child: Expression
    type: pa.DataType
    implicit: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    """Arithmetic or a function."""

    name: str
    args: tuple[Expression, ...]
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Compare:
    """`op` is one of `= <> < <= > >= <=>`; both sides have the same type."""

    op: str
    left: Expression
    right: Expression
    type: pa.DataType = _BOOLEAN


@dataclass(frozen=True, slots=True)
class Not:
    child: Expression
    type: pa.DataType = _BOOLEAN


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Expression, ...]
    type: pa.DataType = _BOOLEAN


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Expression, ...]
    type: pa.DataType = _BOOLEAN


@dataclass(frozen=True, slots=True)
class Is:
    """`child IS NULL`, `IS TRUE` or `IS FALSE`: never null itself."""

    child: Expression
    state: bool | None
    type: pa.DataType = _BOOLEAN


@dataclass(frozen=True, slots=True)
class In:
    """Membership among constants, all of the child's type; a list with other members is an `Or`."""

    child: Expression
    values: tuple[Literal, ...]
    type: pa.DataType = _BOOLEAN


@dataclass(frozen=True, slots=True)
class Match:
    """A text that is LIKE a constant pattern; with `ignore_case` it is ILIKE."""

    child: Expression
    pattern: str
    ignore_case: bool = False
    type: pa.DataType = _BOOLEAN


@dataclass(frozen=True, slots=True)
class Case:
    branches: tuple[tuple[Expression, Expression], ...]
    default: Expression
    type: pa.DataType


Expression = Column | Literal | Cast | Call | Compare | Not | And | Or | Is | In | Match | Case


def children(node: Expression) -> Iterator[Expression]:
    match node:
        case Cast() | Not() | Is() | In() | Match():
            yield node.child
        case Call(args=parts) | And(parts=parts) | Or(parts=parts):
            yield from parts
        case Compare():
            yield from (node.left, node.right)
        case Case():
            for branch in node.branches:
                yield from branch
            yield node.default
        case Column() | Literal():
            pass


def column_names(node: Expression) -> frozenset[str]:
    """Return the top-level columns that an expression reads."""
    if isinstance(node, Column):
        return frozenset({node.path[0]})
    return frozenset().union(*(column_names(child) for child in children(node)))


def to_sql(node: Expression) -> str:
    """Return SQL text with the same meaning in Spark."""
    return _render(node)[0]


# Quoted text, which is left alone, or a number with a suffix of its type.
_SUFFIXED = re.compile(r"('(?:\\.|[^'\\])*'|`(?:``|[^`])*`)|\b(\d[\d.]*(?:[eE][+-]?\d+)?)(?:BD|[LDSY])\b")


def to_text(node: Expression) -> str:
    """As `to_sql`, for people: numbers have no suffixes, so their types are left out."""
    return _SUFFIXED.sub(lambda match: match[1] or match[2], to_sql(node))


def _wrap(node: Expression, least: int) -> str:
    text, binding = _render(node)
    return text if binding >= least else f"({text})"


def _render(node: Expression) -> tuple[str, int]:
    match node:
        case Column():
            return ".".join(map(quote_name, node.path)), _ATOM
        case Literal():
            text = _render_literal(node)
            return text, _UNARY if text.startswith("-") else _ATOM
        case Cast(implicit=True):
            return _render(node.child)
        case Cast():
            return f"CAST({to_sql(node.child)} AS {type_name(node.type)})", _ATOM
        case Compare():
            return f"{_wrap(node.left, _ADD)} {node.op} {_wrap(node.right, _ADD)}", _TEST
        case Not():
            return f"NOT {_wrap(node.child, _TEST)}", _NOT
        case And():
            return " AND ".join(_wrap(part, _NOT) for part in node.parts), _AND
        case Or():
            return " OR ".join(_wrap(part, _AND) for part in node.parts), _OR
        case Is():
            state = "NULL" if node.state is None else str(node.state).upper()
            return f"{_wrap(node.child, _ADD)} IS {state}", _TEST
        case In():
            return f"{_wrap(node.child, _ADD)} IN ({', '.join(map(to_sql, node.values))})", _TEST
        case Match():
            operator = "ILIKE" if node.ignore_case else "LIKE"
            return f"{_wrap(node.child, _ADD)} {operator} {_quote_text(node.pattern)}", _TEST
        case Case():
            branches = " ".join(f"WHEN {to_sql(when)} THEN {to_sql(then)}" for when, then in node.branches)
            return f"CASE {branches} ELSE {to_sql(node.default)} END", _ATOM
        case Call():
            return _render_call(node)


def _render_call(node: Call) -> tuple[str, int]:
    binding = _BINDING.get(node.name)
    if binding is not None:
        left, right = node.args
        return f"{_wrap(left, binding)} {node.name} {_wrap(right, binding + 1)}", binding
    if node.name == "NEGATE":
        return f"-{_wrap(node.args[0], _ATOM)}", _UNARY
    return f"{node.name}({', '.join(map(to_sql, node.args))})", _ATOM


def _render_literal(node: Literal) -> str:
    value = node.value
    match value:
        case None | bool():
            text = "NULL" if value is None else str(value).upper()
            return (
                text
                if node.implicit or value is not None or pa.types.is_null(node.type)
                else _cast_text(text, node)
            )
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


def _render_float(value: float, node: Literal) -> str:
    if not math.isfinite(value):
        return _cast_text(
            f"'{'NaN' if math.isnan(value) else 'Infinity' if value > 0 else '-Infinity'}'", node
        )
    text = repr(value)
    if pa.types.is_float32(node.type):
        return _cast_text(text if "e" in text else f"{text}D", node)
    # Without the D it would be a decimal, which compares and divides differently.
    return text if "e" in text else f"{text}D"


def decimal_literal_type(value: Decimal) -> pa.DataType:
    """Return the type that Spark gives a decimal as written: as many digits as it takes."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "a literal is finite"
    scale = max(-exponent, 0)
    return decimal_type(max(len(digits) + max(exponent, 0), scale), scale)


def _cast_text(text: str, node: Literal) -> str:
    return f"CAST({text} AS {type_name(node.type)})"


def shortened(text: str, most: int = 200) -> str:
    """Return a text for people, cut after so many characters."""
    return text if len(text) <= most else f"{text[:most]}..."


def quote_name(name: str) -> str:
    """Return a column's name as SQL reads it: in backticks unless it can be mistaken for nothing else."""
    if _PLAIN_NAME.match(name) and not _RESERVED.match(name):
        return name
    return "`{}`".format(name.replace("`", "``"))


def _quote_text(text: str) -> str:
    # A backslash before % or _ survives reading in Spark, so the pair is left as it stands.
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"
