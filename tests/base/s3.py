"""An S3 server of the tests' own, on loopback, which counts requests, and fails when a test says so.

Each test has a bucket of its own. The answers are `moto`'s; where it is not installed tests that need it are
skipped, and fail where `CI` is set.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import BytesIO
from itertools import count
from socketserver import ThreadingMixIn
from threading import Lock, Thread
from time import sleep
from typing import Any, Literal
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import pytest

MISSING = "no S3 server is installed: pip install botocore flask flask-cors moto"
KEY, SECRET = "AKIATESTSOFELASTIC", "a-secret/of+the-tests-alone"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}

Fault = Literal[
    "503", "500", "cut", "drop", "denied", "gone", "slow", "flip", "skew", "key", "bucket", "missing"
]
_REFUSALS: dict[Fault, tuple[int, str]] = {
    "503": (503, "SlowDown"),
    "500": (500, "InternalError"),
    "denied": (403, "AccessDenied"),
    "gone": (404, "NoSuchUpload"),
    "skew": (403, "RequestTimeTooSkewed"),
    "key": (403, "InvalidAccessKeyId"),
    "bucket": (404, "NoSuchBucket"),
    "missing": (404, "NoSuchKey"),
}


@dataclass(frozen=True)
class Request:
    """A request as it passed the line, who signed it, and how many bytes its answer had."""

    method: str
    path: str
    answered: int = 0
    signed_by: str = ""


@dataclass
class Line:
    """What passes between a client and the server.

    Attributes:
        fault: says for a request how it is to fail, or None; asked once for each request.
        requests: the answered ones.
        most_at_once: how many were under way alongside each other.
    """

    fault: Callable[[Request], Fault | None] = lambda _: None
    requests: list[Request] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    most_at_once: int = 0
    _count: int = 0

    def clear(self) -> None:
        self.requests, self.most_at_once = [], 0

    @contextmanager
    def under_way(self) -> Iterator[None]:
        with self.lock:
            self._count += 1
            self.most_at_once = max(self.most_at_once, self._count)
        try:
            yield
        finally:
            with self.lock:
                self._count -= 1

    @property
    def answered(self) -> int:
        return sum(request.answered for request in self.requests)

    @property
    def methods(self) -> Counter[str]:
        return Counter(request.method for request in self.requests)


class _Handler(WSGIRequestHandler):
    """Answers requests as moto does, or as the line's fault says; connections stay open, as those of S3."""

    protocol_version = "HTTP/1.1"
    server: _Listener

    def handle(self) -> None:
        self.close_connection = True
        with suppress(ConnectionError):
            self.handle_one_request()
            while not self.close_connection:
                self.handle_one_request()

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(1 << 16)
        if self.raw_requestline and self.parse_request():
            with self.server.line.under_way():
                self._answer()
        else:
            self.close_connection = True

    def _answer(self) -> None:
        line, body = self.server.line, self._body()
        with line.lock:
            signed_by = self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
            fault = line.fault(Request(self.command, self.path, signed_by=signed_by))
        if fault == "drop":
            return self._hang_up()
        if fault == "slow":
            sleep(0.3)
        if fault in _REFUSALS:
            status, code = _REFUSALS[fault]
            text = f"<Error><Code>{code}</Code><Message>as the test says</Message></Error>"
            return self._send(str(status), [("Content-Type", "application/xml")], text.encode())
        status, headers, content = self._answer_of_moto(body)
        with line.lock:
            line.requests.append(Request(self.command, self.path, len(content)))
        if fault == "flip" and content:  # somewhere, but the same place for the same bytes
            place = sum(content[:64]) * 7_919 % len(content)
            content = b"%s%c%s" % (content[:place], content[place] ^ 4, content[place + 1 :])
        self._send(status, headers, content, cut=fault == "cut")
        return None

    def _answer_of_moto(self, body: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
        from werkzeug.test import run_wsgi_app  # noqa: PLC0415 - an extra, which not all who run tests have

        environ = self.get_environ() | {"wsgi.url_scheme": "http", "RAW_URI": self.path}
        environ |= {"REQUEST_URI": self.path, "wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        parts, status, headers = run_wsgi_app(self.server.application, environ, buffered=True)
        return status, list(headers), b"".join(parts)

    def _body(self) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, status: str, headers: list[tuple[str, str]], content: bytes, cut: bool = False) -> None:
        self.send_response_only(int(status[:3]))
        for name, value in headers:
            self.send_header(name, value)
        if "content-length" not in {name.lower() for name, _ in headers}:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class _Listener(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, line: Line) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app  # noqa: PLC0415 - an extra

        self.line, self.application = line, DomainDispatcherApplication(create_backend_app)
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, *_: object) -> None:
        """A client that hung up is none of the test's business."""


class S3Server:
    """A running server, and the line to it."""

    def __init__(self) -> None:
        self.line = Line()
        self._listener = _Listener(self.line)
        self._thread = Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self._numbers = count(1)
        self._client: Any = None
        self.endpoint = f"http://127.0.0.1:{self._listener.server_address[1]}"
        self.environment = ENVIRONMENT | {"AWS_ENDPOINT_URL": self.endpoint}

    def __enter__(self) -> S3Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown()
        self._listener.server_close()

    @property
    def client(self) -> Any:
        """A client of the tests' own, which passes the line, too."""
        from botocore.session import Session  # noqa: PLC0415 - an extra, which not all who run tests have

        if self._client is None:  # to make one takes longer than most tests
            self._client = Session().create_client(
                "s3",
                "us-east-1",
                endpoint_url=self.endpoint,
                aws_access_key_id=KEY,
                aws_secret_access_key=SECRET,
            )
        return self._client

    @contextmanager
    def bucket(self) -> Iterator[str]:
        """The name of an empty bucket, for one test, whose environment leads to it."""
        name = f"bucket{next(self._numbers)}"
        self.client.create_bucket(Bucket=name)
        with pytest.MonkeyPatch.context() as patch:
            for variable in [name for name in os.environ if name.startswith("AWS_")]:
                patch.delenv(variable)
            for variable, value in self.environment.items():
                patch.setenv(variable, value)
            patch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.01)
            self.line.fault = lambda _: None
            self.line.clear()
            yield name
            self.line.fault = lambda _: None


def start_s3() -> S3Server:
    """Start one, or skip the test; where `CI` is set, fail."""
    if all(find_spec(module) is not None for module in ("botocore", "flask", "flask_cors", "moto")):
        return S3Server()
    if os.environ.get("CI"):
        pytest.fail(MISSING)
    pytest.skip(MISSING)
