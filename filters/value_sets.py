"""The values of one column with which a condition can be true.

Each node of the condition gets three sets of the column's values: with which the node can be true, false, and
null, for any values of other columns. NOT swaps the first two. AND and OR take intersections and unions, by
three-valued logic. An unknown operator can be anything. So `(a = 1 AND b = 2) OR (a = 3 AND c > 4)` gives
{1, 3} for a, without a normal form, which may take exponential time.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from elasticscan.base.key_encoding import END, VALUES
from elasticscan.filters.bounds import TextAxis, axis_of, keeps_order
from elasticscan.filters.coercion import computed_type
from elasticscan.filters.expression import CAST, COLUMN, COMPARISONS, Expression, column_names, literal
from elasticscan.filters.kernels import constant_of
from elasticscan.filters.key_sets import EVERYTHING, NOT_NULL, NOTHING, NULLS, KeySet, KeySets
from elasticscan.filters.nodes import prefix_of

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_MOST_BISECTIONS = 200  # constants of a list; a bisection for each takes some milliseconds in all


@dataclass(frozen=True, slots=True)
class ColumnDomain:
    """The values with which a condition can be true.

    `exact`: the condition is true with each of them, so it depends on no other column.
    """

    keys: KeySet
    exact: bool


def value_set(condition: Expression, field: pa.Field) -> ColumnDomain:
    """Return the value keys of a column with which a condition can be true.

    >>> from elasticscan.filters.bounds import single_values
    >>> from elasticscan.filters.parser import parse_condition
    >>> schema = pa.schema([("a", pa.bool_()), ("b", pa.int32())])
    >>> domain = value_set(parse_condition("a AND b > 2", schema), schema.field("a"))
    >>> single_values(domain.keys, pa.bool_(), 2), domain.exact
    ([b'\\x01\\x01'], False)
    """
    truth = _ColumnMeaning(field).truth(condition)
    return ColumnDomain(truth.true, truth.exact or truth.true.is_empty)


def column_sets(condition: Expression | None, schema: pa.Schema) -> KeySets:
    """Return the values with which a condition can be true, for each column that it limits."""
    if condition is None:
        return {}
    names = sorted(column_names(condition)) or schema.names[:1]
    sets = {name: value_set(condition, schema.field(name)).keys for name in names}
    return {name: keys for name, keys in sets.items() if keys != EVERYTHING}


@dataclass(frozen=True, slots=True)
class _Truth:
    """The values of a column with which a condition can be true, false and null.

    `exact`: with these values it certainly is, for any values of other columns. `a > 3` is exact for a;
    `a > 3 AND b = 1` is not, since a > 3 alone does not make it true.
    """

    true: KeySet
    false: KeySet
    null: KeySet
    exact: bool = True

    @property
    def negated(self) -> _Truth:
        return _Truth(self.false, self.true, self.null, self.exact)


_UNKNOWN = _Truth(EVERYTHING, EVERYTHING, EVERYTHING, exact=False)
_CONSTANTS = {
    True: _Truth(EVERYTHING, NOTHING, NOTHING),
    False: _Truth(NOTHING, EVERYTHING, NOTHING),
    None: _Truth(NOTHING, NOTHING, EVERYTHING),
}


class _ColumnMeaning:
    def __init__(self, field: pa.Field) -> None:
        self.field, self.axis = field, axis_of(field.type)

    def truth(self, node: Expression) -> _Truth:
        if node.op not in ("AND", "OR"):
            names = column_names(node)
            if self.field.name not in names:
                return _UNKNOWN if names else _constant(node)
        match node.op:
            case "NOT":
                return self.truth(node.args[0]).negated
            case "AND":
                return _all_of([self.truth(part) for part in node.args])
            case "OR":
                return _all_of([self.truth(part).negated for part in node.args]).negated
            case "IS":
                return self.test(node)
            case "COLUMN":
                return self.comparison("=", node, literal(True, pa.bool_()))
            case "IN":
                return self.membership(node)
            case "LIKE" | "ILIKE":
                return self.match(node)
        return self.compare(node) if node.op in COMPARISONS else _UNKNOWN

    def chain(self, node: Expression) -> list[pa.DataType] | None:
        """Return the types of a column's conversions, its own first; None if they do not keep the order."""
        if node.op == COLUMN and node.value == (self.field.name,):
            return [node.type] if node.type == computed_type(self.field.type) else None
        if node.op == CAST:
            types = self.chain(node.args[0])
            return [*types, node.type] if types and keeps_order(types[-1], node.type) else None
        return None

    def test(self, node: Expression) -> _Truth:
        if node.value is None and self.chain(node.args[0]) is not None:
            return _Truth(NULLS, NOT_NULL, NOTHING)
        if node.args[0].type != pa.bool_():
            return _UNKNOWN
        child = self.truth(node.args[0])
        by_state = {None: child.null, True: child.true, False: child.false}
        hit = by_state.pop(node.value)
        return _Truth(hit, KeySet.union_of(by_state.values()), NOTHING, child.exact)

    def compare(self, node: Expression) -> _Truth:
        # If arithmetic of constants fails, the evaluation will raise the error.
        left, right = map(constant_of, node.args)
        if right is not None:
            return self.comparison(node.op, node.args[0], right)
        if left is not None:
            return self.comparison(_MIRRORED.get(node.op, node.op), node.args[1], left)
        return _UNKNOWN

    def comparison(self, op: str, side: Expression, constant: Expression) -> _Truth:
        types = self.chain(side)
        if types is None or self.axis is None:
            return _UNKNOWN
        if constant.value is None:
            return _Truth(NULLS, NOT_NULL, NOTHING) if op == "<=>" else _CONSTANTS[None]
        cuts = self.axis.cuts(types, pa.scalar(constant.value, constant.type))
        assert cuts is not None, "a bisection was allowed"
        low, high = cuts
        # An operator consists of the signs for which it is true.
        parts = {"<": (VALUES, low), "=": (low, high), ">": (high, END)}
        signs = "=" if op == "<=>" else op
        hit = KeySet.of(part for sign, part in parts.items() if sign in signs)
        return _Truth(hit, hit.complement(), NOTHING) if op == "<=>" else _known(hit)

    def membership(self, node: Expression) -> _Truth:
        types = self.chain(node.args[0])
        if types is None or self.axis is None:
            return _UNKNOWN
        constants = [pa.scalar(value.value, value.type) for value in node.args[1:] if value.value is not None]
        may_bisect = len(constants) <= _MOST_BISECTIONS
        cuts = [self.axis.cuts(types, value, may_bisect) for value in constants]
        if None in cuts:
            return _UNKNOWN
        hit = KeySet.of(filter(None, cuts))
        has_null = len(constants) < len(node.args) - 1
        return _Truth(hit, NOTHING, hit.complement()) if has_null else _known(hit)

    def match(self, node: Expression) -> _Truth:
        if node.args[0].op != COLUMN or not self.chain(node.args[0]):
            return _UNKNOWN
        if not isinstance(self.axis, TextAxis) or node.op == "ILIKE":  # any text may match
            return _Truth(NOT_NULL, NOT_NULL, NULLS, exact=False)
        prefix, rest = prefix_of(node.value)
        hit = KeySet.of([self.axis.prefixed(prefix.encode())])
        return _Truth(hit, NOT_NULL, NULLS, exact=False) if rest.strip("%") else _known(hit)


def _known(hit: KeySet) -> _Truth:
    """Return the truth of a test that is true for the values of `hit`, null for null, and otherwise false."""
    return _Truth(hit, (hit | NULLS).complement(), NULLS)


def _all_of(parts: list[_Truth]) -> _Truth:
    """Return the truth of an AND. An OR is a negated AND of negated parts."""
    true = KeySet.intersection_of([part.true for part in parts])
    false = KeySet.union_of(part.false for part in parts)
    # An AND is null if a part is null and no part is false.
    null = KeySet.union_of(part.null for part in parts)
    null &= KeySet.intersection_of([part.true | part.null for part in parts])
    return _Truth(true, false, null, all(part.exact for part in parts))


def _constant(node: Expression) -> _Truth:
    """Return the truth of a condition without columns."""
    constant = constant_of(node)
    if constant is None or not isinstance(constant.value, bool | None):
        return _UNKNOWN
    return _CONSTANTS[constant.value]
