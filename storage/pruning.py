"""Pruning: fragments and batches are not read if their statistics rule them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elasticscan.filters import KeySets
from elasticscan.metadata import Fragment, FragmentStatistics
from elasticscan.topology import SlotSet

StatisticsOf = Callable[[Fragment], FragmentStatistics | None]


class PagePruner:
    """Finds fragments and record batches that have no row with values in the key sets of a request.

    `rows` estimates the number of pruned rows, as if all slots of a fragment were equally large.
    """

    def __init__(self, statistics: StatisticsOf, key_sets: KeySets) -> None:
        self._statistics, self._key_sets = statistics, key_sets
        self.rows = 0

    def matching(self, fragments: Sequence[Fragment], slots: SlotSet) -> list[Fragment]:
        """Return the fragments that may have a row that matches the filter.

        If it is at least one, all fragments of the slots must be read: a newer version that does not match
        the filter, or a tombstone, hides an older version that does.
        """
        found = [fragment for fragment in fragments if self._may_match(fragment)]
        if not found:
            for fragment in fragments:
                self.rows += round(fragment.density * len(slots & fragment.slots))
        return found

    def _may_match(self, fragment: Fragment) -> bool:
        statistics = self._statistics(fragment)
        return statistics is None or any(
            statistics.may_match(batch, self._key_sets) for batch in range(len(statistics.block_rows))
        )

    def prunes(self, fragment: Fragment, batch: int) -> bool:
        """Return whether a batch of a fragment has no row that matches the filter."""
        statistics = self._statistics(fragment)
        if statistics is None or statistics.may_match(batch, self._key_sets):
            return False
        self.rows += statistics.block_rows[batch]
        return True
