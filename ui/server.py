"""The server of the page: routes, headers, and the socket."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
from collections.abc import AsyncIterator, Callable
from importlib.resources import files

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elasticscan.base.errors import InvalidOption
from elasticscan.base.showing import brief
from elasticscan.store import Store
from elasticscan.ui.hosts import answered_names
from elasticscan.ui.watching import Broadcast, Looker, StoreLooker

MOST_VIEWERS = 100
RETRY_MILLISECONDS = 2_000
_BACKLOG = 64
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def policy_of(page: str) -> str:
    """Return the Content-Security-Policy of a page: its own script, styles and server alone."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
        hashes[kind].append(f"'sha256-{digest}'")
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(hashes['script'])}",
            f"style-src {' '.join(hashes['style'])}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    )


class Guard:
    """Middleware that refuses foreign host names, and adds headers to each answer."""

    def __init__(self, app: ASGIApp, answers: Callable[[str], bool], policy: str) -> None:
        self._app, self._answers = app, answers
        self._headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"x-frame-options", b"DENY"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"cache-control", b"no-store"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers]
            await send(message)

        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(given) == 1 and self._answers(given[0]):
            await self._app(scope, receive, send_guarded)
            return
        refusal = PlainTextResponse(
            "This server does not go by that name. Ask for it by the address that `elasticscan ui` printed, "
            "or name it there with --host.\n",
            status_code=421,
        )
        await refusal(scope, receive, send_guarded)


class PageServer:
    """A server of the page of one store; its socket is bound, `run` answers."""

    def __init__(self, uri: str, host: str, port: int, looker: Looker | None = None) -> None:
        if looker is None:
            Store.open(uri).close()  # a wrong name is an error here, not an empty page
        self._socket = _bound(host, port)
        address, self.port = self._socket.getsockname()[:2]
        self.host = host
        named = host if ":" not in host else f"[{host}]"
        self.url = f"http://{named}:{self.port}/"
        self._page = (files("elasticscan.ui") / "page.html").read_text(encoding="utf-8")
        self._looker = looker or StoreLooker(uri)
        self.broadcast: Broadcast | None = None
        app = Starlette(routes=[Route("/", self._show), Route("/events", self._events)])
        own = (socket.gethostname(), socket.getfqdn())
        guarded = Guard(app, answered_names(host, address, own), policy_of(self._page))
        config = uvicorn.Config(
            guarded,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Answer until `stop` is called, or a signal comes."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Make `run` return soon; for other threads."""
        self._server.should_exit = True

    async def _show(self, request: Request) -> Response:
        return HTMLResponse(self._page)

    async def _events(self, request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("Only the page itself follows the store.\n", status_code=403)
        if self.broadcast is None:
            self.broadcast = Broadcast(self._looker, lambda: self._server.should_exit)
        if self.broadcast.viewers >= MOST_VIEWERS:
            return PlainTextResponse("Too many pages are open.\n", status_code=503)
        return StreamingResponse(_stream(self.broadcast), media_type="text/event-stream")


async def _stream(broadcast: Broadcast) -> AsyncIterator[str]:
    """Server-sent events: a JSON text has no line breaks, so each is one line."""
    yield f"retry: {RETRY_MILLISECONDS}\n\n"
    async for document in broadcast.follow():
        yield ":\n\n" if document is None else f"event: {document[0]}\ndata: {document[1]}\n\n"


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise InvalidOption(
            f"--host={brief(host, 60)} is no address here: {error}", option="--host"
        ) from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise InvalidOption(
            f"cannot serve at {host}, port {port}: {error.strerror}; try --port 0 or another --host",
            option="--port",
        ) from error
    return made
