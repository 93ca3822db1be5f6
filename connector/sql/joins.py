"""Assignment of the conditions of a SELECT to its tables, by the rules of its joins.

The read of a table may test a condition early if rows that fail it cannot change the result. This depends on
the joins between the table and the condition:

- An inner or cross join drops rows that fail, so conditions may reduce both sides.
- An outer join keeps all rows of one side and fills the other side with nulls. Conditions after the join may
  reduce only the kept side.
- The ON of an outer join selects partners. It may reduce only the filled side: rows of the kept side stay
even
  if it is false.
- The ON of a semi join may reduce both sides, the ON of an anti join only the right one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from elasticscan.connector.sql.query import Query, Reference
from elasticscan.connector.sql.tokens import NotUnderstoodError

_SELECT_PARTS = frozenset(
    """
    with_ kind expressions hint distinct from_ joins laterals where group having windows qualify order
    sort distribute cluster limit offset
    """.split()  # noqa: SIM905
)
_JOIN_PARTS = frozenset("this side kind on using hint".split())  # noqa: SIM905
_TABLE_PARTS = frozenset("this alias joins version".split())  # noqa: SIM905
# For each kind of join: the sides (L, R) that its ON may reduce, and the sides that later conditions may
# reduce.
_INNER, _SEMI, _ANTI = ("LR", "LR"), ("LR", "L"), ("R", "L")
_LEFT, _RIGHT, _FULL = ("R", "L"), ("L", "R"), ("", "")
_KINDS = {
    ("", ""): _INNER, ("", "INNER"): _INNER, ("", "CROSS"): _INNER, ("LEFT", ""): _LEFT,
    ("LEFT", "OUTER"): _LEFT, ("RIGHT", ""): _RIGHT, ("RIGHT", "OUTER"): _RIGHT, ("FULL", ""): _FULL,
    ("FULL", "OUTER"): _FULL, ("", "SEMI"): _SEMI, ("LEFT", "SEMI"): _SEMI, ("", "ANTI"): _ANTI,
    ("LEFT", "ANTI"): _ANTI,
}  # fmt: skip


class SelectBlock:
    """A SELECT that reads tables of the store.

    Attributes:
        references: the references in its FROM.
        conditions: the conjuncts of its WHERE and its ONs, each with the references that it may reduce.
        merged: (name, references): columns that USING merges, and the references on the right side.
    """

    def __init__(self, select: exp.Select, references: Mapping[int, Reference]) -> None:
        """Collect the conditions; `references` are all of the query, by the ids of their nodes."""
        self.select, self._by_node = select, references
        self.references: list[Reference] = []
        self.conditions: list[tuple[exp.Expr, frozenset[Reference]]] = []
        self.merged: list[tuple[str, tuple[Reference, ...]]] = []
        source, where = select.args.get("from_"), select.args.get("where")
        kept = frozenset[Reference]() if source is None else self._joins(self._source(source.this), select)
        if where is not None:
            self.conditions += [(part, kept) for part in conjuncts(where.this)]
        _check(select, _SELECT_PARTS, "SELECT")

    def _source(self, node: exp.Expr) -> frozenset[Reference]:
        """Visit an item of FROM and its joins; return the references that no join fills with nulls."""
        if node.args.get("pivots"):
            raise NotUnderstoodError("it has a PIVOT")
        reference = self._by_node.get(id(node))
        if reference is None:
            return self._joins(frozenset(), node)
        self.references.append(reference)
        alias = node.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            raise NotUnderstoodError("it has a table whose columns are renamed")
        _check(node, _TABLE_PARTS, "a table")
        return self._joins(frozenset({reference}), node)

    def _joins(self, kept: frozenset[Reference], owner: exp.Expr) -> frozenset[Reference]:
        for join in owner.args.get("joins") or []:
            _check(join, _JOIN_PARTS, "JOIN")
            kind = _KINDS.get((join.side.upper(), join.kind.upper()))
            if kind is None:
                raise NotUnderstoodError(f"it has a {join.side} {join.kind} JOIN")
            before = len(self.references)
            sides = {"L": kept, "R": self._source(join.this)}
            right = tuple(self.references[before:])
            self.merged += [(name.name.lower(), right) for name in join.args.get("using") or []]
            reducible, kept = (frozenset[Reference]().union(*(sides[side] for side in each)) for each in kind)
            if join.args.get("on") is not None:
                self.conditions += [(part, reducible) for part in conjuncts(join.args["on"])]
        return kept


def blocks_of(query: Query) -> list[SelectBlock]:
    """Return every SELECT that reads a table of the store; each reference is in exactly one."""
    by_node = {id(reference.node): reference for reference in query.references}
    owners = {id(reference.node.find_ancestor(exp.Select)) for reference in query.references}
    selects = [select for select in query.tree.find_all(exp.Select) if id(select) in owners]
    blocks = [SelectBlock(select, by_node) for select in selects]
    if sum(len(block.references) for block in blocks) != len(query.references):
        raise NotUnderstoodError("it has a table in an unexpected place")
    return blocks


def conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the operands of nested ANDs, from left to right."""
    waiting = [node]
    while waiting:
        operand = waiting.pop()
        bare = operand.unnest() if isinstance(operand, exp.Paren) else operand
        if isinstance(bare, exp.And):
            waiting += [bare.expression, bare.this]
        else:
            yield bare


def _check(node: exp.Expr, understood: frozenset[str], clause: str) -> None:
    for name, value in node.args.items():
        if value and name not in understood:
            raise NotUnderstoodError(f"it has {clause} with {name.strip('_').upper()}")
