"""The server of the page: its HTML without a script, its headers, and the host names that it answers.

Any web page can point its own host name at 127.0.0.1 (DNS rebinding); the browser then lets it read answers
of servers there. Its requests have that name in `Host`, so the server answers only its own names and
addresses. The port is not compared: a forwarded one (`ssh -L`) differs, and no foreign page is `localhost`.
"""

from __future__ import annotations

import re
import socket
import time
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from threading import Lock
from typing import Any

from elasticscan.base.errors import ElasticScanError, InvalidOption
from elasticscan.base.formatting import brief
from elasticscan.base.redaction import shown
from elasticscan.store import Store
from elasticscan.ui.sections import TABLETS, cells, sections, warnings_of

TOPOLOGIES = 60
PAUSE_SECONDS = 1.0
_STYLE = """
:root { color-scheme: light dark; font: 14px system-ui, sans-serif }
body { margin: 1.5em auto; max-width: 1100px; padding: 0 1em }
h1 { font-size: 1.2em } h2 { font-size: 1em; margin: 1.5em 0 .3em }
svg { width: 100% } .problem { color: #c33 }
div { overflow-x: auto } table { border-collapse: collapse }
th, td { padding: .15em 1.2em .15em 0; text-align: left; white-space: nowrap }
th { font-weight: normal; opacity: .7 } .number { text-align: right }
"""
# The Content-Security-Policy of a page: its own styles, and nothing else.
POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9_.-]+))(?::[0-9]{1,5})?")


class PageServer(ThreadingHTTPServer):
    """A server of one store's page; the constructor binds its socket, `run` answers requests."""

    daemon_threads = True
    allow_reuse_port = False

    def __init__(self, uri: str, host: str = "127.0.0.1", port: int = 0) -> None:
        """Bind the address; port 0 means any free port.

        Raises:
            InvalidOption: the address cannot be bound.
            NotFound: there is no store.
        """
        Store.open(uri).close()  # a wrong name is an error here, not an empty page
        self._uri, self._lock = uri, Lock()
        self._page, self._until = "", 0.0
        try:
            self.address_family, _, _, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            super().__init__(address[:2], _Handler)  # type: ignore[arg-type]
        except (OSError, UnicodeError) as error:
            raise InvalidOption(
                f"cannot serve at {brief(host, 60)}, port {port}: {error}; try --port 0 or another --host",
                option="--host",
            ) from error
        self.port = self.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"
        self.is_beyond = not ip_address(str(self.server_address[0])).is_loopback
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}

    def answers(self, header: str) -> bool:
        """Return whether a `Host` header names this server, or is an address, which cannot be rebound."""
        match = _HOST.fullmatch(header)
        name = ((match[1] or match[2]) if match else "").lower().removesuffix(".")
        with suppress(ValueError):
            ip_address(name)
            return True
        return name in self._names

    def run(self) -> None:
        """Answer requests until another thread calls `shutdown`, or a signal arrives."""
        try:
            self.serve_forever(0.1)
        finally:
            self.server_close()

    def page(self) -> str:
        """Return the page, drawn at most a second ago and shared by all visitors."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._page = _page(shown(self._uri), self._body())
                self._until = time.monotonic() + PAUSE_SECONDS
            return self._page

    def _body(self) -> str:
        try:
            with Store.open(self._uri, upkeep="off") as store:
                return _body_of(store.status(), store.slot_map(TOPOLOGIES).svg)
        except (ElasticScanError, OSError) as error:
            reported = error if isinstance(error, ElasticScanError) else ElasticScanError(str(error))
            return f"{_problem(str(reported))}<p>This page tries again.</p>"


class _Handler(BaseHTTPRequestHandler):
    timeout = 10
    server: PageServer

    def do_GET(self) -> None:
        names = self.headers.get_all("Host") or []
        if len(names) != 1 or not self.server.answers(names[0]):
            self._answer(421, "text/plain", "This server has another name: give it with --host.\n")
        elif self.path != "/":
            self._answer(404, "text/plain", "There is one page, at /.\n")
        else:
            self._answer(200, "text/html", self.server.page())

    def _answer(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        self.send_response_only(code)
        for name, value in (headers | _HEADERS).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _page(title: str, body: str) -> str:
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta http-equiv='refresh' content='2'><meta name='viewport' content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{body}</body></html>"
    )


def _problem(text: str) -> str:
    return f"<p class='problem'>{escape(text)}</p>"


def _body_of(status: Mapping[str, Any], slot_map: str) -> str:
    facts = ", ".join(f"{name} {status[name]:,}" for name in ("topology", "snapshot", "slots"))
    parts = [f"<p>{facts}, {len(status['tablets']):,} tablets</p>", *map(_problem, warnings_of(status))]
    parts += [slot_map, *(_table(*section) for section in sections(status))]
    return "\n".join([*parts, _table("tablets", TABLETS, cells(status["tablets"], TABLETS))])


def _table(title: str, keys: tuple[str, ...], rows: list[list[int | str]]) -> str:
    heads = "".join(f"<th>{key.replace('_', ' ')}</th>" for key in keys)
    lines = ("".join(map(_cell, row)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<h2>{title}</h2><div><table><tr>{heads}</tr>{body}</table></div>"


def _cell(value: int | str) -> str:
    if isinstance(value, int):
        return f"<td class='number'>{value:,}</td>"
    return f"<td>{escape(value)}</td>"
