"""Groups of rows that earlier transactions of this process have proved to be whole.

Rows are hardly ever changed, and new ones have higher keys. So the group of the moment is mostly one that is
remembered, and some rows beyond it: only these are read. Nothing is concluded from what may have happened
since, be it a commit, a merge, a move or a restore. The digests of the remembered and of the newer rows must
add up to the sum that the catalog has now, which those of no other rows do; else all of the group is read. So
it is where there is no newer row: nothing but that sum would then say that the remembered ones still stand.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from elasticscan.catalog.failures import not_whole

Group = tuple[str, int, int]  # kind, and the values of at most two columns
Counted = tuple[int, int]  # rows, sum of their digests
Sums = Mapping[Group, Counted]

_HALF, _WHOLE = 1 << 63, 1 << 64
_MOST_GROUPS = 128
_MOST_ROWS = 4096  # of one group; those with more are read whole


def to_signed(number: int) -> int:
    """Return a number modulo 2^64, as databases can keep it."""
    return (number + _HALF) % _WHOLE - _HALF


def plus(a: Counted, b: Counted) -> Counted:
    return a[0] + b[0], to_signed(a[1] + b[1])


def stored_sum(row: Sequence[Any]) -> tuple[Group, Counted]:
    """Return a row of `group_digests`; ValueError where a value is not of its column's type.

    SQLite keeps what damage makes of a number, a text or one beyond 64 bits, and hands it out as that.
    """
    kind, *numbers = row
    if type(kind) is not str or any(type(number) is not int for number in numbers):
        raise ValueError(f"{tuple(row)!r} are no sums of a group")
    part, shard, rows, total = numbers
    return (kind, part, shard), (rows, total)


@dataclass(frozen=True, slots=True)
class RememberedGroup:
    """Rows in the order of their keys, and the sums of the groups that they are."""

    rows: Sequence[Any]
    sums: Sums


def complete(before: RememberedGroup, newer: Sums, stored: Sums) -> bool:
    """Return whether remembered and newer rows, of these sums, are the groups of the stored sums."""
    groups = {**before.sums, **newer}
    nothing = (0, 0)
    added = {group: plus(before.sums.get(group, nothing), newer.get(group, nothing)) for group in groups}
    return added == stored


class RememberedGroups:
    """The groups that were read last. Threads may share them."""

    def __init__(self) -> None:
        self._groups: OrderedDict[Hashable, RememberedGroup] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> RememberedGroup | None:
        with self._lock:
            return self._groups.get(key)

    def keep(self, key: Hashable, group: RememberedGroup) -> None:
        with self._lock:
            self._groups.pop(key, None)
            if len(group.rows) <= _MOST_ROWS:
                self._groups[key] = group
            if len(self._groups) > _MOST_GROUPS:
                self._groups.popitem(last=False)

    def forget(self) -> None:
        with self._lock:
            self._groups.clear()


def compare(sums: Sums, stored: Sums) -> None:
    """Raise `StoreDamaged` unless the sums of groups are those stored."""
    for group in {*sums, *stored}:
        has, should = sums.get(group, (0, 0)), stored.get(group, (0, 0))
        if has != should:
            kind, part, shard = group
            of = f" of table {part}" if part else ""
            at = f" at shard {shard}" if shard else ""
            raise not_whole(
                f"the {kind}{of}{at} are not those that were entered ({has[0]} rows, {should[0]} counted)",
                kind=kind,
            )
