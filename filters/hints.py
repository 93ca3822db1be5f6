"""Hints what to write in place of SQL that people bring along and that no condition has here.

Errors about texts that cannot be read, and about functions that there are not, end with these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_NOW = (
    "a condition has no clock: hand in the time, as filter='at < :now' with parameters={'now': "
    "datetime.now(UTC)}, or write it: TIMESTAMP '2026-01-31 12:00:00Z' (in update's set: the value itself)"
)
_SPANS = "compare with the bounds of a span: at >= TIMESTAMP '2026-01-01' AND at < TIMESTAMP '2026-01-02'"

# Words for the time of a call; some of them stand without parentheses, as columns do.
CLOCKS = frozenset(
    {
        "now",
        "current_timestamp",
        "localtimestamp",
        "getdate",
        "sysdate",
        "totimestamp",
        "unix_timestamp",
        "current_date",
        "curdate",
        "today",
        "current_time",
        "currentdate",
    }
)

# Names of no value in other languages, which are columns to a condition.
_NO_VALUES = {
    **dict.fromkeys(("none", "nil", "undefined", "na"), "write km IS NULL, or km IS NOT NULL"),
    **dict.fromkeys(("nan", "np.nan"), "write isnan(km), or NOT isnan(km)"),
}

# Functions, by what they do elsewhere.
FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(CLOCKS, _NOW),
        **dict.fromkeys(
            ("date_add", "date_sub", "dateadd", "datediff", "date_diff", "date_trunc", "trunc", "interval"),
            _SPANS,
        ),
        **dict.fromkeys(("date", "to_date"), "write DATE '2026-01-31', or CAST(at AS DATE)"),
        **dict.fromkeys(
            ("token", "murmur3", "hash", "murmur3_hash"),
            "rows are spread by themselves, and scans divided by pages and tasks: leave it out",
        ),
        "objectid": "keys are values of a column: id = 7, or text in quotes",
        "mintimeuuid": _SPANS,
        "maxtimeuuid": _SPANS,
        **dict.fromkeys(
            ("rand", "random", "uuid", "newid"),
            "a condition gives the same rows each time: use Spark or DuckDB",
        ),
        **dict.fromkeys(
            ("instr", "locate", "position", "charindex", "strpos"), "contains(city, 'sl') tells it"
        ),
        **dict.fromkeys(
            ("array_contains", "size", "element_at"), "Spark and DuckDB have it: lists are values"
        ),
    }
)

# Texts that cannot be read: what is met in them, and what to write.
_TEXTS = (
    (
        r"^\s*SELECT\b",
        "a filter is a condition alone, as km > 1; `elasticscan sql`, DuckDB and Spark take queries",
    ),
    (r"^\s*WHERE\b", "leave the word WHERE out"),
    (r"^\s*\{|\$(?:gt|gte|lt|lte|eq|ne|in|and|or|exists|regex)\b", "write SQL: id = 7 AND km > 1"),
    (r"^\s*\(?\s*\w+\s*(?:,\s*\w+\s*)+\)?\s*$", "columns are named in the argument or option columns"),
    (r"\bALLOW\s+FILTERING\b", "leave ALLOW FILTERING out: any condition may be asked"),
    (r"\bORDER\s+BY\b", "the argument order_by says the order"),
    (r"\b(?:LIMIT|OFFSET|FETCH)\s+\d", "the argument limit says how many"),
    (r"\b(?:GROUP\s+BY|HAVING)\b", "aggregate(values, group_by) groups"),
    (r"\bUSING\s+TTL\b|\bIF\s+(?:NOT\s+)?EXISTS\b", "leave it out: a filter is a condition on rows"),
    (r"\bCONTAINS\b", "write contains(city, 'sl')"),
    (r"\bSTARTS\s+WITH\b", "write startswith(city, 'O')"),
    (r"&&", "write AND"),
    (r"!~|~\*?", "write city RLIKE 'O.*'"),
    (r"\bINTERVAL\b", _SPANS),
    (r"%\(?\w*\)?s\b", "a value that is handed in is written :name, and given in parameters={…}"),
    (r"===", "write ="),
)


def of_function(name: str) -> str | None:
    return FUNCTIONS.get(name.lower())


def of_name(name: str) -> str | None:
    """The words to write in place of a word that is no column; None for one that nobody knows."""
    word = name.lower()
    return FUNCTIONS[word] if word in CLOCKS else _NO_VALUES.get(word)


def of_text(text: str) -> str:
    """The end of an error about a text that cannot be read; nothing where it is like none of the others."""
    bare = re.sub(r"'(?:[^'\\]|\\.)*'", "''", text)
    for pattern, message in _TEXTS:
        if re.search(pattern, bare, re.IGNORECASE):
            return f"; {message}"
    return ""
