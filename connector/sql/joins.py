"""Assignment of a SELECT's conditions to its tables, by the rules of its joins.

A condition that is tested after a table was read may be tested while it is read as well, if rows
that fail it cannot change the result. That depends on the joins between the two places:

- Inner and cross joins lose rows that fail, so both of their sides may be reduced.
- An outer join keeps the rows of one side and fills the other with nulls. Conditions after it may
  reduce the kept side. They may reduce the filled side only if they are not true for a row of
  nulls: then a row that is filled because its partner is missing fails as the partner would have.
- A condition in the ON of an outer join chooses partners: it may reduce the filled side, never
  the kept one, whose rows stay even where it is false.
- ON of a semi join may reduce both sides, of an anti join the right one alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from elasticscan.connector.sql.query import Query, Reference

_SELECT_PARTS = frozenset(
    """
    with_ kind expressions hint distinct from_ joins laterals where group having windows qualify order
    sort distribute cluster limit offset
    """.split()  # noqa: SIM905
)
_JOIN_PARTS = frozenset("this side kind method on using hint".split())  # noqa: SIM905
_TABLE_PARTS = frozenset("this alias joins sample pivots".split())  # noqa: SIM905
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
        filled: those whose rows it may remove if it is not true for a row of nulls. In
            `a LEFT JOIN b ON ... WHERE b.x > 1` the join fills b with nulls, and the WHERE removes those
            rows again: so rows of b that fail it need not be read.
    """

    node: exp.Expr
    visible: tuple[Reference, ...]
    free: frozenset[Reference]
    filled: frozenset[Reference]


@dataclass(frozen=True, slots=True)
class Using:
    """A column by which USING compares the tables before a join with those behind it.

    `free` is as of a `Condition`.
    """

    name: str
    left: tuple[Reference, ...]
    right: tuple[Reference, ...]
    free: frozenset[Reference]


@dataclass(slots=True)
class SelectBlock:
    """A SELECT with the references in its FROM.

    Attributes:
        select: the SELECT.
        references: those in its FROM, and their conditions.
        conditions: the conjuncts of its WHERE and its ONs.
        natural: a NATURAL join compares all columns of the same name.
        merged: (name, references): columns that USING makes one, and the right-hand sides that
            have lost theirs to it.
        using: the same columns, by what the joins do.
        whole: references of which every column is read, and why.
        unfiltered: references that no condition reduces, and why.
    """

    select: exp.Select
    references: list[Reference] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    natural: bool = False
    merged: list[tuple[str, frozenset[Reference]]] = field(default_factory=list)
    using: list[Using] = field(default_factory=list)
    whole: dict[Reference, str] = field(default_factory=dict)
    unfiltered: dict[Reference, str] = field(default_factory=dict)

    @property
    def has_only_tables(self) -> bool:
        """Return True if its FROM has only tables of the store and joins, no query or function."""
        tables = {id(reference.node) for reference in self.references}
        source = self.select.args.get("from_")
        nodes = [source.this] if source is not None else []
        nodes += [join.this for join in self.select.args.get("joins") or []]
        return len(nodes) == len(tables) and all(id(node) in tables for node in nodes)

    def doubt(self, references: Iterable[Reference], why: str) -> None:
        for reference in references:
            self.whole.setdefault(reference, why)
            self.unfiltered.setdefault(reference, why)


@dataclass(frozen=True, slots=True)
class _Group:
    """Part of a FROM, from its beginning to some join.

    Attributes:
        visible: its references.
        preserved: references that no join so far has filled with nulls.
        near: references that the next ON can certainly name.
    """

    visible: tuple[Reference, ...] = ()
    preserved: frozenset[Reference] = frozenset()
    near: tuple[Reference, ...] = ()


