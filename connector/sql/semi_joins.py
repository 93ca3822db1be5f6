"""Joins in which the keys of one table tell which rows of another are needed.

Of `a JOIN b ON a.k = b.k` only those rows of a meet anything whose k is one of b's: if b's rows are few, and
at hand, their keys go to where a is read. That holds for each condition by which a join, or the WHERE, may
remove rows of a (`Condition.free`): where it is true, b.k is of a row that b's relation gives, since nulls
that an outer join fills in are equal to nothing. So it is with `a.k IN (SELECT b.k FROM b …)`, and with
`EXISTS (SELECT … FROM b WHERE b.k = a.k …)`, where the keys of a tell which rows of b are needed. A column
of `USING` is compared like those of an ON, if it is certain whose it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt
from sqlglot import exp

from elasticscan.connector.sql.conditions import owners_of
from elasticscan.connector.sql.joins import Condition, SelectBlock, Using
from elasticscan.connector.sql.limits import PLAIN_NODES, is_of, reads_alone
from elasticscan.connector.sql.query import Query, Reference, Session

# Clauses of a sub-query that only leave out rows of its table; and those alongside which it has no row where
# no row meets its WHERE.
_FEWER_ROWS = frozenset({"expressions", "distinct", "from_", "where", "order", "limit", "offset"})
_ONLY_ROWS = frozenset({"expressions", "distinct", "from_", "where"})


@dataclass(frozen=True, slots=True)
class KeyJoin:
    """Rows of a reference are needed only if the value of a column is one that another reference has.

    Attributes:
        needed, column: the reference that may be reduced, and its column.
        given, key: the reference with the keys, and its column, of the same type.
    """

    needed: Reference
    column: str
    given: Reference
    key: str


def key_joins(
    query: Query, blocks: Sequence[SelectBlock], schemas: Mapping[str, pa.Schema], session: Session
) -> list[KeyJoin]:
    """All of a query, in the order of its text; what is not certain is left out."""
    found: list[KeyJoin | None] = []
    by_select = {id(block.select): block for block in blocks}
    for block in blocks:
        look = _Sides(query, block, schemas, session)
        found += look.of_using()
        for condition in block.conditions:
            node = condition.node
            if isinstance(node, exp.EQ):
                sides = [look.side(condition, side) for side in (node.this, node.expression)]
                found += [look.join(condition, *sides), look.join(condition, *reversed(sides))]
            elif isinstance(node, exp.In | exp.Exists):
                asked = node.args.get("query") if isinstance(node, exp.In) else node.this
                inner = by_select.get(id(asked.unnest() if isinstance(asked, exp.Subquery) else asked))
                if inner is not None:
                    found += look.of_subquery(condition, inner)
    return [join for join in found if join is not None]


_Side = tuple[Reference, str] | None


class _Sides:
    def __init__(
        self, query: Query, block: SelectBlock, schemas: Mapping[str, pa.Schema], session: Session
    ) -> None:
        self._query, self._block, self._schemas, self._session = query, block, schemas, session

    def side(self, condition: Condition, node: exp.Expr) -> _Side:
        """Return the column that one side of a comparison is, and whose."""
        bare = node.unnest() if isinstance(node, exp.Paren) else node
        if not isinstance(bare, exp.Column) or len(bare.parts) > 2:
            return None
        owners = owners_of(bare, self._query, self._block, condition, self._schemas, self._session)
        if len(owners) != 1:
            return None
        (owner,) = owners
        qualified = len(bare.parts) == 2
        if qualified and self._session.folded(bare.parts[0].name) != self._session.folded(owner.alias):
            return None  # a field of a struct
        return self._column(owner, bare.name)

    def of_using(self) -> list[KeyJoin | None]:
        """Those of USING, where each side has one table with the column, and no other join merges it."""
        block, found = self._block, list[KeyJoin | None]()
        names = [self._session.folded(using.name) for using in block.using]
        for using, name in zip(block.using, names, strict=True):
            left, right = (
                [side for reference in side_of if (side := self._column(reference, using.name))]
                for side_of in (using.left, using.right)
            )
            certain = block.has_only_tables and not block.natural and names.count(name) == 1
            if certain and len(left) == len(right) == 1:
                found += [self.join(using, left[0], right[0]), self.join(using, right[0], left[0])]
        return found

    def join(self, condition: Condition | Using, needed: _Side, given: _Side) -> KeyJoin | None:
        if needed is None or given is None or needed[0] is given[0]:
            return None
        if needed[0] not in condition.free or not self._block.unfiltered.keys().isdisjoint(
            (needed[0], given[0])
        ):
            return None
        kinds = [self._schemas[reference.table].field(name).type for reference, name in (needed, given)]
        if kinds[0] != kinds[1] or not _is_key(kinds[0]):
            return None
        return KeyJoin(*needed, *given)

    def of_subquery(self, condition: Condition, inner: SelectBlock) -> list[KeyJoin | None]:
        """Those of `k IN (SELECT …)` or `EXISTS (SELECT …)` with a sub-query that reads one table."""
        reference, select = inner.references[0], inner.select
        is_in = isinstance(condition.node, exp.In)
        understood = _FEWER_ROWS if is_in else _ONLY_ROWS
        if not reads_alone(select, reference, understood) or reference in inner.unfiltered:
            return []
        if is_in:
            shown = [node.this if isinstance(node, exp.Alias) else node for node in select.expressions]
            given = self._own(reference, shown[0]) if len(shown) == 1 else None
            return [self.join(condition, self.side(condition, condition.node.this), given)]
        if not all(isinstance(node, PLAIN_NODES) for shown in select.expressions for node in shown.walk()):
            return []  # an aggregate gives a row, whatever the WHERE
        found = []
        for equal in inner.conditions:
            if isinstance(equal.node, exp.EQ):
                for one, other in ((equal.node.this, equal.node.expression),
                                   (equal.node.expression, equal.node.this)):  # fmt: skip
                    own, outer = self._own(reference, one), self._outer(condition, reference, other)
                    found += [self.join(condition, outer, own), self.join(equal, own, outer)]
        return found

    def _own(self, reference: Reference, node: exp.Expr) -> _Side:
        """Return the column of the table of a sub-query that reads no other."""
        if not isinstance(node, exp.Column) or not is_of(node, reference, self._session):
            return None
        return self._column(reference, node.name)

    def _column(self, reference: Reference, name: str) -> _Side:
        """Return the one column of a table that has a name."""
        columns = self._schemas[reference.table].names
        same = [column for column in columns if self._session.folded(column) == self._session.folded(name)]
        return (reference, same[0]) if len(same) == 1 else None

    def _outer(self, condition: Condition, reference: Reference, node: exp.Expr) -> _Side:
        """Return the column of a table around a sub-query, by whose name nothing inside can be meant."""
        if not isinstance(node, exp.Column) or len(node.parts) != 2:
            return None
        inside = {self._session.folded(name) for name in self._schemas[reference.table].names}
        inside.add(self._session.folded(reference.alias))
        return None if self._session.folded(node.parts[0].name) in inside else self.side(condition, node)


def _is_key(kind: pa.DataType) -> bool:
    """Return True for types with Spark's equality, whose values can be written as literals."""
    return bool(pt.is_signed_integer(kind) or pt.is_string(kind))
