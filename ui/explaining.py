"""Explanations for the page: a scan's ways to read, estimates alongside counts.

An explanation shows how many rows meet a condition, so the server has this route only with `--explain`.
The store is opened for reading alone, and a scan is read for so long, and so far, that counts mean something.
"""

from __future__ import annotations

import time
from typing import Any

from elasticscan.base.errors import ElasticScanError, InvalidOption
from elasticscan.store import Store

MOST_SECONDS, MOST_ROWS, PAGE_ROWS = 5.0, 5_000_000, 16_384
MOST_CHARACTERS = 4_000


def explained(uri: str, table: str, filter: str, columns: str) -> dict[str, Any]:  # noqa: A002
    """Return the explanation of a scan as notebooks show it: texts, pictures and rows; an error as its text.

    Args:
        uri: the store.
        table: its table.
        filter: a condition; all rows if it is empty.
        columns: names with commas between; all if it is empty.
    """
    try:
        if max(map(len, (table, filter, columns))) > MOST_CHARACTERS:
            raise InvalidOption(
                f"a field has more than {MOST_CHARACTERS:,} characters; use elasticscan explain",
                option="filter",
            )
        return _explained(uri, table, filter.strip(), [name.strip() for name in columns.split(",")])
    except (ElasticScanError, OSError) as error:
        reported = error if isinstance(error, ElasticScanError) else ElasticScanError(str(error))
        return {"problem": {"code": reported.code, "message": reported.message}}


def _explained(uri: str, table: str, filter: str, columns: list[str]) -> dict[str, Any]:  # noqa: A002
    names = columns if any(columns) else None
    with (
        Store.open(uri, read_only=True) as store,
        store.table(table).scan(names, filter or None, page_rows=PAGE_ROWS) as scan,
    ):
        begun = scan.explain()  # where it reads, before all of that is done
        began = time.monotonic()
        for _ in scan:
            if time.monotonic() - began >= MOST_SECONDS or scan.stats.scanned >= MOST_ROWS:
                break
        seconds = time.monotonic() - began
        reported = scan.explain()
    reported["scans"] = begun["scans"]
    left = reported["pending_slots"]
    read = f"read in {seconds:.2f} s, {reported['actual']['pages']:,} pages"
    if left:
        read = f"not read to its end: {left:,} of {reported['slots']:,} slots were left after {seconds:.2f} s"
    return {
        "problem": None,
        "said": reported.said,
        "read": read,
        "pictures": reported.pictures(),
        "listings": reported.listings(),
    }
