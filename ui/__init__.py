"""The page that shows the current state of a store: `elasticscan ui STORE`.

- **It shows the content of `Store.status()`**: the slot map, and a table for each section. The command line
  prints the same sections.
- **It only reads**, and keeps no resources: the store is opened for a moment, at most once a second, for any
  number of open pages. If no page is open, nothing is read.
- **It stays available.** If a store is missing or damaged, the page shows a message, and continues when the
  store is back.
- **It is for this machine.** The server listens on loopback by default, and refuses requests for another
  host name (DNS rebinding). It has one route, which changes nothing, and shows no password.
- **Text is text.** The page has no script; a timer of the browser loads it again. Its policy (CSP) allows no
  script and no content from elsewhere; all names are escaped.

sections  the sections of a status, as titles and cells
server    the page as HTML, its headers, and the host names that are answered

It has no passwords and no TLS: use a proxy that has both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticscan.ui.sections import INDEXES, TABLETS, cells, sections, size, warnings_of

if TYPE_CHECKING:
    from elasticscan.ui.server import PageServer


def make_server(uri: str, host: str = "127.0.0.1", port: int = 0) -> PageServer:
    """Make a server of a store's page, bound to its address; `run` answers requests.

    Raises:
        InvalidOption: the address cannot be bound.
        NotFound: there is no store.
    """
    from elasticscan.ui.server import PageServer  # commands start without the store  # noqa: PLC0415

    return PageServer(uri, host, port)


__all__ = ["INDEXES", "TABLETS", "cells", "make_server", "sections", "size", "warnings_of"]
