"""Conditions of a query that the read of a table may test.

Such a condition also stays in the query, so the read may return too many rows, but never too few. It must not
fail on a row where Spark would not: Spark may have dropped the row by another condition before. So only
comparisons and tests of columns with constants are allowed, with conversions that cannot fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.types as pt
from sqlglot import exp

from elasticscan.base.errors import FilterError, NotFound
from elasticscan.connector.sql.joins import SelectBlock
from elasticscan.connector.sql.query import Query, Reference, Session, shown
from elasticscan.connector.sql.tokens import NotUnderstoodError
from elasticscan.filters import (
    CAST,
    COLUMN,
    COMPARISONS,
    LITERAL,
    TIMESTAMP,
    Expression,
    Predicate,
    all_of,
    always_fits,
    constant_of,
    is_number,
    to_text,
    type_name,
)

Schemas = Mapping[str, pa.Schema]

# Operators that cannot fail.
_TESTS = {COLUMN, LITERAL, *COMPARISONS, "NOT", "AND", "OR", "IS", "IN", "LIKE", "ILIKE"}
_NOT_FREE = "an outer join keeps rows for which it is false, or fills them with nulls"
_NOT_ANSI = "it converts values, and this session does not follow the ANSI rules"


def push_conditions(
    query: Query, block: SelectBlock, schemas: Schemas, session: Session
) -> tuple[dict[Reference, str | None], dict[Reference, list[tuple[str, str]]], bool]:
    """Return the conditions that the reads of the references of a SELECT may test.

    Returns:
        for each reference its filter as SQL text, or None; for each reference (condition, why) of the
        conditions that only Spark tests; and whether the filters have all conditions of the SELECT.
    """
    predicates: dict[Reference, list[Predicate]] = {ref: [] for ref in block.references}
    stayed: dict[Reference, list[tuple[str, str]]] = {ref: [] for ref in block.references}
    for node, free in block.conditions:
        columns = list(node.find_all(exp.Column))
        owners = [_owners(column, query, block, schemas) for column in columns]
        try:
            reference = _only_reference(node, columns, owners)
            predicate = _predicate(node, reference, schemas, session)
            if reference not in free:
                raise NotUnderstoodError(_NOT_FREE)
            predicates[reference].append(predicate)
        except NotUnderstoodError as why:
            for ref in block.references:
                if any(ref in refs for refs in owners):
                    stayed[ref].append((shown(node), str(why)))
    texts = {ref: _combine(parts, schemas[ref.table]) for ref, parts in predicates.items()}
    pushed = sum(len(parts) for ref, parts in predicates.items() if texts[ref])
    return texts, stayed, pushed == len(block.conditions)


def _combine(parts: list[Predicate], schema: pa.Schema) -> str | None:
    """Return one filter of all conditions; None if there are none, or if the filter is too long."""
    if not parts:
        return None
    conditions = tuple(dict.fromkeys(part.condition for part in parts))
    text = str(Predicate(all_of(conditions)))
    try:
        Predicate.parse(text, schema)
    except FilterError:
        return None
    return text


def _owners(column: exp.Column, query: Query, block: SelectBlock, schemas: Schemas) -> list[Reference]:
    """Return the references that have a column. If there are several, the name may be ambiguous."""
    first, *rest = [part.name.lower() for part in column.parts]
    by_alias = [ref for ref in block.references if rest and _qualifies(ref, first, rest[0], schemas)]
    # Otherwise `a.b` is field b of a struct column a, unless a may be the name of a table.
    if by_alias or (rest and first in query.qualifiers):
        return by_alias
    # USING merges two columns, and the name means the left one. In a RIGHT or FULL join it has the value of
    # the right one, but such a join allows no conditions on its left side.
    lost = [ref for name, right in block.merged if name == first for ref in right]
    return [ref for ref in block.references if ref not in lost and _has(schemas[ref.table], first)]


def _qualifies(reference: Reference, first: str, second: str, schemas: Schemas) -> bool:
    return reference.alias.lower() == first and _has(schemas[reference.table], second)


def _has(schema: pa.Schema, name: str) -> bool:
    return name in map(str.lower, schema.names)


def _only_reference(
    node: exp.Expr, columns: Sequence[exp.Column], owners: Sequence[Sequence[Reference]]
) -> Reference:
    if node.find(exp.Query) is not None:
        raise NotUnderstoodError("it contains a sub-query")
    if not columns:
        raise NotUnderstoodError("it names no column")
    for column, refs in zip(columns, owners, strict=True):
        if len(refs) != 1:
            where = "more than one table" if refs else "no table in this FROM"
            raise NotUnderstoodError(f"{shown(column)} is a column of {where}")
    if any(refs[0] != owners[0][0] for refs in owners):
        raise NotUnderstoodError("it compares tables with each other")
    return owners[0][0]


def _predicate(node: exp.Expr, reference: Reference, schemas: Schemas, session: Session) -> Predicate:
    """Return a condition as a filter of the one reference that has all its columns."""
    bare, schema = node.copy(), schemas[reference.table]
    for column in list(bare.find_all(exp.Column)):
        first, *rest = [part.name.lower() for part in column.parts]
        if rest and _qualifies(reference, first, rest[0], schemas):
            column.set(next(key for key in ("catalog", "db", "table") if column.args.get(key)), None)
    if not session.ansi and bare.find(exp.Cast) is not None:
        raise NotUnderstoodError(_NOT_ANSI)
    try:
        predicate = Predicate.of_tree(bare, schema)
        Predicate.parse(str(predicate), schema)  # refuses a filter that is too long
    except (FilterError, NotFound) as error:
        raise NotUnderstoodError(error.message) from None
    has_text = any(literal.is_string for literal in bare.find_all(exp.Literal))
    _check(predicate.condition, session, has_text)
    return predicate


def _check(node: Expression, session: Session, has_text: bool) -> None:
    """Raise unless the condition cannot fail on any row and has the same meaning in this session."""
    if node.op == "IS" and node.value is None and node.args[0].op == COLUMN:
        return
    computed = session.ansi and node.op != LITERAL and constant_of(node) is not None
    if computed and (session.utc or all(part.type != TIMESTAMP for part in _parts(node))):
        return  # a constant with the same value in this session
    if node.op == CAST:
        source, target = node.args[0].type, node.type
        if not session.ansi:
            raise NotUnderstoodError(_NOT_ANSI)
        keeps = is_number(source) and is_number(target) and always_fits(source, target)
        if not node.implicit or not keeps or (pt.is_decimal128(source) and not pt.is_decimal128(target)):
            raise NotUnderstoodError(f"it converts {to_text(node.args[0])} to {type_name(target)}")
    elif node.op not in _TESTS:
        raise NotUnderstoodError(f"{to_text(node)} is computed, not compared")
    # In a condition without text, widening a number does not change it, with or without the ANSI rules.
    is_same = is_number(node.type) and not has_text
    if node.op == LITERAL and node.implicit and not session.ansi and not is_same:
        raise NotUnderstoodError(_NOT_ANSI)
    if node.type == TIMESTAMP and not session.utc:
        raise NotUnderstoodError("it depends on the session's time zone, which is not UTC")
    for child in node.args:
        _check(child, session, has_text)


def _parts(node: Expression) -> Iterator[Expression]:
    yield node
    for child in node.args:
        yield from _parts(child)
