"""Values of callers as short text in messages."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any


def brief(value: Any, most: int = 80) -> str:
    """Return `repr(value)` in one line, cut to `most`; the type where that fails (huge integers, loops)."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"{a_type(value)} that is too long to be shown"
    if "\n" in text:  # of frames; texts show theirs as two characters
        text = " ".join(text[: most * 8].split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def is_whole(text: str) -> bool:
    """Return whether a text has no lone surrogate, which no file or database accepts."""
    return re.search("[\ud800-\udfff]", text) is None


def printable(text: str) -> str:
    """Return a text that every stream and log accepts: lone surrogates are escaped."""
    return text if is_whole(text) else text.encode("utf-8", "backslashreplace").decode()


def utc(seconds: float) -> str:
    """Format a moment with its zone, to the microsecond: `2026-11-22T19:30:56.735123Z`."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):  # of a year that no calendar has, as of milliseconds
        return f"{seconds:.0f} seconds after 1970"


def a_type(value: Any) -> str:
    """Return the type of a value with its article: "an int", "a dict"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
