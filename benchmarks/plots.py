"""Line charts over a count as SVG; both axes are logarithmic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, MARGIN, LEGEND = 640, 360, 48, 190
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#7f7f7f", "#8c564b", "#17becf")

Points = Sequence[Mapping[str, float]]


def plotted(
    points: Points, along: str, lines: Mapping[str, str], caption: str, lowest: float, ticks: Sequence[float]
) -> str:
    """Draw an SVG with a line for each figure; a figure may be missing at some of the points.

    Args:
        points: the figures at each point, by name.
        along: the name of the figure on the horizontal axis.
        lines: the names of the drawn figures, with their labels.
        caption: the title.
        lowest: the lowest value of the vertical axis.
        ticks: the labels of the vertical axis.
    """
    highest = max(point[name] for point in points for name in lines if name in point)
    low = math.log10(lowest)
    decades = math.ceil(math.log10(max(highest, 10)) * 2) / 2
    first, last = (math.log10(points[at][along]) for at in (0, -1))

    def x(count: float) -> float:
        return MARGIN + (math.log10(count) - first) / max(last - first, 1) * (WIDTH - 2 * MARGIN - LEGEND)

    def y(value: float) -> float:
        share = (math.log10(value) - low) / (decades - low) if value > 0 else 0
        return HEIGHT - MARGIN - min(max(share, 0), 1) * (HEIGHT - 2 * MARGIN)

    right = WIDTH - MARGIN - LEGEND
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {view}><rect width="100%" height="100%" fill="white"/>'
    ]
    for value in ticks:
        if low <= math.log10(value) <= decades:
            parts.append(f'<path d="M{MARGIN} {y(value):.1f}H{right}" stroke="#ddd"/>')
            parts.append(f'<text x="{MARGIN - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    below = HEIGHT - MARGIN + 18
    parts += [
        f'<text x="{x(count):.1f}" y="{below}" text-anchor="middle">{count:,.0f}</text>'
        for count in (point[along] for point in points)
    ]
    for row, ((name, text), colour) in enumerate(zip(lines.items(), COLOURS, strict=False)):
        there = [point for point in points if name in point]
        path = " ".join(f"{x(point[along]):.1f},{y(point[name]):.1f}" for point in there)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        at = MARGIN + 20 * row
        parts.append(f'<path d="M{right + 16} {at}h20" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{right + 42}" y="{at + 4}">{text}</text>')
    parts.append(f'<text x="{MARGIN}" y="{MARGIN - 20}">{caption}</text></svg>')
    return "\n".join(parts) + "\n"
