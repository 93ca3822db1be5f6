"""The choice of the cheapest path: every row directly, rows by key, or the entries of one index.

    cost = rows scanned x weight of the path + cost of fetching missing columns

A direct scan skips blocks by their minimum and maximum, and reads the others in order. An index scan reads
fewer rows at a higher cost per row: it searches each range, and columns that are not in the index are fetched
from anywhere in the fragments. So the direct scan is chosen for filters that match many rows, an index for
selective ones, and among equally selective indexes the hash index. The cost of returned rows is the same on
every path and is omitted. The scanned rows are estimated from statistics of fragments; entries are counted.
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

# Weights, in units of one row of a direct scan (about 6 ns where they were measured). Each is the slope of
# the processor time over its count, in forced scans (index="none", index=<name>) of two million rows at two
# shards, with one run or two for each, at 0.001 % to 30 % of the rows, with all columns and with few. Rows
# are fetched in rounds. A round of many rows reads all segments of a column. So fetching costs a pass through
# the column for each round, or a segment for each value if that is less, and a small amount for each value.
DIRECT_ROW = 1.0
DIRECT_FILTER = 0.5  # for each row: the filter
DIRECT_COLUMN = 0.2  # for each row and each column that is read: the selection of matching rows
SORTED_ENTRY = 7.0  # for each entry: finding it and its row
HASH_ENTRY = 6.0  # the same with a hash index, which always needs ENTRY_FILTER, too
MERGED_ENTRY = 30.0  # in addition, if the entries of several runs are sorted together
ENTRY_FILTER = 1.0  # for each entry: the residual
SEEK = 8_000.0  # finding a range in a run
KEY_SEEK = 8_000.0  # finding a range of primary keys in a slot of a fragment
KEY_LISTED = 500.0  # finding a primary key of a list in a fragment, together with the others
FETCH_ROW = 7.0  # for each row and each column that is not in the index: its value
FETCH_SEGMENT = 2_000.0  # reading the segment of a value
FETCH_PASS = 0.27  # for each row of the table: reading the whole column
ROUND_ROWS = 25_000  # rows that one round fetches at one shard

# The assumed part of the entries with equal first columns that lie in a range of the next column.
UNKNOWN_SELECTIVITY = 1 / 3

_Statistics = Mapping[int, FragmentStatistics]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to read.

    Attributes:
        access: "direct", "key" or the index's name.
        kind: "direct", "key", "sorted" or "hash".
        rows_scanned: the estimated number of rows or entries that are read.
        condition: the condition that selects these rows or entries; None for all.
        remainder: the condition to check for each of them.
        covered: whether the entries have all columns, so that no rows are fetched.
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
    """The chosen access path, and all candidates: direct, by key, and each index.

    `bound` is the condition bound to the chosen index; None for another path.
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
        fragments: the fragments that the scan will read; `statistics` are by their ids.
        indexes: the complete indexes, each with the number of entries of each run.
        index: "auto", "none" for a direct scan, "key" for a scan by primary key, or the name of an index to
            use at any cost.
        count: estimates the number of entries in ranges.
        shards: the number of shards with rows.
        key: the condition bound to the primary key.

    Raises `NotFound` for an unknown name, and `InvalidOption` for an index that cannot be used.
    """
    sets = column_sets(condition, table.schema)
    costs = _Costs(condition, frozenset(table.primary_key), frozenset(needed_columns), shards)
    rows, scanned = rows_to_read(fragments, key.slots, statistics, sets)
    ways: list[_Way] = [(costs.directly(DIRECT, scanned, condition), None)]
    if key.keys is not None:
        limited = EVERYTHING if key.limited is None else sets.get(key.limited, EVERYTHING)
        by_key, seeks = _rows_by_key(key, len(table.primary_key), limited, fragments, statistics)
        seek = KEY_LISTED if isinstance(key.keys, KeyList) else KEY_SEEK
        ways.append((costs.directly(KEY, by_key, key.residual, seeks * seek, key.text), None))
    for info, runs in indexes:
        bound = bind(info, condition, table.schema)
        entries = count(info, bound.ranges) if bound is not None and bound.bound else float(sum(runs))
        ways.append((costs.by_index(info, bound, len(runs), entries, rows), bound))
    if index == NONE:
        chosen = ways[0]
    elif index == AUTO:
        chosen = min((way for way in ways if way[0].usable), key=lambda way: way[0].cost)
    else:
        chosen = _named(index, ways[1:], table.primary_key)
    return Choice(*chosen, tuple(candidate for candidate, _ in ways))


_Way = tuple[Candidate, IndexCondition | None]
CountEntries = Callable[[IndexInfo, Ranges], float]


def _named(name: str, ways: Sequence[_Way], primary_key: Sequence[str]) -> _Way:
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
    """The costs of the paths of a read with certain columns and a condition."""

    def __init__(
        self, condition: Expression | None, primary_key: frozenset[str], needed: frozenset[str], shards: int
    ) -> None:
        self.primary_key, self.needed, self.shards = primary_key, needed, shards
        self.filter = _shown(condition)
        self.read = needed | (frozenset() if condition is None else column_names(condition))

    def directly(
        self, path: str, rows: float, rest: Expression | None, seeks: float = 0.0, text: str | None = None
    ) -> Candidate:
        """Return the path that reads `rows` rows in place, and checks `rest` for each."""
        weight = DIRECT_ROW + (DIRECT_FILTER + DIRECT_COLUMN * len(self.read) if rest else 0.0)
        return Candidate(path, path, rows, rows * weight + seeks, _shown(rest), condition=text)

    def by_index(
        self, index: IndexInfo, bound: IndexCondition | None, runs: int, scanned: float, rows: float
    ) -> Candidate:
        """Return the path by `scanned` entries of an index with `runs` runs, of a table of `rows` rows."""
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
        # The cost of one column.
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
    """Return estimates of the rows in slots, and of the rows that a direct scan reads, from statistics.

    Where fragments may have several versions of a row, all versions are read if one may match.
    """
    parts: list[tuple[SlotSet, float, float]] = []  # slots of a fragment; rows in each slot, and rows read
    served = shared = matched = SlotSet()
    for fragment in fragments:
        blocks, rows = statistics.get(fragment.id), fragment.rows  # None where damage hides them
        matching, part = rows, fragment.slots & slots
        if blocks is not None:
            rows = blocks.rows
            fitting = (size for at, size in enumerate(blocks.block_rows) if blocks.may_match(at, key_sets))
            matching = sum(fitting) if key_sets else rows
        shared, served = shared | (served & part), served | part
        if matching:
            matched |= part
            matching = matching if fragment.unique and not fragment.tombstones else rows
        share = _share_of_slot(fragment)
        parts.append((part, share * rows, share * matching))
    return sum(len(part) * rows for part, rows, _ in parts), sum(
        len(part - shared) * matching + len(part & shared & matched) * rows for part, rows, matching in parts
    )


def _share_of_slot(fragment: Fragment) -> float:
    """Return the estimated part of a fragment's rows in one of its slots, 0 to 1."""
    return 1 / max(fragment.slots_written, len(fragment.slots), 1)


def _rows_by_key(
    condition: KeyCondition,
    columns: int,
    keys_of_limited: KeySet,
    fragments: Iterable[Fragment],
    statistics: _Statistics,
) -> tuple[float, float]:
    """Return estimates of the rows in the ranges of a condition, and of the seeks that find them.

    The primary key has `columns` columns. `keys_of_limited` are the values of `condition.limited`.
    """
    keys = condition.keys
    assert keys is not None, "a condition that limits no keys reads none by key"
    in_all_slots = isinstance(keys, KeyRanges) and keys.by_slot is None
    keys_per_slot = keys.count / (1 if in_all_slots else len(condition.slots) or 1)
    seeks = rows = 0.0
    for fragment in fragments:
        known, slots = statistics.get(fragment.id), len(fragment.slots & condition.slots)
        share = UNKNOWN_SELECTIVITY if condition.fixed else 1.0
        if condition.limited is not None and known is not None:
            share *= known.share_of(condition.limited, keys_of_limited)
        seeks += keys_per_slot * slots
        rows += share * fragment.rows * _share_of_slot(fragment) * slots
    return (seeks if condition.fixed == columns else rows), seeks
