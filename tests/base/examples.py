"""How many random examples a test draws: all in the long suites, a part of them in the quick ones."""

from __future__ import annotations

import os

THOROUGH = os.environ.get("ELASTICSCAN_THOROUGH") == "1"
"""`make check` sets this; `make test` does not: what a change needs at once is to take minutes."""


FIXED = bool(os.environ.get("CI"))
"""True where each run draws the same."""

PART = 4 if not THOROUGH else 2 if FIXED else 1
"""One of so many examples is drawn. Where `CI` is set they are the same in each run, so half of them do."""


def examples(count: int) -> int:
    """`count` in a thorough run, else a part of it, but no fewer than ten of them."""
    return min(count, max(10, count // PART))


QUERIES = int(os.environ.get("ELASTICSCAN_QUERIES", "8"))
"""Random queries of each kind that are compared with Spark's own; each takes about a second."""
