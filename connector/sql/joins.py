"""Assignment of a SELECT's conditions to its tables, by the rules of its joins.

A condition that is tested after a table was read may be tested while it is read as well, if rows
that fail it cannot change the result. That depends on the joins between the two places:

- Inner and cross joins lose rows that fail, so both of their sides may be reduced.
- An outer join keeps the rows of one side and fills the other with nulls: conditions after it may
  reduce the kept side alone.
- A condition in the ON of an outer join chooses partners: it may reduce the filled side, never
  the kept one, whose rows stay even where it is false.
- ON of a semi join may reduce both sides, of an anti join the right one alone.

"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from elasticscan.connector.sql.query import LeftToSparkError, Query, Reference

_SELECT_PARTS = frozenset(
    """
    with_ kind expressions hint distinct from_ joins laterals where group having windows qualify order
    sort distribute cluster limit offset
    """.split()  # noqa: SIM905
)
_JOIN_PARTS = frozenset("this side kind on using hint".split())  # noqa: SIM905
_TABLE_PARTS = frozenset("this alias joins version".split())  # noqa: SIM905
# By the kind of a join the sides, left and right, that its ON may reduce, and that conditions after it may.
_INNER, _SEMI, _ANTI = ("LR", "LR"), ("LR", "L"), ("R", "L")
_LEFT, _RIGHT, _FULL = ("R", "L"), ("L", "R"), ("", "")
_KINDS = {
    ("", ""): _INNER, ("", "INNER"): _INNER, ("", "CROSS"): _INNER, ("LEFT", ""): _LEFT,
    ("LEFT", "OUTER"): _LEFT, ("RIGHT", ""): _RIGHT, ("RIGHT", "OUTER"): _RIGHT, ("FULL", ""): _FULL,
    ("FULL", "OUTER"): _FULL, ("", "SEMI"): _SEMI, ("LEFT", "SEMI"): _SEMI, ("", "ANTI"): _ANTI,
    ("LEFT", "ANTI"): _ANTI,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Condition:
    """One conjunct of a WHERE or an ON.

    Attributes:
        node: the conjunct.
        visible: references whose columns it can name.
        free: those whose rows it may remove before the join.
    """

    node: exp.Expr
    visible: tuple[Reference, ...]
    free: frozenset[Reference]


@dataclass(slots=True)
class SelectBlock:
    """A SELECT with the references in its FROM.

    Attributes:
        select: the SELECT.
        references: those in its FROM, and their conditions.
        conditions: the conjuncts of its WHERE and its ONs.
        merged: (name, references): columns that USING makes one, and the right-hand sides that
            have lost theirs to it.
    """

    select: exp.Select
    references: list[Reference] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    merged: list[tuple[str, frozenset[Reference]]] = field(default_factory=list)


# Part of a FROM, from its beginning to some join: the visible references, and those among them that no join
# so far has filled with nulls.
_Group = tuple[tuple[Reference, ...], frozenset[Reference]]
_NO_TABLE: _Group = ((), frozenset())


def blocks_of(query: Query) -> list[SelectBlock]:
    """Every SELECT that reads a table of the store; each reference is in one of them.

    Raises:
        LeftToSparkError: one has a clause or a join that is not followed here.
    """
    by_node = {id(reference.node): reference for reference in query.references}
    owners = {id(reference.node.find_ancestor(exp.Select)) for reference in query.references}
    selects = [select for select in query.tree.find_all(exp.Select) if id(select) in owners]
    blocks = [_FromWalk(select, by_node).block for select in selects]
    if sum(len(block.references) for block in blocks) != len(query.references):
        raise LeftToSparkError("a table stands where none was expected")
    return blocks


def conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    waiting = [node]
    while waiting:
        operand = waiting.pop()
        bare = operand.unnest() if isinstance(operand, exp.Paren) else operand
        if isinstance(bare, exp.And):
            waiting += [bare.expression, bare.this]
        else:
            yield bare


class _FromWalk:
    """Goes through the FROM of one SELECT, from left to right."""

    def __init__(self, select: exp.Select, references: Mapping[int, Reference]) -> None:
        self._references, self.block = references, SelectBlock(select)
        source, where = select.args.get("from_"), select.args.get("where")
        if source is None:
            return
        visible, kept = self._joins(self._source(source.this), select)
        if where is not None:
            self._conditions(where.this, visible, kept)
        _check(select, _SELECT_PARTS, "SELECT")

    def _source(self, node: exp.Expr) -> _Group:
        """Return what stands at one place of a FROM, with what is joined to it."""
        if node.args.get("pivots"):
            raise LeftToSparkError("it has a PIVOT")
        return self._joins(self._table(node) if isinstance(node, exp.Table) else _NO_TABLE, node)

    def _table(self, node: exp.Table) -> _Group:
        reference = self._references.get(id(node))
        if reference is None:
            return _NO_TABLE
        self.block.references.append(reference)
        alias = node.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            raise LeftToSparkError("it has a table whose columns are renamed")
        _check(node, _TABLE_PARTS, "a table")
        return (reference,), frozenset({reference})

    def _joins(self, group: _Group, owner: exp.Expr) -> _Group:
        for join in owner.args.get("joins") or []:
            group = self._join(group, join)
        return group

    def _join(self, left: _Group, join: exp.Join) -> _Group:
        _check(join, _JOIN_PARTS, "JOIN")
        kind = _KINDS.get((join.side.upper(), join.kind.upper()))
        if kind is None:
            raise LeftToSparkError(f"it has a {join.side} {join.kind} JOIN")
        right = self._source(join.this)
        self.block.merged += [
            (name.name.lower(), frozenset(right[0])) for name in join.args.get("using") or []
        ]
        visible, sides = (*left[0], *right[0]), {"L": left[1], "R": right[1]}
        reducible, kept = (frozenset[Reference]().union(*(sides[side] for side in each)) for each in kind)
        if join.args.get("on") is not None:
            self._conditions(join.args["on"], visible, reducible)
        return (left[0] if join.kind.upper() in ("SEMI", "ANTI") else visible), kept

    def _conditions(self, node: exp.Expr, visible: tuple[Reference, ...], free: frozenset[Reference]) -> None:
        self.block.conditions += [Condition(part, visible, free) for part in conjuncts(node)]


def _check(node: exp.Expr, understood: frozenset[str], clause: str) -> None:
    for name, value in node.args.items():
        if value and name not in understood:
            raise LeftToSparkError(f"it has {clause} with {name.strip('_').upper()}")
