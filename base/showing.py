"""Values of callers inside of messages: always text, never long, whatever they are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def brief(value: Any, most: int = 80) -> str:
    """`repr(value)`, in one line and cut; the type of a value without one (very long integers, loops)."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"{a_type(value)} that is too long to be shown"
    if "\n" in text:  # of frames; texts show theirs as two characters
        text = " ".join(text[: most * 8].split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def is_whole(text: str) -> bool:
    """False for a text with half a character (a lone surrogate) in it, which no file or database takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """A text that every stream and log takes: of half a character, its number stands there."""
    return text if is_whole(text) else text.encode("utf-8", "backslashreplace").decode()


def utc(seconds: float) -> str:
    """A moment with its zone, to the microsecond: `2026-11-22T19:30:56.735123Z`."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):  # of a year that no calendar has, as of milliseconds
        return f"{seconds:.0f} seconds after 1970"


def a_type(value: Any) -> str:
    """The type of a value with its article: "an int", "a dict"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
