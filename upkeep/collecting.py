"""The moment for a collection of garbage, which looks at every file of every root."""

from __future__ import annotations

from elasticscan.upkeep.policy import Policy


def is_collection_due(dropped_files: int, since_last_seconds: float, policy: Policy) -> bool:
    """Return True if garbage should be collected now.

    Files that the catalog dropped are a reason as soon as they are many, or have waited for a while; files
    that died writers left are in no catalog, so all roots are looked at now and then.

    Args:
        dropped_files: how many were dropped before the grace period.
        since_last_seconds: how long ago the last collection ended; infinite if there never was one.
        policy: the bounds.
    """
    if dropped_files >= policy.garbage_files:
        return True
    waited = policy.garbage_seconds if dropped_files else policy.orphan_seconds
    return since_last_seconds >= waited
