"""Four of the works of docs/peers.md as bars, a group for each, a bar for each engine that has it.

    python benchmarks/peer_bars.py > docs/peers-bars.svg

The figures are those of the page's table. Each group has a scale of its own, from nothing to its slowest.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from elasticscan.base.drawing import COLOURS, picture, words

PAGE = Path(__file__).resolve().parents[1] / "docs" / "peers.md"
OURS = "elasticscan"
# Engines of other kinds: a Redis has no scan but one key after the other, which would hide all other bars.
LEFT_OUT = ("Spark: ", "Redis")
# Reading all, finding few, changing some, and what others are quicker at.
WORKS = {
    "full scan": "all of a million rows",
    "filter, 0.1 %": "a thousand rows by a condition",
    "upsert of 1 %": "upsert of ten thousand rows",
    "1,000 small commits, each": "a small commit",
}
LEFT, WIDTH, LINE, GAP = 150, 220, 18, 26
GROUP = LEFT + WIDTH + 90
_DURATION = re.compile(r"([\d.,]+) (ms|s)")


def figures(page: str) -> dict[str, dict[str, float]]:
    """Seconds of each work by engine that has tables, in Python, from the first table of the page."""
    first = page[page.index("\n| ") + 1 :].split("\n\n", maxsplit=1)[0]
    lines = [line.strip("|").split("|") for line in first.splitlines() if line.startswith("| ")]
    engines = [cell.strip() for cell in lines[0]]
    found: dict[str, dict[str, float]] = {}
    for line in lines[1:]:
        work, *cells = (cell.strip() for cell in line)
        found[work] = {
            engine: seconds
            for engine, cell in zip(engines[1:], cells, strict=True)
            if not engine.startswith(LEFT_OUT) and (seconds := _seconds(cell)) is not None
        }
    return {work: found[work] for work in WORKS}


def drawn(works: Mapping[str, Mapping[str, float]]) -> str:
    """The groups, two beside each other, as an SVG."""
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


def _seconds(cell: str) -> float | None:
    match = _DURATION.fullmatch(cell)
    return match and float(match[1].replace(",", "")) / (1_000 if match[2] == "ms" else 1)


def _shown(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


if __name__ == "__main__":
    sys.stdout.write(drawn(figures(PAGE.read_text(encoding="utf-8"))))
