"""Joins in which the keys of one table tell which rows of another are needed.

Of `a JOIN b ON a.k = b.k` only those rows of a meet anything whose k is one of b's: if b's rows are few, and
at hand, their keys go to where a is read. That holds for each condition by which a join, or the WHERE, may
remove rows of a (`Condition.free`): where it is true, b.k is of a row that b's relation gives, since nulls
that an outer join fills in are equal to nothing. `a.k IN (SELECT b.k FROM …)` and `USING` are left to Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt
from sqlglot import exp

from elasticscan.connector.sql.conditions import owners_of
from elasticscan.connector.sql.joins import Condition, SelectBlock
from elasticscan.connector.sql.query import Query, Reference, Session


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
    found = []
    for block in blocks:
        for condition in block.conditions:
            look = _Sides(query, block, schemas, session)
            node = condition.node
            if isinstance(node, exp.EQ):
                sides = [look.side(condition, side) for side in (node.this, node.expression)]
                found += [look.join(condition, *sides), look.join(condition, *reversed(sides))]
    return [join for join in found if join is not None]


_Side = tuple[Reference, str] | None


class _Sides:
    def __init__(
        self, query: Query, block: SelectBlock, schemas: Mapping[str, pa.Schema], session: Session
    ) -> None:
        self._query, self._block, self._schemas, self._session = query, block, schemas, session

    def side(self, condition: Condition, node: exp.Expr) -> _Side:
        """The column that one side of a comparison is, and whose."""
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
        name = self._session.folded(bare.name)
        same = [one for one in self._schemas[owner.table].names if self._session.folded(one) == name]
        return (owner, same[0]) if len(same) == 1 else None

    def join(self, condition: Condition, needed: _Side, given: _Side) -> KeyJoin | None:
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


def _is_key(kind: pa.DataType) -> bool:
    """True of types whose values are equal in Spark if they are here, and can be written as literals."""
    return bool(pt.is_signed_integer(kind) or pt.is_string(kind))
