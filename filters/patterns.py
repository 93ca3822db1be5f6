"""LIKE patterns, turned into what Arrow's kernels look for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elasticscan.base.errors import FilterError

_SPECIAL = frozenset("\\.[]{}()*+?^$|-&")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text to look for: `kind` is equal, starts, ends, contains or regex."""

    kind: str
    text: str


def like_pattern(pattern: str, escape: str) -> Pattern:
    """Return a LIKE pattern, turned into the cheapest way to look for it."""
    pieces, shape = _like_pieces(pattern, escape)
    plain = "".join(piece for piece, sort in zip(pieces, shape, strict=True) if sort == "c")
    for simple, kind in (("c*", "equal"), ("c*%+", "starts"), ("%+c*", "ends"), ("%+c*%+", "contains")):
        if re.fullmatch(simple, shape):
            return Pattern(kind, plain)
    regexes = {"%": ".*", "_": "."}
    body = "".join(regexes.get(sort) or quote(piece) for piece, sort in zip(pieces, shape, strict=True))
    return Pattern("regex", rf"(?s)\A{body}\z")


def _like_pieces(pattern: str, escape: str) -> tuple[list[str], str]:
    """Return the characters, and for each whether it is plain (`c`) or a wildcard (`%` or `_`)."""
    pieces: list[str] = []
    shape = ""
    symbols = iter(pattern)
    for symbol in symbols:
        if symbol == escape:
            meant = next(symbols, "")
            if meant not in ("%", "_", escape):
                raise FilterError(
                    f"the pattern {pattern!r} has the escape character {escape!r} before something else than "
                    f"%, _ or itself; write it twice to mean itself"
                )
            pieces.append(meant)
            shape += "c"
        else:
            pieces.append(symbol)
            shape += symbol if symbol in ("%", "_") else "c"
    return pieces, shape


def quote(text: str) -> str:
    return "".join(f"\\{symbol}" if symbol in _SPECIAL else symbol for symbol in text)
