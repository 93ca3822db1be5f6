"""LIKE patterns, turned into what Arrow's kernels look for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elasticscan.base.errors import FilterError


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text to look for: `kind` is equal, starts, ends, contains or regex.

    `prefix` begins all texts that have it.
    """

    kind: str
    text: str
    prefix: str = ""


def pattern_of(kind: str, pattern: str, escape: str) -> Pattern:
    """Return the pattern of a `Match`, turned into the cheapest way to look for it."""
    if kind == "STARTSWITH":
        return Pattern("starts", pattern, pattern)
    if kind in ("ENDSWITH", "CONTAINS"):
        return Pattern("ends" if kind == "ENDSWITH" else "contains", pattern)
    pieces, shape = _like_pieces(pattern, escape)
    plain = "".join(piece for piece, sort in zip(pieces, shape, strict=True) if sort == "c")
    prefix = "".join(pieces[: len(shape) - len(shape.lstrip("c"))])
    for simple, found in (("c*", "equal"), ("c*%+", "starts"), ("%+c*", "ends"), ("%+c*%+", "contains")):
        if re.fullmatch(simple, shape):
            return Pattern(found, plain, prefix)
    regexes = {"%": ".*", "_": "."}
    body = "".join(regexes.get(sort) or re.escape(piece) for piece, sort in zip(pieces, shape, strict=True))
    return Pattern("regex", rf"(?s)\A{body}\z", prefix)


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
