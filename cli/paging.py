"""Exactly so many rows of a scan, and the key that goes on after the last of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from elasticscan.protocol import ContinuationKey
from elasticscan.store import Page, Scan, Store


def first_pages(store: Store, scan: Scan, rows: int | None, pages: int | None) -> Iterator[Page]:
    """Pages of a scan until it has given so many rows or pages, or is complete.

    The key of each page is right also when the last page was cut short: a key says where a page
    ends, never a place within one, so a page that holds more than is left is read again, half as
    long, until its end is the place to stop at. A filter makes that needed: pages are measured
    before it.
    """
    if rows is None:
        for number, page in enumerate(scan, 1):
            yield page
            if number == pages:
                return
        return
    at, usual, count = scan.standing, scan.standing.page_rows, 0
    most = usual
    while at.cursors and rows and count != pages:
        page = _one_page(store, at, most)
        while page.rows.num_rows > rows:
            most = max(1, min(most // 2, page.rows.num_rows))
            page = _one_page(store, at, most)
        # Whoever goes on with the key gets pages of the usual length.
        at = replace(page.standing, page_rows=usual)
        yield replace(page, standing=at)
        rows, count, most = rows - page.rows.num_rows, count + 1, min(2 * most, usual)


def _one_page(store: Store, at: ContinuationKey, page_rows: int) -> Page:
    """The next page. Its lease goes on: the page may be read again, and others follow."""
    return next(store.resume_part(replace(at, page_rows=page_rows), ends_lease=False))
