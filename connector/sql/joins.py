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

from elasticscan.connector.sql.query import Query, Reference, UnreadableError

_SELECT_PARTS = frozenset(
    """
    with_ kind expressions hint distinct from_ joins laterals where group having windows qualify order
    sort distribute cluster limit offset
    """.split()  # noqa: SIM905
)
_JOIN_PARTS = frozenset("this side kind on using hint".split())  # noqa: SIM905
_TABLE_PARTS = frozenset("this alias joins version".split())  # noqa: SIM905
_INNER, _LEFT, _RIGHT, _FULL, _SEMI, _ANTI, _CROSS = "inner", "left", "right", "full", "semi", "anti", "cross"
_KINDS = {
    ("", ""): _INNER, ("", "INNER"): _INNER, ("", "CROSS"): _CROSS, ("LEFT", ""): _LEFT,
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


@dataclass(frozen=True, slots=True)
class _Group:
    """Part of a FROM, from its beginning to some join.

    Attributes:
        visible: its references.
        preserved: references that no join so far has filled with nulls.
    """

    visible: tuple[Reference, ...] = ()
    preserved: frozenset[Reference] = frozenset()


def blocks_of(query: Query) -> list[SelectBlock]:
    """Every SELECT that reads a table of the store; each reference is in at most one of them.

    Raises:
        UnreadableError: one has a clause or a join that is not followed here.
    """
    by_node = {id(reference.node): reference for reference in query.references}
    walks = [_FromWalk(node, by_node) for node in query.tree.find_all(exp.Select)]
    for walk in walks:
        if walk.block.references and walk.odd:
            raise UnreadableError(f"it has {walk.odd[0]}")
    return [walk.block for walk in walks if walk.block.references]


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
        self._references = references
        self.odd: list[str] = []
        self.block = SelectBlock(select)
        source = select.args.get("from_")
        if source is None:
            return
        group = self._joins(self._source(source.this), select)
        where = select.args.get("where")
        if where is not None:
            self._conditions(where.this, group.visible, group.preserved)
        self._note(select, _SELECT_PARTS, "SELECT")

    def _note(self, node: exp.Expr, understood: frozenset[str], clause: str) -> None:
        for name, value in node.args.items():
            if value and name not in understood:
                self.odd.append(f"{clause} with {name.strip('_').upper()}")

    def _source(self, node: exp.Expr) -> _Group:
        """Return what stands at one place of a FROM, with what is joined to it."""
        if node.args.get("pivots"):
            self.odd.append("a PIVOT")
        return self._joins(self._table(node) if isinstance(node, exp.Table) else _Group(), node)

    def _table(self, node: exp.Table) -> _Group:
        reference = self._references.get(id(node))
        if reference is None:
            return _Group()
        self.block.references.append(reference)
        alias = node.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            self.odd.append("a table whose columns are renamed")
        self._note(node, _TABLE_PARTS, "a table")
        return _Group((reference,), frozenset({reference}))

    def _joins(self, left: _Group, owner: exp.Expr) -> _Group:
        for join in owner.args.get("joins") or []:
            left = self._join(left, join)
        return left

    def _join(self, left: _Group, join: exp.Join) -> _Group:
        self._note(join, _JOIN_PARTS, "JOIN")
        kind = _KINDS.get((join.side.upper(), join.kind.upper()))
        if kind is None or join.method:
            self.odd.append(f"a {join.method} {join.side} {join.kind} JOIN")
            kind = _FULL
        right = self._source(join.this)
        using = join.args.get("using") or []
        self.block.merged += [(column.name.lower(), frozenset(right.visible)) for column in using]
        visible, on = (*left.visible, *right.visible), join.args.get("on")
        if on is not None:
            self._conditions(on, visible, _reducible(kind, left, right))
        if kind in (_SEMI, _ANTI):
            return left
        preserved = {
            _INNER: left.preserved | right.preserved,
            _CROSS: left.preserved | right.preserved,
            _LEFT: left.preserved,
            _RIGHT: right.preserved,
            _FULL: frozenset[Reference](),
        }[kind]
        return _Group(visible, preserved)

    def _conditions(self, node: exp.Expr, visible: tuple[Reference, ...], free: frozenset[Reference]) -> None:
        self.block.conditions += [Condition(part, visible, free) for part in conjuncts(node)]


def _reducible(kind: str, left: _Group, right: _Group) -> frozenset[Reference]:
    """Return the references that the ON of a join may reduce."""
    if kind in (_INNER, _CROSS, _SEMI):
        return left.preserved | right.preserved
    return {_LEFT: right, _ANTI: right, _RIGHT: left, _FULL: _Group()}[kind].preserved
