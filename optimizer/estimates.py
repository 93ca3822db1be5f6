"""How many rows a condition leaves, from statistics of fragments and index runs.

Conjuncts on one column share that column's value set and histograms. Columns are taken to be
independent of each other: AND multiplies, OR is 1 - (1 - a)(1 - b), NOT is 1 - a. A condition about
which nothing is known keeps a third of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import pyarrow as pa

from elasticscan.filters import (
    EVERYTHING,
    NULLS,
    And,
    Expression,
    KeySet,
    Literal,
    Not,
    Or,
    column_names,
    value_set,
)
from elasticscan.metadata import HASH, FragmentStatistics, KeyHistogram, Stretch
from elasticscan.optimizer.binding import IndexCondition

UNKNOWN_SELECTIVITY = 1 / 3


def key_sets(condition: Expression | None, schema: pa.Schema) -> dict[str, KeySet]:
    """For each column that the condition limits, the values that it leaves possible."""
    if condition is None:
        return {}
    names = sorted(column_names(condition)) or schema.names[:1]
    found = {name: value_set(condition, schema.field(name)).keys for name in names}
    return {name: keys for name, keys in found.items() if keys != EVERYTHING}


def may_match(statistics: FragmentStatistics, block_index: int, key_sets: Mapping[str, KeySet]) -> bool:
    """Whether a block can have a row all of whose values are in the sets; False is certain."""
    for name, keys in key_sets.items():
        if keys.is_empty:
            return False
        column = statistics.columns.get(name)
        if column is not None:
            block = column.blocks[block_index]
            nulls = block.nulls > 0 and keys.overlaps(*NULLS.intervals[0][:2])
            if not nulls and not keys.overlaps(block.low, block.high):
                return False
    return True


def rows_to_read(stretches: Sequence[Stretch], key_sets: Mapping[str, KeySet]) -> float:
    """About how many rows a direct scan looks at: those that statistics do not rule out."""
    matching: dict[int, int] = {}
    total = 0.0
    for stretch in stretches:
        for fragment in stretch.fragments:
            if id(fragment) not in matching:
                matching[id(fragment)] = _rows_in_blocks(fragment, key_sets)
        found = [matching[id(fragment)] for fragment in stretch.fragments]
        if any(found):
            read = found if stretch.by_block else [fragment.rows for fragment in stretch.fragments]
            total += sum(rows * share for rows, share in zip(read, stretch.shares, strict=True))
    return total


def _rows_in_blocks(fragment: FragmentStatistics, key_sets: Mapping[str, KeySet]) -> int:
    """The rows of the blocks that may match."""
    return sum(rows for at, rows in enumerate(fragment.block_rows) if may_match(fragment, at, key_sets))


def set_selectivity(name: str, keys: KeySet, statistics: Sequence[FragmentStatistics]) -> float | None:
    """The share of rows with a value in the set, 0 to 1; None if there are no statistics of the column."""
    rows, found = 0, 0.0
    for fragment in statistics:
        column = fragment.columns.get(name)
        if column is not None:
            rows += fragment.rows
            found += min(fragment.rows, sum(column.rows_between(*each) for each in keys.intervals))
    return found / rows if rows else None


def selectivity(
    condition: Expression | None, schema: pa.Schema, statistics: Sequence[FragmentStatistics]
) -> float:
    """The share of rows for which the condition is true, 0 to 1."""
    return 1.0 if condition is None else _Selectivity(schema, statistics).of(condition)


class _Selectivity:
    def __init__(self, schema: pa.Schema, statistics: Sequence[FragmentStatistics]) -> None:
        self.schema, self.statistics = schema, statistics

    def of(self, node: Expression) -> float:
        names = column_names(node)
        if len(names) == 1:
            known = self.of_column(node, next(iter(names)))
            if known is not None:
                return known
        match node:
            case Literal(value=value):
                return 1.0 if value is True else 0.0
            case And():
                return prod(map(self.of, _by_column(node.parts, And)))
            case Or():
                return 1.0 - prod(1.0 - self.of(part) for part in _by_column(node.parts, Or))
            case Not():
                return 1.0 - self.of(node.child)
        return UNKNOWN_SELECTIVITY

    def of_column(self, node: Expression, name: str) -> float | None:
        found = value_set(node, self.schema.field(name))
        if found.keys == EVERYTHING and not found.exact:
            return None
        share = set_selectivity(name, found.keys, self.statistics)
        return share if share is None or found.exact else share * UNKNOWN_SELECTIVITY


def _by_column(parts: Sequence[Expression], join: Callable[..., And | Or]) -> list[Expression]:
    """The parts, with those that read the same single column as one."""
    groups: dict[frozenset[str] | int, list[Expression]] = {}
    for at, part in enumerate(parts):
        names = column_names(part)
        groups.setdefault(names if len(names) == 1 else at, []).append(part)
    if len(groups) == 1:
        return list(parts)
    return [group[0] if len(group) == 1 else join(tuple(group)) for group in groups.values()]


def index_rows(
    found: IndexCondition,
    keys_of_last: KeySet,
    histograms: Sequence[KeyHistogram],
    statistics: Sequence[FragmentStatistics],
) -> float:
    """About how many entries an index scan reads.

    `keys_of_last` are the values of the last bound column. Where that is limited to a range and
    columns before it are fixed, a range is often too narrow for the index's own histogram; then it is
    taken as that column's share of what the fixed columns leave.
    """
    if not found.bound:
        return float(sum(histogram.rows for histogram in histograms))
    if found.index.kind == HASH:
        return sum(histogram.rows_equal(*each) for histogram in histograms for each in found.ranges)
    if found.fixed == found.bound:
        return sum(
            histogram.rows_equal(*each, found.bound) for histogram in histograms for each in found.ranges
        )
    if found.bound == 1:
        single = {each[:2] for each in keys_of_last.intervals if each.single}
        return sum(
            histogram.rows_equal(*each) if each in single else histogram.rows_between(*each)
            for histogram in histograms
            for each in found.ranges
        )
    name = found.index.columns[found.bound - 1]
    share = set_selectivity(name, keys_of_last, statistics)
    share = UNKNOWN_SELECTIVITY if share is None else share
    share /= max(1, len(keys_of_last.intervals))
    total = 0.0
    for histogram in histograms:
        different = histogram.distinct[: found.fixed] or (1,)
        narrow = share * histogram.rows / max(1, different[-1])
        total += sum(histogram.rows_in(low, high, narrow) for low, high in found.ranges)
    return total
