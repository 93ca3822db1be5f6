"""An S3 server of the tests' own, on loopback, which counts requests, and fails when a test says so.

Each test has a bucket of its own. The answers are `moto`'s; where it is not installed tests that need it are
skipped, and fail where `CI` is set.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from io import BytesIO
from itertools import count
from threading import Lock, Thread
from time import sleep
from typing import Any, Literal

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
    """

    fault: Callable[[Request], Fault | None] = lambda _: None
    requests: list[Request] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def clear(self) -> None:
        self.requests = []

    @property
    def answered(self) -> int:
        return sum(request.answered for request in self.requests)

    @property
    def methods(self) -> Counter[str]:
        return Counter(request.method for request in self.requests)


class _Application:
    """Answers requests as moto does, or as the line's fault says."""

    def __init__(self, line: Line) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app  # noqa: PLC0415 - an extra

        self.line, self._moto = line, DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        from werkzeug.wrappers import Request as Received  # noqa: PLC0415 - an extra
        from werkzeug.wrappers import Response  # noqa: PLC0415

        line, body = self.line, Received(environ).get_data()
        signed_by = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].partition("/")[0]
        request = Request(environ["REQUEST_METHOD"], environ["RAW_URI"], signed_by=signed_by)
        with line.lock:
            fault = line.fault(request)
        if fault == "drop":
            raise ConnectionResetError
        if fault == "slow":
            sleep(0.3)
        if fault in _REFUSALS:
            status, code = _REFUSALS[fault]
            text = f"<Error><Code>{code}</Code><Message>as the test says</Message></Error>"
            return Response(text, status, content_type="application/xml")(environ, start)
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        environ |= {"wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        answer = Response.from_app(self._moto, environ, buffered=True)
        content = answer.get_data()
        with line.lock:
            line.requests.append(replace(request, answered=len(content), signed_by=""))
        if fault == "flip" and content:  # somewhere, but the same place for the same bytes
            place = sum(content[:64]) * 7_919 % len(content)
            answer.set_data(b"%s%c%s" % (content[:place], content[place] ^ 4, content[place + 1 :]))
        if fault == "cut":
            answer.response = _cut(content)
        return answer(environ, start)


def _cut(content: bytes) -> Iterator[bytes]:
    yield content[: len(content) // 2]
    raise ConnectionResetError


def _listen(application: _Application) -> Any:
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415 - an extra

    class Silent(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            """A client that hung up is none of the test's business."""

        def connection_dropped(self, *_: object) -> None:
            self.close_connection = True

    return make_server("127.0.0.1", 0, application, threaded=True, request_handler=Silent)


class S3Server:
    """A running server, and the line to it."""

    def __init__(self) -> None:
        self.line = Line()
        self._listener = _listen(_Application(self.line))
        self._thread = Thread(target=self._listener.serve_forever, daemon=True)
        self._thread.start()
        self._numbers = count(1)
        self._client: Any = None
        self.endpoint = f"http://127.0.0.1:{self._listener.server_port}"
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
