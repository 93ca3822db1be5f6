"""The server of the page: its headers, its socket, and the names by which it may be asked.

Any web page can point a name of its own at 127.0.0.1 (DNS rebinding); the browser then lets it read what is
answered there. Its requests say that name in `Host`, so only names that are this server's are answered. The
port is not compared: a forwarded one (`ssh -L`) differs, and no foreign page has the name `localhost`.
"""

from __future__ import annotations

import re
import socket
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from threading import Lock

from elasticscan.base.errors import ElasticScanError, InvalidOption
from elasticscan.base.formatting import brief
from elasticscan.base.redaction import shown
from elasticscan.store import Store
from elasticscan.ui.page import page_of, page_of_problem, policy_of

TOPOLOGIES = 60
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9_.-]+))(?::[0-9]{1,5})?")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class PageServer(ThreadingHTTPServer):
    """A server of the page of one store; its socket is bound, `run` answers."""

    daemon_threads = True
    allow_reuse_port = False

    def __init__(self, uri: str, host: str = "127.0.0.1", port: int = 0) -> None:
        """Bind the address: 0 is any port that is free.

        Raises:
            InvalidOption: the address cannot be had.
            StoreNotFound: there is no store.
        """
        Store.open(uri).close()  # a wrong name is an error here, not an empty page
        self._uri, self._lock = uri, Lock()
        self._page, self._until = "", 0.0
        self.host = host
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
        bound = str(self.server_address[0])
        self.is_beyond = not ip_address(bound).is_loopback
        self.names = {"localhost", "127.0.0.1", "::1", host.lower(), bound.lower()}
        if self.is_beyond:
            self.names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def answers(self, header: str) -> bool:
        """Return whether a `Host` header names this server; beyond this machine any address does."""
        match = _HOST.fullmatch(header)
        name = ((match[1] or match[2]) if match else "").lower().removesuffix(".")
        return name in self.names or (self.is_beyond and _is_address(name))

    def run(self) -> None:
        """Answer until `stop` is called, or a signal comes."""
        try:
            self.serve_forever(0.1)
        finally:
            self.server_close()

    def stop(self) -> None:
        """Make `run` return soon; for other threads."""
        self.shutdown()

    def page(self) -> str:
        """Return the page, at most a second old; reading the store takes at most a tenth of the time."""
        with self._lock:
            began = time.monotonic()
            if began >= self._until:
                self._page = self._drawn()
                now = time.monotonic()
                self._until = now + min(max(PAUSE_SECONDS, 9 * (now - began)), LONGEST_PAUSE_SECONDS)
            return self._page

    def _drawn(self) -> str:
        try:
            with Store.open(self._uri, upkeep="off") as store:
                return page_of(shown(store.uri), store.status(), store.slot_map(TOPOLOGIES).svg)
        except (ElasticScanError, OSError) as error:
            reported = error if isinstance(error, ElasticScanError) else ElasticScanError(str(error))
            return page_of_problem(shown(self._uri), str(reported))


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
        self.send_response_only(code)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", policy_of(text)),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""
