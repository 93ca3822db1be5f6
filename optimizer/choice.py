"""Choosing how to read: every row directly, or the entries of one index.

    cost = rows scanned x weight of the path + what fetching missing columns costs

A direct scan skips blocks whose minimum and maximum rule them out, and reads the rest in order. An
index scan reads fewer rows at a higher price each, because entries are looked up one range after
another, and rows that the entries do not hold are fetched from all over their fragments. So the
direct scan wins with filters that match many rows, an index with selective ones, and among
equally selective indexes the hash index. What the returned rows cost is the same on every path, so it
is left out. The rows that a scan looks at are estimated from statistics of fragments; entries are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from elasticscan.base.errors import InvalidOption, NotFound
from elasticscan.base.suggestions import suggest
from elasticscan.filters import EVERYTHING, Expression, KeySet, KeySets, column_names, column_sets, to_text
from elasticscan.metadata import (
    AUTO,
    DIRECT,
    KEY,
    NONE,
    SORTED,
    Fragment,
    FragmentStatistics,
    IndexInfo,
    TableInfo,
)
from elasticscan.optimizer.binding import IndexCondition, KeyCondition, Ranges, bind
from elasticscan.protocol import KeyList, KeyRanges
from elasticscan.topology import SlotSet

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

# Of the entries with the same first columns, so many are taken to be in a range of the next one.
UNKNOWN_SELECTIVITY = 1 / 3

_Statistics = Mapping[int, FragmentStatistics]


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


def choose(
    condition: Expression | None,
    table: TableInfo,
    needed_columns: Iterable[str],
    fragments: Sequence[Fragment],
    statistics: _Statistics,
    indexes: Sequence[tuple[IndexInfo, Sequence[int]]],
    index: str,
    count: CountEntries,
    shards: int,
    key: KeyCondition,
) -> Choice:
    """Return the cheapest way to read the rows that meet a condition.

    Args:
        fragments: those that the scan will read; `statistics` are by their ids.
        indexes: the ready ones, each with the entries of its runs; `count` counts those in ranges, about.
        index: "auto", "none" for a direct scan, "key" for one by primary key, or the name of the index to
            take whatever it costs.
        shards: over how many shards the rows lie.
        key: the condition bound to the primary key.

    Raises `NotFound` for another name, and `InvalidOption` for an index that is of no use for the condition.
    """
    sets = column_sets(condition, table.schema)
    costs = _Costs(condition, frozenset(table.primary_key), frozenset(needed_columns), shards)
    rows, scanned = rows_to_read(fragments, key.slots, statistics, sets)
    ways: list[_Way] = [(costs.directly(DIRECT, scanned, condition), None)]
    if key.keys is not None:
        limited = EVERYTHING if key.limited is None else sets.get(key.limited, EVERYTHING)
        found, seeks = _rows_by_key(key, len(table.primary_key), limited, fragments, statistics)
        seek = KEY_LISTED if isinstance(key.keys, KeyList) else KEY_SEEK
        ways.append((costs.directly(KEY, found, key.residual, seeks * seek, key.text), None))
    for info, runs in indexes:
        bound = bind(info, condition, table.schema)
        entries = count(info, bound.ranges) if bound is not None and bound.bound else float(sum(runs))
        ways.append((costs.by_index(info, bound, len(runs), entries, rows), bound))
    if index == NONE:
        taken = ways[0]
    elif index == AUTO:
        taken = min((way for way in ways if way[0].usable), key=lambda way: way[0].cost)
    else:
        taken = _take(index, ways[1:], table.primary_key)
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
        self, condition: Expression | None, primary_key: frozenset[str], needed: frozenset[str], shards: int
    ) -> None:
        self.primary_key, self.needed, self.shards = primary_key, needed, shards
        self.filter = _shown(condition)
        self.read = needed | (frozenset() if condition is None else column_names(condition))

    def directly(
        self, path: str, rows: float, rest: Expression | None, seeks: float = 0.0, text: str | None = None
    ) -> Candidate:
        """Return the path by which so many rows are read from where they are; `rest` is checked of each."""
        weight = DIRECT_ROW + (DIRECT_FILTER + DIRECT_COLUMN * len(self.read) if rest else 0.0)
        return Candidate(path, path, rows, rows * weight + seeks, _shown(rest), condition=text)

    def by_index(
        self, index: IndexInfo, bound: IndexCondition | None, runs: int, scanned: float, rows: float
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
        whole = None if bound.bound else "the condition limits none of its first columns"
        return candidate(scanned, cost, _shown(bound.residual), not missing, bound.text or None, reason=whole)


def _shown(condition: Expression | None) -> str | None:
    return None if condition is None else to_text(condition)


def rows_to_read(
    fragments: Iterable[Fragment], slots: SlotSet, statistics: _Statistics, key_sets: KeySets
) -> tuple[float, float]:
    """About how many rows some slots have, and how many a direct scan looks at, by statistics.

    Where several versions of a row may meet, all are read as soon as one of them may match.
    """
    found: list[tuple[SlotSet, float, float]] = []  # rows in each of some slots: all, and those looked at
    served = shared = matched = SlotSet()
    for fragment in fragments:
        blocks, rows = statistics.get(fragment.id), fragment.rows  # None where damage hides them
        matching, here = rows, fragment.slots & slots
        if blocks is not None:
            rows = blocks.rows
            fitting = (size for at, size in enumerate(blocks.block_rows) if blocks.may_match(at, key_sets))
            matching = sum(fitting) if key_sets else rows
        shared, served = shared | (served & here), served | here
        if matching:
            matched |= here
            matching = matching if fragment.unique and not fragment.tombstones else rows
        share = _share_of_slot(fragment)
        found.append((here, share * rows, share * matching))
    return sum(len(here) * rows for here, rows, _ in found), sum(
        len(here - shared) * matching + len(here & shared & matched) * rows for here, rows, matching in found
    )


def _share_of_slot(fragment: Fragment) -> float:
    """About how much of a fragment's rows is in one of its slots, 0 to 1."""
    return 1 / max(fragment.slots_written, len(fragment.slots), 1)


def _rows_by_key(
    condition: KeyCondition,
    columns: int,
    keys_of_limited: KeySet,
    fragments: Iterable[Fragment],
    statistics: _Statistics,
) -> tuple[float, float]:
    """About how many rows are in the ranges of a condition, and how many seeks find them.

    `columns` are those of the primary key; `keys_of_limited` the values of the last bound one.
    """
    keys = condition.keys
    assert keys is not None, "a condition that limits no keys reads none by key"
    in_all_slots = isinstance(keys, KeyRanges) and keys.by_slot is None
    each = keys.count / (1 if in_all_slots else len(condition.slots) or 1)
    seeks = rows = 0.0
    for fragment in fragments:
        known, slots = statistics.get(fragment.id), len(fragment.slots & condition.slots)
        share = UNKNOWN_SELECTIVITY if condition.fixed else 1.0
        if condition.limited is not None and known is not None:
            share *= known.share_of(condition.limited, keys_of_limited)
        seeks += each * slots
        rows += share * fragment.rows * _share_of_slot(fragment) * slots
    return (seeks if condition.fixed == columns else rows), seeks
