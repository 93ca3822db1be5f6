"""Translation of `pyarrow.compute.Expression` into SQL text with exactly its meaning.

Arrow has no public view of the parts of an expression. Its pickled form is a record batch of the constants,
and the tree as metadata of its schema, in order: `call`, `field_ref`, `literal`, `options`, `end`. The
translation parses this form, builds the expression again and compares it with the original, so that an
expression that was misread, also by a later release of Arrow, is refused.

Arrow and Spark differ in NaN (above all numbers in Spark, never greater in Arrow) and in nulls that are
looked up in a list (false in Arrow, unknown in Spark); the text corrects both.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from elasticscan.base.errors import FilterError, NotFound
from elasticscan.filters.expression import quote_name
from elasticscan.filters.parameters import literal_of

_COMPARISONS: Mapping[
    str, tuple[str, str, Callable[[Any, Any], Any]]
] = {  # SQL, with sides swapped, in Python
    "equal": ("=", "=", operator.eq),
    "not_equal": ("<>", "<>", operator.ne),
    "less": ("<", ">", operator.lt),
    "less_equal": ("<=", ">=", operator.le),
    "greater": (">", "<", operator.gt),
    "greater_equal": (">=", "<=", operator.ge),
}
_JUNCTIONS: Mapping[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "and_kleene": ("AND", operator.and_),
    "or_kleene": ("OR", operator.or_),
}
_INSTEAD = "give the condition as SQL text"


@dataclass(frozen=True, slots=True)
class _FieldRef:
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Called:
    name: str
    args: tuple[_Node, ...]
    options: Mapping[str, Any]


_Node: TypeAlias = Any  # a _FieldRef, a _Called or a pa.Scalar


def sql_of_expression(expression: pc.Expression, schema: pa.Schema) -> str:
    """Translate a condition over the columns of a schema.

    Raises:
        FilterError: it has no exact translation.
        NotFound: it names an unknown column.
    """
    try:
        node = _read(expression)
        text, again = _Translation(schema).condition(node)
        same = bool(again.equals(expression))
    except (pa.ArrowException, LookupError, StopIteration, ValueError, TypeError) as error:
        raise FilterError(f"the expression {expression} cannot be read: {error}; {_INSTEAD}") from None
    except RecursionError:
        raise FilterError("the expression is nested too deeply") from None
    if not same:
        raise FilterError(f"the expression {expression} has no exact translation; {_INSTEAD}")
    return text


def _read(expression: pc.Expression) -> _Node:
    """Parse the pickled form of an expression into a tree."""
    _, (written,) = expression.__reduce__()
    with pa.ipc.open_file(written) as reader:
        batch, message = reader.get_batch(0), iter(_metadata(reader.schema))
    return _node(message, next(message), batch)


def _node(message: Iterator[tuple[str, str]], first: tuple[str, str], batch: pa.RecordBatch) -> _Node:
    what, value = first
    if what == "field_ref":
        return _FieldRef((value,))
    if what == "nested_field_ref":
        return _FieldRef(tuple(next(message)[1] for _ in range(int(value))))
    if what == "literal":
        return batch.column(int(value))[0]
    if what != "call":
        raise ValueError(f"unknown part {what!r}")
    args: list[_Node] = []
    options: Mapping[str, Any] = {}
    for part in message:
        if part == ("end", value):
            return _Called(value, tuple(args), options)
        if part[0] == "options":
            options = dict(batch.column(int(part[1]))[0].items())
        else:
            args.append(_node(message, part, batch))
    raise ValueError("it has no end")


def _metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield all keys and values in order; pyarrow's dict has each key once."""
    _, _, listed = schema.to_string(truncate_metadata=False).partition("-- schema metadata --\n")
    for line in listed.split("\n"):
        key, _, value = line.partition(": ")
        yield key, value[1:-1]  # without the quotes around it


