"""Exactly so many rows of a scan, and the key that goes on after the last of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
    key, count = scan.key, 0
    usual = most = _page_rows(store, key)
    while key is not None and rows and count != pages:
        page = _one_page(store, key, most)
        while page.rows.num_rows > rows:
            most = max(1, min(most // 2, page.rows.num_rows))
            page = _one_page(store, key, most)
        # Whoever goes on with the key gets pages of the usual length.
        key = None if page.key is None else _with_page_rows(store, page.key, usual)
        yield Page(page.rows, key)
        rows, count, most = rows - page.rows.num_rows, count + 1, min(2 * most, usual)


def _page_rows(store: Store, key: str | None) -> int:
    return 1 if key is None else store.context.sealer.open(key).page_rows


def _with_page_rows(store: Store, key: str, page_rows: int) -> str:
    sealer = store.context.sealer
    return sealer.seal(replace(sealer.open(key), page_rows=page_rows))


def _one_page(store: Store, key: str, page_rows: int) -> Page:
    """The page after `key`. Its lease goes on: the page may be read again, and others follow."""
    opened = replace(store.context.sealer.open(key), page_rows=page_rows)
    return next(iter(store.resume_part(opened, ends_lease=False)))
