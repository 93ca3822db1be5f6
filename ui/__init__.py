"""The page that shows a store while it lives: `elasticscan ui STORE`.

- **It shows what `status` says**: the slot map, and a table for each section of `Store.status()`. The same
  sections are printed by the command line.
- **It only reads**, and holds nothing: the store is opened for a moment, at most once a second, however many
  pages are open. Where no page is open, nothing is read.
- **It stays.** A store that goes away, or is damaged, is a message on the page, which goes on when the store
  is back.
- **It is for this machine.** The server listens on loopback by default, and refuses requests for another
  host name (DNS rebinding). It has one route, which changes nothing, and shows no password.
- **Text is text.** The page has no script, a timer of the browser loads it again, and its policy (CSP) runs
  none and loads nothing from elsewhere; all names are escaped.

sections  the sections of a status, as titles and cells
server    the page as HTML, its headers, and the host names that are answered

It leaves out: passwords and TLS (put a proxy in front of it that has both).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticscan.ui.sections import INDEXES, TABLETS, cells, sections, size, warnings_of

if TYPE_CHECKING:
    from elasticscan.ui.server import PageServer


def make_server(uri: str, host: str = "127.0.0.1", port: int = 0) -> PageServer:
    """Make a server of a store's page, bound to its address; `run` answers requests.

    Raises:
        InvalidOption: the address cannot be had.
        NotFound: there is no store.
    """
    from elasticscan.ui.server import PageServer  # commands start without the store  # noqa: PLC0415

    return PageServer(uri, host, port)


__all__ = ["INDEXES", "TABLETS", "cells", "make_server", "sections", "size", "warnings_of"]
