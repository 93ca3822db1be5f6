"""The right name that a wrong one is most like, for errors that say what was meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

# Nothing that can be called so has a longer name; comparing millions of characters takes seconds.
_MOST_CHARACTERS = 512


def nearest(word: str, names: Iterable[str], likeness: float = 0.6) -> str | None:
    """The name that has most in common with a word; None where all have less than `likeness`, 0 to 1."""
    if len(word) > _MOST_CHARACTERS:
        return None
    near = get_close_matches(word, list(names), n=1, cutoff=likeness)
    return near[0] if near else None


def by_nearness(word: str, names: Iterable[str]) -> list[str]:
    """Names, those first that are most like a word, in whatever case."""
    compared = SequenceMatcher(None, "", word[:_MOST_CHARACTERS].lower())

    def likeness(name: str) -> float:
        compared.set_seq1(name[:_MOST_CHARACTERS].lower())
        return compared.ratio()

    return sorted(names, key=likeness, reverse=True)
