"""Values as text: short in messages, whole in JSON."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def brief(value: Any, limit: int = 80) -> str:
    """Return `repr(value)` in one line, cut to `limit`; the type if `repr` fails (huge integers, loops)."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"{a_type(value)} that is too long to be shown"
    if "\n" in text:  # in the text of frames; `repr` of a text escapes its line ends
        text = " ".join(text[: limit * 8].split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


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
    except (ValueError, OverflowError, OSError):  # beyond the calendar, for example milliseconds
        return f"{seconds:.0f} seconds after 1970"


def a_type(value: Any) -> str:
    """Return the type of a value with its article: "an int", "a dict"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON; NaN and infinity, which JSON lacks, become texts, as in Spark."""
    try:
        return json.dumps(value, default=json_value, allow_nan=False, indent=indent)
    except ValueError:
        return json.dumps(_without_nan(value), default=json_value, allow_nan=False, indent=indent)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _without_nan(part) for key, part in value.items()}
    return [_without_nan(part) for part in value] if isinstance(value, list | tuple) else value


def json_value(value: Any) -> Any:
    """Convert a value that JSON lacks: bytes to base64, all others to text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)
