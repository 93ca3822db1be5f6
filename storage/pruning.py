"""Pruning: what statistics of fragments rule out is not read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elasticscan.filters import KeySets
from elasticscan.metadata import Fragment, FragmentStatistics
from elasticscan.topology import SlotSet

StatisticsOf = Callable[[Fragment], FragmentStatistics | None]


class PagePruner:
    """Prunes one page: fragments and record batches whose statistics rule the request's key sets out.

    `rows` counts what is pruned, about: slots of a fragment count as equally large.
    """

    def __init__(self, statistics: StatisticsOf, key_sets: KeySets) -> None:
        self._statistics, self._key_sets = statistics, key_sets
        self.rows = 0

    def matching(self, fragments: Sequence[Fragment], slots: SlotSet) -> list[Fragment]:
        """Return the fragments that may hold a row that meets the filter.

        One among those of some slots is enough for all to be read: a newer version that does not match the
        filter, or a tombstone, hides an older one that does.
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
        """Return whether a batch of a fragment cannot hold a row that meets the filter."""
        statistics = self._statistics(fragment)
        if statistics is None or statistics.may_match(batch, self._key_sets):
            return False
        self.rows += statistics.block_rows[batch]
        return True
