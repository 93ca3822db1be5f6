"""Pictures as SVG without other files: one style for the slot map and for charts.

All text is escaped here, so a name from a catalog can never become markup.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

# Distinct also for colour-blind readers, on white and on black: by Okabe and Ito, with lighter variants.
COLOURS = (
    "#0072b2 #e69f00 #009e73 #cc79a7 #56b4e9 #d55e00 #b8a800 #7570b3 #66c2a5 #fc8d62 #8da0cb #a6761d".split()  # noqa: SIM905
)
_STYLE = (
    "text{font:12px sans-serif;fill:#333}rect.paper{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}rect.paper{fill:#1b1b1f}}"
)


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """Return the text of an SVG file."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            '<rect class="paper" width="100%" height="100%"/>',
            *parts,
            "</svg>\n",
        ]
    )


def words(x: float, y: float, text: str, ends: bool = False) -> str:
    """Return a line of text that begins, or ends, at a position."""
    anchor = ' text-anchor="end"' if ends else ""
    return f'<text x="{x:g}" y="{y:g}"{anchor}>{escape(text)}</text>'
