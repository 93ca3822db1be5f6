"""Conditions that may be tested while a table is read.

What goes to the table stays in the query as well, so it only has to hold for every row that the
query needs. It must not fail where Spark would not have: Spark may have dropped a row by another
condition before it came to this one. So only comparisons and tests of columns with constants pass,
with conversions that lose nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.types as pt
from sqlglot import exp

from elasticscan.base.errors import FilterError, NotFound
from elasticscan.connector.sql.joins import Condition, SelectBlock
from elasticscan.connector.sql.query import LeftToSparkError, Query, Reference, Session
from elasticscan.filters import (
    CAST,
    COLUMN,
    COMPARISONS,
    LITERAL,
    TIMESTAMP,
    Expression,
    FilterSql,
    Predicate,
    all_of,
    always_fits,
    constant_of,
    is_number,
    shortened,
    to_text,
    type_name,
)

# What is tested where a table is read: it cannot fail.
_TESTS = {COLUMN, LITERAL, *COMPARISONS, "NOT", "AND", "OR", "IS", "IN", "LIKE", "ILIKE"}
_NOT_ANSI = "it converts values, and this session does not follow the ANSI rules"


def push_conditions(
    query: Query, block: SelectBlock, schemas: Mapping[str, pa.Schema], session: Session
) -> tuple[dict[Reference, str | None], dict[Reference, list[tuple[str, str]]], bool]:
    """Return the conditions that go to the references of a SELECT.

    Returns:
        what the rows of each reference must meet, as SQL text, None when that is nothing; (condition, why) of
        conditions on it that Spark alone tests; and whether no condition is left for others to test.
    """
    predicates: dict[Reference, list[Predicate]] = {ref: [] for ref in block.references}
    stayed: dict[Reference, list[tuple[str, str]]] = {ref: [] for ref in block.references}
    for condition in block.conditions:
        rules = _PushdownRules(query, block, condition, schemas, session)
        try:
            reference, predicate = rules.judge()
        except LeftToSparkError as why:
            for ref in rules.mentioned():
                stayed[ref].append((_show(condition.node), str(why)))
        else:
            predicates[reference].append(predicate)
    texts = {ref: _combine(found, schemas[ref.table]) for ref, found in predicates.items()}
    handed_over = sum(len(found) for ref, found in predicates.items() if texts[ref])
    return texts, stayed, handed_over == len(block.conditions)


def _combine(parts: list[Predicate], schema: pa.Schema) -> str | None:
    """Return one filter of all conditions; None without any, or if it is too long for one."""
    if not parts:
        return None
    conditions = tuple(dict.fromkeys(part.condition for part in parts))
    text = str(Predicate(all_of(conditions)))
    try:
        Predicate.parse(text, schema)
    except FilterError:
        return None
    return text


def _show(node: exp.Expr) -> str:
    return shortened(node.sql(dialect=FilterSql, comments=False), 120)


class _PushdownRules:
    """Decides if one condition can be handed to a reference, and to which."""

    def __init__(
        self,
        query: Query,
        block: SelectBlock,
        condition: Condition,
        schemas: Mapping[str, pa.Schema],
        session: Session,
    ) -> None:
        self.query, self.block, self.condition = query, block, condition
        self.schemas, self.session = schemas, session
        columns = condition.node.find_all(exp.Column)
        self.owners = [(column, *self._owners(column)) for column in columns]

    def mentioned(self) -> list[Reference]:
        """Return the references that the condition seems to mention; only shown to people."""
        owners = {reference for _, found, _ in self.owners for reference in found}
        return [reference for reference in self.condition.visible if reference in owners]

    def judge(self) -> tuple[Reference, Predicate]:
        """Return the reference that the condition can be handed to, and the filter that it becomes there.

        Raises:
            LeftToSparkError: it can be handed to none.
        """
        node = self.condition.node
        if node.find(exp.Query) is not None:
            raise LeftToSparkError("it holds a sub-query")
        reference = self._only_reference()
        bare = node.copy()
        for column, (_, _, is_qualified) in zip(list(bare.find_all(exp.Column)), self.owners, strict=True):
            if is_qualified:
                column.set(next(key for key in ("catalog", "db", "table") if column.args.get(key)), None)
        if not self.session.ansi and bare.find(exp.Cast) is not None:
            raise LeftToSparkError(_NOT_ANSI)
        try:
            schema = self.schemas[reference.table]
            predicate = Predicate.of_tree(bare, schema)
            Predicate.parse(str(predicate), schema)  # refuses what is too long for a filter
        except (FilterError, NotFound) as error:
            raise LeftToSparkError(error.message) from None
        self._check(predicate.condition)
        if reference not in self.condition.free:
            why = "an outer join gives rows for which it is not true, or fills them with nulls"
            raise LeftToSparkError(why)
        return reference, predicate

    # ------------------------------------------------------------------ whose columns these are

    def _only_reference(self) -> Reference:
        if not self.owners:
            raise LeftToSparkError("it names no column")
        for column, owners, _ in self.owners:
            if len(owners) != 1:
                where = "more than one table" if owners else "no single table that it could be handed to"
                raise LeftToSparkError(f"{_show(column)} is a column of {where}")
        first, *others = (owners[0] for _, owners, _ in self.owners)
        if any(owner != first for owner in others):
            raise LeftToSparkError("it compares tables with each other")
        return first

    def _owners(self, column: exp.Column) -> tuple[list[Reference], bool]:
        """Return the references that have the column, and whether it is qualified by their alias.

        With several, Spark fails: the name is ambiguous.
        """
        first, *rest = [part.name.lower() for part in column.parts]
        by_alias = [ref for ref in self._with(rest[0]) if ref.alias.lower() == first] if rest else []
        # Else `a.b` is field b of a struct column a, unless a may be the name of a table here.
        if by_alias or (rest and first in self.query.qualifiers):
            return by_alias, True
        # Of the columns that USING makes one, the left one stays. A RIGHT or FULL join takes the value of the
        # other one, but there the left side is not `free`.
        merged = [right for name, right in self.block.merged if name == first]
        return [ref for ref in self._with(first) if not any(ref in right for right in merged)], False

    def _with(self, name: str) -> list[Reference]:
        """Return the visible references with a column of this name in lower case."""
        return [
            reference
            for reference in self.condition.visible
            if name in map(str.lower, self.schemas[reference.table].names)
        ]

    # --------------------------------------------------------------------- the condition itself

    def _check(self, node: Expression) -> None:
        """Let through what cannot fail on any row and means the same in this session."""
        if node.op == "IS" and node.value is None and node.args[0].op == COLUMN:
            return
        computed = self.session.ansi and node.op != LITERAL and constant_of(node) is not None
        if computed and (self.session.utc or all(part.type != TIMESTAMP for part in _parts(node))):
            return  # its value is the same in this session
        if node.op == CAST:
            self._check_cast(node)
        elif node.op not in _TESTS:
            raise LeftToSparkError(f"{to_text(node)} is computed, not compared")
        if node.op == LITERAL and node.implicit and not self.session.ansi and not self._counts(node):
            raise LeftToSparkError(_NOT_ANSI)
        if node.type == TIMESTAMP and not self.session.utc:
            raise LeftToSparkError("it depends on the session's time zone, which is not UTC")
        for child in node.args:
            self._check(child)

    def _counts(self, node: Expression) -> bool:
        """Return True for a number in a condition without quoted text: a wider type holds the same number."""
        return is_number(node.type) and not any(
            literal.is_string for literal in self.condition.node.find_all(exp.Literal)
        )

    def _check_cast(self, node: Expression) -> None:
        source, target = node.args[0].type, node.type
        if not self.session.ansi:
            raise LeftToSparkError(_NOT_ANSI)
        keeps = is_number(source) and is_number(target) and always_fits(source, target)
        if not node.implicit or not keeps or (pt.is_decimal128(source) and not pt.is_decimal128(target)):
            raise LeftToSparkError(f"it converts {to_text(node.args[0])} to {type_name(target)}")


def _parts(node: Expression) -> Iterator[Expression]:
    yield node
    for child in node.args:
        yield from _parts(child)
