"""Values as JSON: one text for the command line and for the page that shows a store."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON; NaN and infinity, which JSON lacks, become texts, as in Spark."""
    try:
        return json.dumps(value, default=plain, allow_nan=False, indent=indent)
    except ValueError:
        return json.dumps(_without_nan(value), default=plain, allow_nan=False, indent=indent)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _without_nan(part) for key, part in value.items()}
    return [_without_nan(part) for part in value] if isinstance(value, list | tuple) else value


def plain(value: Any) -> Any:
    """Convert a value without a JSON form: bytes to base64, all others to text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)
