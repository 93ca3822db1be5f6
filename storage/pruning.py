"""Pruning: what statistics of fragments rule out is not read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elasticscan.filters import KeySets
from elasticscan.metadata import Fragment, FragmentStatistics
from elasticscan.storage.merge import Piece

StatisticsOf = Callable[[Fragment], FragmentStatistics | None]


class PagePruner:
    """Prunes one page: intervals and record batches whose statistics rule the request's key sets out.

    What is pruned is counted in rows, about: nothing is opened to count them, so batches, and slots,
    of one fragment count as equally large.
    """

    def __init__(self, statistics: StatisticsOf, key_sets: KeySets) -> None:
        self._look_up, self._key_sets = statistics, key_sets
        self.rows = 0
        self._statistics: dict[int, FragmentStatistics | None] = {}
        self._whole: dict[int, bool] = {}
        self._runs: dict[int, tuple[int, int]] = {}

    def prunes(self, fragments: Sequence[Fragment], piece: Piece) -> bool:
        """Return whether none of the fragments that serve a piece may match.

        One that may is enough for all to be read: a newer version that does not match the filter,
        or a tombstone, hides an older one that does.
        """
        if any(self._may_match(fragment, None) for fragment in fragments):
            return False
        for fragment in fragments:
            slots = max(fragment.slots_written, len(fragment.slots), 1)
            self.rows += _share(fragment.rows, piece.start, piece.end, slots)
        return True

    def _may_match(self, fragment: Fragment, batch: int | None) -> bool:
        """Return whether a batch of a fragment, or for None any, can hold a row that meets the filter."""
        if fragment.id not in self._statistics:
            self._statistics[fragment.id] = self._look_up(fragment)
        statistics = self._statistics[fragment.id]
        if statistics is None:
            return True
        if batch is not None:
            return statistics.may_match(batch, self._key_sets)
        if fragment.id not in self._whole:
            batches = range(len(statistics.block_rows))
            self._whole[fragment.id] = any(statistics.may_match(at, self._key_sets) for at in batches)
        return self._whole[fragment.id]

    def next_match(self, fragment: Fragment, index: int, count: int) -> int:
        """Return the first of the `count` batches, from `index` on, that may match; `count` if none does.

        The last run of batches that do not match is remembered, since it may go over many
        intervals: they are neither asked for nor counted again.
        """
        start, end = self._runs.get(fragment.id, (0, 0))
        if start <= index < end:
            return end
        end = index
        while end < count and not self._may_match(fragment, end):
            end += 1
        if end > index:
            self._runs[fragment.id] = (index, end)
            self.rows += _share(fragment.rows, index, end, count)
        return end


def _share(rows: int, start: int, end: int, parts: int) -> int:
    """About how many of `rows` are in `[start, end)` of so many parts; adds up over disjoint ranges."""
    return rows * end // parts - rows * start // parts
