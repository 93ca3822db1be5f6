"""How many random examples a test draws: all in the long suites, a part of them in the quick ones."""

from __future__ import annotations

import os

THOROUGH = os.environ.get("ELASTICSCAN_THOROUGH") == "1"
"""`make check` sets this; `make test` does not: what a change needs at once is to take minutes."""


def examples(count: int) -> int:
    """`count` in a thorough run, else a quarter of it, but no fewer than ten of them."""
    return count if THOROUGH else min(count, max(10, count // 4))


QUERIES = int(os.environ.get("ELASTICSCAN_QUERIES", "8"))
"""Random queries of each kind that are compared with Spark's own; each takes about a second."""
