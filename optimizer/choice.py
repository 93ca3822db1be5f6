"""Choosing how to read: every row directly, or the entries of one index.

    cost = rows scanned x weight of the path + what fetching missing columns costs

A direct scan skips blocks whose minimum and maximum rule them out, and reads the rest in order. An
index scan reads fewer rows at a higher price each, because entries are looked up one range after
another, and rows that the entries do not hold are fetched from all over their fragments. So the
direct scan wins with filters that match many rows, an index with selective ones, and among
equally selective indexes the hash index. What the returned rows cost is the same on every path, so it
is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, NotFound
from elasticscan.base.suggestions import suggest
from elasticscan.filters import EVERYTHING, Expression, column_names, column_sets, to_text
from elasticscan.metadata import (
    AUTO,
    DIRECT,
    KEY,
    NONE,
    SORTED,
    FragmentStatistics,
    IndexInfo,
    SlotInterval,
)
from elasticscan.optimizer.binding import IndexCondition, Ranges, bind
from elasticscan.optimizer.estimates import rows_by_key, rows_to_read, within
from elasticscan.optimizer.keys import KeyCondition
from elasticscan.protocol import KeyList

# Weights, in units of reading one row of a direct scan, about 6 ns where they were calibrated: processor
# time of forced scans (index="none", index=<name>) of two million rows at two shards, with one run or two
# for each, at 0.001 % to 30 % of the rows, with all columns and with few. Each weight is the slope of the
# time over its count. Rows are fetched in rounds, and a round that wants many reads the segments of all
# rows: so fetching costs a pass through the columns for each round, or a segment for each value if that is
# less, and besides something for each value.
DIRECT_ROW = 1.0
DIRECT_FILTER = 0.5  # evaluating the filter, for each row
DIRECT_COLUMN = 0.2  # picking the rows that met it, for each row and each column read
SORTED_ENTRY = 7.0  # an entry is found, and its row looked up
HASH_ENTRY = 6.0  # comparing numbers costs less; with ENTRY_FILTER, which it always needs, too
MERGED_ENTRY = 30.0  # besides, where the entries of several runs are sorted together
ENTRY_FILTER = 1.0  # evaluating the remainder, for each entry
SEEK = 8_000.0  # finding the ends of a range in a run
KEY_SEEK = 8_000.0  # finding the ends of a range of primary keys in a slot of a fragment
KEY_LISTED = 500.0  # finding one of a list of primary keys in a fragment, together with the others
FETCH_ROW = 7.0  # taking a value that the entries lack, for each row and each such column
FETCH_SEGMENT = 2_000.0  # reading the segment where it lies
FETCH_PASS = 0.27  # reading all of such a column, for each row of the table
ROUND_ROWS = 25_000  # rows that one round fetches at one shard


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to read.

    Attributes:
        access: "direct", "key" or the index's name.
        kind: "direct", "key", "sorted" or "hash".
        rows_scanned: about how many rows or entries are looked at.
        condition: what decides which rows or entries are looked at; None means all.
        remainder: what is checked of each of them.
        covered: whether no rows have to be fetched alongside the entries.
        usable, reason: whether it could be chosen, and why not.
    """

    access: str
    kind: str
    rows_scanned: float
    cost: float
    remainder: str | None
    covered: bool = True
    condition: str | None = None
    usable: bool = True
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The access path that was chosen, and all candidates: the direct one, that by key, and the indexes.

    `bound` says how the index is read; None without one.
    """

    candidate: Candidate
    bound: IndexCondition | None
    candidates: tuple[Candidate, ...]

    @property
    def index(self) -> IndexInfo | None:
        return None if self.bound is None else self.bound.index

    @property
    def by_key(self) -> bool:
        return self.candidate.kind == KEY


def choose(
    condition: Expression | None,
    schema: pa.Schema,
    primary_key: Sequence[str],
    needed_columns: Iterable[str],
    intervals: Sequence[SlotInterval],
    statistics: Mapping[int, FragmentStatistics],
    indexes: Sequence[tuple[IndexInfo, Sequence[int]]],
    index: str,
    count: CountEntries,
    shards: int = 1,
    key: KeyCondition | None = None,
) -> Choice:
    """Return the cheapest way to read the rows that meet a condition.

    Args:
        needed_columns: the columns to return.
        intervals: the slots of the fragments that the scan will read.
        statistics: of these fragments, by their ids.
        indexes: the ready ones, each with the entries of its runs.
        index: "auto", "none" for a direct scan, "key" for one by primary key, or the name of the index to
            take whatever it costs.
        count: counts the entries in some ranges of an index, about.
        shards: over how many shards the rows lie.
        key: the condition bound to the primary key.

    Raises `NotFound` for another name, and `InvalidOption` for an index that is of no use for the condition.
    """
    if key is not None:
        intervals = within(intervals, key.slots)
    costs = _Costs(condition, schema, frozenset(primary_key), frozenset(needed_columns), shards)
    sets = column_sets(condition, schema)
    rows, scanned = rows_to_read(intervals, statistics, sets)
    ways: list[_Way] = [(costs.directly(DIRECT, scanned, costs.filter), None)]
    if key is not None and key.keys is not None:
        limited = EVERYTHING if key.limited is None else sets.get(key.limited, EVERYTHING)
        found, seeks = rows_by_key(key, len(primary_key), limited, intervals, statistics)
        residual = None if key.residual is None else to_text(key.residual)
        seek = KEY_LISTED if isinstance(key.keys, KeyList) else KEY_SEEK
        ways.append((costs.directly(KEY, found, residual, seeks * seek, key.text), None))
    for info, runs in indexes:
        bound = bind(info, condition, schema)
        entries = count(info, bound.ranges) if bound is not None and bound.bound else float(sum(runs))
        ways.append((costs.by_index(info, bound, len(runs), entries, rows), bound))
    if index == NONE:
        taken = ways[0]
    elif index == AUTO:
        taken = min((way for way in ways if way[0].usable), key=lambda way: way[0].cost)
    else:
        taken = _take(index, ways[1:], primary_key)
    return Choice(*taken, tuple(candidate for candidate, _ in ways))


_Way = tuple[Candidate, IndexCondition | None]
CountEntries = Callable[[IndexInfo, Ranges], float]


def _take(name: str, ways: Sequence[_Way], primary_key: Sequence[str]) -> _Way:
    by_name = {way[0].access: way for way in ways}
    if name == KEY and name not in by_name:
        raise InvalidOption(
            f"index={KEY!r} reads ranges of primary keys, and the filter limits no {primary_key[0]}; "
            "index='auto' chooses by cost",
            index=KEY,
        )
    if name not in by_name:
        hint = suggest(name, by_name) or "; Table.indexes() lists them, index='auto' chooses by cost"
        raise NotFound(f"there is no index {name!r}{hint}", index=name, kind="index")
    candidate, _ = by_name[name]
    if not candidate.usable:
        raise InvalidOption(f"the index {name!r} cannot be taken: {candidate.reason}", index=name)
    return by_name[name]


class _Costs:
    """Costs of the paths of a read, which depend on its columns and its condition."""

    def __init__(
        self,
        condition: Expression | None,
        schema: pa.Schema,
        primary_key: frozenset[str],
        needed: frozenset[str],
        shards: int,
    ) -> None:
        self.primary_key, self.needed, self.shards = primary_key, needed, shards
        self.filter = None if condition is None else to_text(condition)
        self.read = needed | (frozenset() if condition is None else column_names(condition))

    def directly(
        self, path: str, rows: float, remainder: str | None, seeks: float = 0.0, condition: str | None = None
    ) -> Candidate:
        """Return the path by which so many rows are read from where they are."""
        weight = DIRECT_ROW + (DIRECT_FILTER + DIRECT_COLUMN * len(self.read) if remainder else 0.0)
        return Candidate(path, path, rows, rows * weight + seeks, remainder, condition=condition)

    def by_index(
        self,
        index: IndexInfo,
        bound: IndexCondition | None,
        runs: int,
        scanned: float,
        rows: float,
    ) -> Candidate:
        """Return the path by so many entries of an index with some runs, of a table with so many rows."""
        entries = self.primary_key | {*index.columns, *index.include}
        candidate = partial(Candidate, index.name, index.kind)
        if bound is None:
            why = f"a hash index needs the values of all its columns ({', '.join(index.columns)})"
            covered = self.read <= entries
            return candidate(0.0, float("inf"), self.filter, covered, usable=False, reason=why)
        missing = self.needed - entries
        weight = SORTED_ENTRY if index.kind == SORTED else HASH_ENTRY
        if bound.residual is not None:
            missing |= column_names(bound.residual) - entries
            weight += ENTRY_FILTER
        weight += MERGED_ENTRY if runs > self.shards else 0.0
        seeks = SEEK * len(bound.ranges) * runs if bound.bound else 0.0
        # A column of so many rows, from all over their fragments.
        passes = 1 + scanned / (ROUND_ROWS * self.shards)
        fetching = scanned * FETCH_ROW + min(scanned * FETCH_SEGMENT, passes * rows * FETCH_PASS)
        cost = scanned * weight + seeks + len(missing) * fetching
        reason = None if bound.bound else "the condition limits none of its first columns"
        return candidate(scanned, cost, bound.remainder, not missing, bound.text or None, reason=reason)
