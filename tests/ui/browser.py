"""A headless Chromium, driven over a pipe by its DevTools protocol: a few calls, and no library for them.

`--remote-debugging-pipe` reads messages from descriptor 3 and writes them to 4, JSON ended by a zero byte.
The browser ends when its pipe is closed, however the tests ended.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_ANSWER_SECONDS = 60


class Browser:
    """A page of a browser."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = requests, answers
        self._session: str | None = None
        self._number, self._buffer = 0, b""
        self.complaints: list[str] = []  # errors of scripts, and what the page's policy refused
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of one call of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._requests, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select([self._answers], [], [], _ANSWER_SECONDS)
            more = os.read(self._answers, 1 << 20) if ready else b""
            if not more:
                raise RuntimeError("the browser does not answer")
            self._buffer += more
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(event["params"]["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.complaints.append(event["params"]["entry"]["text"])

    def show(self, url: str, width: int = 1_200, height: int = 900, scheme: str = "light") -> None:
        """Go to a page."""
        self.resize(width, height, scheme)
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int, scheme: str = "light", scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        reported = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reported:
            raise RuntimeError(json.dumps(reported["exceptionDetails"]))
        return reported["result"].get("value")

    def wait(self, expression: str, seconds: float = 30) -> Any:
        """Wait until an expression is true, and return its value."""
        until = time.monotonic() + seconds
        while not (value := self.value(expression)):
            assert time.monotonic() < until, f"not true after {seconds} s: {expression}"
            time.sleep(0.05)
        return value

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            said = {"text": text} if text and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **said
            )

    def picture(self, element: str | None = None) -> bytes:
        """Return the window, or an element of the page, as a PNG."""
        clip: dict[str, Any] = {}
        if element is not None:
            box = f"document.querySelector({element!r}).getBoundingClientRect().toJSON()"
            place = {
                name: at for name, at in self.value(box).items() if name in ("x", "y", "width", "height")
            }
            clip = {"clip": place | {"scale": 1}, "captureBeyondViewport": True}
        shot = self.call("Page.captureScreenshot", format="png", **clip)
        return base64.b64decode(shot["data"])


@contextmanager
def started(profile: Path) -> Iterator[Browser]:
    """Run a browser with a profile of its own during a block."""
    assert CHROMIUM is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    options = [
        "--headless",
        "--no-sandbox",  # tests run as root in containers, where it does not work
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--hide-scrollbars",
        "--force-color-profile=srgb",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
    ]
    # The shell puts the pipe's ends where the browser wants them.
    script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", script, CHROMIUM, *options],
        pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        os.close(ours_out)
        os.close(ours_in)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