def blocks_of(query: Query) -> list[SelectBlock]:
    """Every SELECT that reads a table of the store; each reference is in at most one of them."""
    by_node = {id(reference.node): reference for reference in query.references}
    blocks = [_FromWalk(node, by_node).block for node in query.tree.find_all(exp.Select)]
    return [block for block in blocks if block.references]


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
        self._odd: list[str] = []
        self.block = SelectBlock(select)
        source = select.args.get("from_")
        if source is None:
            return
        group = self._joins(self._source(source.this), select)
        where = select.args.get("where")
        if where is not None:
            self._conditions(where.this, group.visible, group.preserved, frozenset(group.visible))
        self._note(select, _SELECT_PARTS, "SELECT")
        for why in self._odd:
            self.block.doubt(self.block.references, why)

    def _note(self, node: exp.Expr, understood: frozenset[str], clause: str) -> None:
        for name, value in node.args.items():
            if value and name not in understood:
                self._odd.append(f"{clause} with {name.strip('_').upper()}")

    def _source(self, node: exp.Expr) -> _Group:
        """Return what stands at one place of a FROM, with what is joined to it inside parentheses."""
        group = _Group()
        if node.args.get("pivots"):
            self._odd.append("PIVOT")
        if isinstance(node, exp.Table):
            group = self._table(node)
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table | exp.Subquery):
            # Parentheses around tables, not a query.
            before = len(self.block.references)
            group = self._source(node.this)
            if node.alias or node.args.get("sample"):
                self.block.doubt(self.block.references[before:], "it is in parentheses with their own name")
                group = _Group()
        return self._joins(group, node)

    def _table(self, node: exp.Table) -> _Group:
        reference = self._references.get(id(node))
        if reference is None:
            return _Group()
        self.block.references.append(reference)
        alias = node.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            self.block.doubt([reference], "its columns are renamed here")
        self._note(node, _TABLE_PARTS, "a table")
        if node.args.get("sample"):
            self.block.unfiltered.setdefault(reference, "a sample is taken of all rows")
        return _Group((reference,), frozenset({reference}), (reference,))

    def _joins(self, left: _Group, owner: exp.Expr) -> _Group:
        for join in owner.args.get("joins") or []:
            left = self._join(left, join)
        return left

    def _join(self, left: _Group, join: exp.Join) -> _Group:
        self._note(join, _JOIN_PARTS, "JOIN")
        kind = _KINDS.get((join.side.upper(), join.kind.upper()))
        method = join.method.upper()
        if kind is None or method not in ("", "NATURAL"):
            self._odd.append(f"{method} {join.side} {join.kind} JOIN".strip())
            kind = _FULL
        right = self._source(join.this)
        self.block.natural |= method == "NATURAL"
        using = join.args.get("using") or []
        self.block.merged += [(column.name.lower(), frozenset(right.visible)) for column in using]
        sides = _reducible(kind, left, right)
        free = frozenset(reference for side in sides for reference in side.preserved)
        self.block.using += [Using(column.name, left.visible, right.visible, free) for column in using]
        on = join.args.get("on")
        if on is not None:
            filled = frozenset(reference for side in sides for reference in side.visible)
            self._conditions(on, (*left.near, *right.visible), free, filled)
        visible = (*left.visible, *right.visible)
        if kind in (_SEMI, _ANTI):
            return left
        if kind == _CROSS:
            # A setting decides if an ON behind a comma can name the tables before the comma.
            return _Group(visible, left.preserved | right.preserved, right.near)
        preserved = {
            _INNER: left.preserved | right.preserved,
            _LEFT: left.preserved,
            _RIGHT: right.preserved,
            _FULL: frozenset[Reference](),
        }[kind]
        return _Group(visible, preserved, (*left.near, *right.visible))

    def _conditions(
        self,
        node: exp.Expr,
        visible: tuple[Reference, ...],
        free: frozenset[Reference],
        filled: frozenset[Reference],
    ) -> None:
        self.block.conditions += [Condition(part, visible, free, filled) for part in conjuncts(node)]


def _reducible(kind: str, left: _Group, right: _Group) -> tuple[_Group, ...]:
    """Return the sides of a join that its ON, or USING, may reduce."""
    return {
        _INNER: (left, right),
        _CROSS: (left, right),
        _SEMI: (left, right),
        _LEFT: (right,),
        _ANTI: (right,),
        _RIGHT: (left,),
        _FULL: (),
    }[kind]
