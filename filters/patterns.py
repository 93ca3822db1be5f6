"""LIKE patterns: `%` and `_` are wildcards, and a backslash before either of them makes it plain."""

from __future__ import annotations

import re

from elasticscan.base.errors import FilterError

_PLAIN = re.compile(r"(?:[^%_\\]|\\[%_\\])*", re.DOTALL)
_VALID = re.compile(r"(?:[^\\]|\\[%_\\])*", re.DOTALL)


def check_pattern(pattern: str) -> None:
    """Raise `FilterError` for a pattern that Spark refuses."""
    if not _VALID.fullmatch(pattern):
        raise FilterError(f"the pattern {pattern!r} has \\ before something else than %, _ or \\; double it")


def escaped(text: str) -> str:
    """Return the pattern of nothing but this text."""
    return re.sub(r"([%_\\])", r"\\\1", text)


def prefix_of(pattern: str) -> tuple[str, str]:
    """Return the text with which all texts of a pattern begin, and what is left of the pattern."""
    plain = _PLAIN.match(pattern)
    assert plain is not None, "the empty text is plain"
    return re.sub(r"\\(.)", r"\1", plain[0], flags=re.DOTALL), pattern[plain.end() :]
