"""Four tasks of `peers.py` as bars: a group for each task, a bar for each engine that supports it.

Each group has its own scale, from zero to its slowest engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticscan.base.drawing import COLOURS, picture, words

OURS = "elasticscan"
# Engines of other kinds are not drawn: Redis scans key by key, and its long bar would make all others tiny.
LEFT_OUT = ("Spark: ", "Redis")
# A full read, a selective read, a change of a few rows, and tasks at which other engines are faster.
WORKS = {
    "full scan": "all rows",
    "filter, 0.1 %": "one row of a thousand, by a condition",
    "upsert of 1 %": "upsert of one row of a hundred",
    "1,000 small commits, each": "a small commit",
}
LEFT, WIDTH, LINE, GAP = 150, 220, 18, 26
GROUP = LEFT + WIDTH + 90


def drawn(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw the groups in two columns as an SVG, for engines with tables, used from Python."""
    works = {
        work: {
            engine: float(seconds)
            for engine, seconds in figures[work].items()
            if not engine.startswith(LEFT_OUT) and isinstance(seconds, float)
        }
        for work in WORKS
        if work in figures
    }
    parts, tall = [], max(len(engines) for engines in works.values()) * LINE + LINE + GAP
    for at, (work, engines) in enumerate(works.items()):
        left, top = at % 2 * GROUP, at // 2 * tall + 14
        parts.append(words(left + LEFT, top, WORKS[work]))
        most = max(engines.values())
        for row, (engine, seconds) in enumerate(sorted(engines.items(), key=lambda one: one[1]), 1):
            y, width = top + row * LINE - 10, max(seconds / most * WIDTH, 1)
            fill = COLOURS[0] if engine == OURS else COLOURS[4]
            parts += [
                words(left + LEFT - 8, y + 11, engine, ends=True),
                f'<rect x="{left + LEFT}" y="{y}" width="{width:.1f}" height="13" fill="{fill}"/>',
                words(left + LEFT + width + 6, y + 11, _shown(seconds)),
            ]
    rows = (len(works) + 1) // 2
    return picture(2 * GROUP, rows * tall, "The same work in other stores: shorter bars are faster", parts)


def _shown(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
