"""Suggestions for errors about a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# No name is longer, and comparing millions of characters takes seconds.
_MAX_CHARACTERS = 512


def suggest(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the most similar name, ignoring case, or "" for none."""
    if len(name) > _MAX_CHARACTERS:
        return ""
    by_lower = {each.lower(): each for each in names}
    close = get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
