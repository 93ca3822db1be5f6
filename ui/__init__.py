"""The page that shows a store while it lives: `elasticscan ui STORE`.

What it promises:

- **It shows what `status` says.** The page gets one document, `Store.status()` as `elasticscan status --json`
  prints it, and the rows of the slot map that `Store.slot_map()` draws. It computes nothing of its own.
- **It only reads**, and holds nothing: each refresh is one short transaction, however many pages are open,
  and the pause after it is nine times as long as it took. While no page is open, the store is closed.
- **It stays.** A store that goes away, or is damaged, is a message on the page, which goes on when the store
  is back; a server that goes away is one, too.
- **It is for this machine.** The server listens on loopback by default, and refuses requests for another host
  name (`hosts.py`: DNS rebinding). It has no routes that change anything, and shows no password: its data is
  that of `status`.
- **Text is text.** Names from the catalog reach the page as JSON and are put there as text. Its policy (CSP)
  runs the one script of the page alone, with Trusted Types, so that no markup can be made of a name, and
  loads nothing from elsewhere.

How it is cut:

page.html  all of the page: one file, without a build step and without anything from outside
watching   one reader of the store for all viewers
hosts      the names that a server answers to
server     routes, headers, and the socket

`starlette` and `uvicorn` are optional (`pip install 'elasticscan[ui]'`), so nothing that needs them is
imported before `make_server` runs, which says what is missing.

It leaves out: passwords and TLS (put a proxy in front of it that has both), history beyond the topologies
that the catalog keeps, and scans of less than two seconds: longer ones say in the catalog how far they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticscan.base.errors import InvalidOption
from elasticscan.ui.hosts import is_loopback

if TYPE_CHECKING:
    from elasticscan.ui.server import PageServer

EXTRA = "elasticscan[ui]"


def make_server(uri: str, host: str = "127.0.0.1", port: int = 0) -> PageServer:
    """Make a server of the page of a store, bound to its address; it answers once it is run.

    Args:
        uri: the store.
        host: the address or the name to listen at.
        port: 0 for any that is free.

    Raises:
        InvalidOption: the extra `ui` is not installed, or the address cannot be had.
        StoreNotFound: there is no store.
    """
    try:
        from elasticscan.ui.server import PageServer  # noqa: PLC0415 - stands on an extra
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("starlette", "uvicorn", "anyio"):
            raise
        raise InvalidOption(
            f"the page needs the package {missing!r}, which is not installed here: pip install '{EXTRA}'",
            option="ui",
        ) from error
    return PageServer(uri, host, port)


__all__ = ["is_loopback", "make_server"]
