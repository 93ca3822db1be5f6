"""Makes the pictures of `docs/ui.md`: the page during `make demo`, in a headless Chromium.

    python -m docs.ui_pictures [DIRECTORY]      by default into docs/

The demo runs, slowly, and serves its page; the pictures are taken while Spark's tasks have read most of the
flights, and tablets move.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ui.browser import Browser, started

DOCS = Path(__file__).resolve().parent
SECONDS = 60  # so long the demo takes
# In hundredths of its slots, how far the scan is when the pictures are taken.
FAR = 45


@contextmanager
def demo() -> Iterator[str]:
    """The address of the page of a demo that runs; the demo has to end well."""
    command = [sys.executable, "-u", str(DOCS.parent / "examples" / "demo.py")]
    command += ["--seconds", str(SECONDS), "--page", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            message = next(line for line in process.stdout if line.startswith("The page: "))
            yield message.split()[-1]
            process.stdout.read()
            assert process.wait() == 0, "the demo failed"
        finally:
            process.kill()


def take(browser: Browser, place: Path, width: int, scheme: str, most_height: int) -> None:
    browser.resize(width, 800, scheme)
    time.sleep(0.3)
    height = min(browser.value("document.documentElement.scrollHeight"), most_height)
    browser.resize(width, height, scheme)
    time.sleep(0.3)
    place.write_bytes(browser.picture())


def take_demo(browser: Browser, into: Path) -> None:
    with demo() as url:
        browser.show(url)
        done = "typeof status === 'object' && status?.scans?.[0] && 100 * share(status.scans[0])"
        browser.wait(f"({done}) >= {FAR}", 2 * SECONDS)
        take(browser, into / "ui-light.png", 1_200, "light", 1_100)
        take(browser, into / "ui-dark.png", 1_200, "dark", 1_100)
        take(browser, into / "ui-narrow.png", 500, "light", 1_400)
        browser.show("about:blank")


def main(into: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as scratch,
        started(Path(scratch) / "profile") as browser,
    ):
        take_demo(browser, into)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else DOCS)
