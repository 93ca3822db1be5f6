"""The figures of `peers.py` as a picture: works down, engines across, a colour for who is faster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

LEFT, CELL, HEIGHT, HEAD = 200, 124, 30, 40
OURS, OURS_IN_SPARK = "elasticscan", "Spark: elasticscan"


def drawn(figures: Mapping[str, Mapping[str, Any]], count: int) -> str:
    """Draw all works with figures as an SVG."""
    works = {
        work: cells
        for work, cells in figures.items()
        if any(isinstance(c, float | int) for c in cells.values())
    }
    names = list(dict.fromkeys(name for cells in works.values() for name in cells))
    width, height = LEFT + CELL * len(names) + 16, HEAD + HEIGHT * len(works) + 56
    said = (
        f"{count:,} rows, one machine. Blue: elasticscan takes less (in Spark: in Spark); orange: the other."
    )
    view = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {view}>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for column, name in enumerate(names):
        weight = "bold" if name in (OURS, OURS_IN_SPARK) else "normal"
        x = LEFT + CELL * column + CELL / 2
        parts.append(
            f'<text x="{x}" y="{HEAD - 12}" text-anchor="middle" font-weight="{weight}">{escape(name)}</text>'
        )
    for row, (work, cells) in enumerate(works.items()):
        y = HEAD + HEIGHT * row
        parts.append(f'<text x="{LEFT - 12}" y="{y + 19}" text-anchor="end">{escape(work)}</text>')
        for column, name in enumerate(names):
            cell = cells.get(name)
            ours = cells.get(OURS_IN_SPARK if name.startswith("Spark") else OURS)
            x = LEFT + CELL * column
            fill = "#eef1f4" if name in (OURS, OURS_IN_SPARK) else colour(cell, ours)
            place = f'x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{HEIGHT - 2}"'
            parts.append(f'<rect {place} rx="3" fill="{fill}"/>')
            parts.append(
                f'<text x="{x + CELL / 2}" y="{y + 19}" text-anchor="middle">{escape(text(cell))}</text>'
            )
    parts.append(f'<text x="16" y="{height - 20}" fill="#555">{escape(said)}</text></svg>')
    return "\n".join(parts) + "\n"


def colour(cell: Any, ours: Any) -> str:
    """Blue where we take less, orange where the other does, deeper with the ratio; grey where none says."""
    if not isinstance(cell, float | int) or not isinstance(ours, float | int) or not ours or not cell:
        return "#f6f6f6"
    ratio = math.log10(cell / ours)
    share = min(abs(ratio), 2) / 2
    full = (66, 133, 200) if ratio > 0 else (235, 140, 52)
    return "#" + "".join(f"{round(255 - (255 - part) * (0.12 + 0.7 * share)):02x}" for part in full)


def text(cell: Any) -> str:
    if isinstance(cell, float):
        return (
            f"{cell * 1e3:,.1f} ms"
            if cell < 0.1
            else f"{cell * 1e3:,.0f} ms"
            if cell < 1
            else f"{cell:,.1f} s"
        )
    if isinstance(cell, int):
        return f"{cell / 1e6:,.0f} MB"
    return "–" if cell is None or cell == "no such call" else "failed"