class _Translation:
    """Translation of nodes to SQL text, each with the expression that was understood."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def condition(self, node: _Node) -> tuple[str, pc.Expression]:
        if isinstance(node, pa.BooleanScalar) and node.is_valid:
            return str(node.as_py()).upper(), pc.scalar(node.as_py())
        if isinstance(node, _FieldRef):
            if not pt.is_boolean(self._type(node)):
                raise FilterError(
                    f"column {node.path[-1]!r} in the expression is not a condition; compare it"
                )
            return self._column(node)
        if not isinstance(node, _Called):
            raise FilterError(f"{node} in the expression is not a condition; {_INSTEAD}")
        if node.name in _JUNCTIONS:
            word, join = _JUNCTIONS[node.name]
            texts, parts = zip(*map(self.condition, node.args), strict=True)
            return f"({f' {word} '.join(texts)})", reduce(join, parts)
        if node.name == "invert":
            text, part = self.condition(node.args[0])
            return f"(NOT {text})", ~part
        if node.name in _COMPARISONS:
            return self._comparison(node)
        if node.name in ("is_null", "is_valid", "is_in") and isinstance(node.args[0], _FieldRef):
            text, part = self._column(node.args[0])
            if node.name == "is_in":
                return self._membership(node.args[0], node.options["value_set"])
            is_null = node.name == "is_null"
            return (
                f"({text} IS {'' if is_null else 'NOT '}NULL)",
                part.is_null() if is_null else part.is_valid(),
            )
        raise FilterError(f"{node.name} in the expression is not supported; {_INSTEAD}")

    def _comparison(self, node: _Called) -> tuple[str, pc.Expression]:
        word, swapped, compare = _COMPARISONS[node.name]
        left, right = node.args
        if isinstance(left, pa.Scalar) and isinstance(right, _FieldRef):
            text, part = self._column(right)
            return self._compared(text, swapped, right, left), compare(pc.scalar(left), part)
        if isinstance(left, _FieldRef) and isinstance(right, pa.Scalar):
            text, part = self._column(left)
            return self._compared(text, word, left, right), compare(part, pc.scalar(right))
        raise FilterError(f"the expression compares other things than a column and a value; {_INSTEAD}")

    def _compared(self, text: str, word: str, column: _FieldRef, value: pa.Scalar) -> str:
        compared = f"{text} {word} {self._value(column, value)}"
        if pt.is_floating(self._type(column)) and word in (">", ">="):
            return f"({compared} AND NOT isnan({text}))"
        return f"({compared})"

    def _membership(self, column: _FieldRef, values: Any) -> tuple[str, pc.Expression]:
        text, part = self._column(column)
        array = values.values if isinstance(values, pa.ListScalar | pa.LargeListScalar) else values
        kind = self._type(column)
        alike = kind == array.type or (pt.is_integer(kind) and pt.is_integer(array.type))
        if pt.is_floating(kind) or not (alike or not len(array)):
            raise FilterError(
                f"{column.path[-1]!r} ({kind}) and {array.type} compare differently in SQL; {_INSTEAD}"
            )
        listed = ", ".join(self._value(column, value) for value in array)
        some = f"({text} IN ({listed}) AND {text} IS NOT NULL)" if listed else "FALSE"
        return some, part.isin(array)

    def _column(self, column: _FieldRef) -> tuple[str, pc.Expression]:
        self._type(column)
        return ".".join(map(quote_name, column.path)), pc.field(*column.path)

    def _type(self, column: _FieldRef) -> pa.DataType:
        kind: pa.DataType = pa.struct(list(self._schema))
        for name in column.path:
            at = kind.get_field_index(name) if pt.is_struct(kind) else -1
            if at < 0:
                full, there = ".".join(column.path), ", ".join(self._schema.names)
                raise NotFound(f"there is no column {full!r}; there are: {there}", column=full, kind="column")
            kind = kind.field(at).type
        return kind

    def _value(self, column: _FieldRef, value: pa.Scalar) -> str:
        """Return the literal of a value, if Arrow and Spark compare a column with it in the same way."""
        kind = self._type(column)
        if not (value.is_valid and _compare_alike(kind, value.type)):
            raise FilterError(
                f"{column.path[-1]!r} ({kind}) and {value} ({value.type}) compare differently in SQL; "
                + _INSTEAD
            )
        plain = value.as_py()
        if isinstance(plain, float) and math.isnan(plain):
            raise FilterError("the expression compares with NaN; give SQL text: isnan(x)")
        return literal_of(column.path[-1], plain)


def _compare_alike(column: pa.DataType, value: pa.DataType) -> bool:
    if pt.is_integer(column):
        return bool(pt.is_integer(value) or pt.is_float64(value))
    if pt.is_float64(column):
        return bool(pt.is_integer(value) or pt.is_float64(value))
    if pt.is_float32(column):
        return bool(pt.is_float64(value))
    if pt.is_decimal(column):
        return bool(pt.is_integer(value) or pt.is_decimal(value))
    if pt.is_timestamp(column):
        return bool(
            pt.is_timestamp(value) and value.unit != "ns" and (value.tz is None) == (column.tz is None)
        )
    texts, blobs = (pt.is_string, pt.is_large_string), (pt.is_binary, pt.is_large_binary)
    families = (texts, blobs, (pt.is_boolean,), (pt.is_date32,))
    return any(
        any(is_kind(column) for is_kind in f) and any(is_kind(value) for is_kind in f) for f in families
    )
