"""Makes the pictures of `docs/ui.md`: the page of a store whose tablets move, in a headless Chromium.

    python -m docs.ui_pictures [DIRECTORY]      by default into docs/

The store has the flights of `make demo`. A shard joins, tablets move, a shard goes, another joins, while a
table is written, a scan holds its snapshot and a stream falls behind; the pictures are taken amid the last
moves.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from random import Random

import pyarrow as pa

from elasticscan.store import Scan, Store
from elasticscan.store.context.leases import hold_for_stream
from elasticscan.ui import make_server
from examples.demo import KEY, flights
from tests.ui.browser import Browser, started

DOCS = Path(__file__).resolve().parent
RETENTION_SECONDS = 3_600
SLOWLY = 250_000  # bytes a second, so that moves are under way when the picture is taken


def make_store(place: Path) -> Store:
    store = Store.create(place, ["s1", "s2"], tablets=48, retention_seconds=RETENTION_SECONDS)
    rows = flights()
    table = store.create_table("flights", rows.schema, KEY)
    table.upsert(rows)
    airports = pa.table({"code": sorted(set(rows["dest"].to_pylist()))})
    store.create_table("airports", airports.schema, ["code"]).upsert(airports)
    return store


def live(store: Store, dice: Random) -> Scan:
    """A life of some seconds: moves, shards that come and go, commits; returns a scan that did not end."""
    table, rows = store.table("flights"), flights(40_000)

    def move() -> None:
        shards = [shard["name"] for shard in store.status()["shards"]]
        names = dict(store.topology.shard_names)
        tablet = dice.choice(store.topology.placement.tablets)
        store.move(tablet.id, dice.choice([name for name in shards if name != names[tablet.shard]]))

    scan = table.scan(page_rows=1_000)
    for round_ in range(36):
        move()
        if round_ % 4 == 0:
            table.upsert(rows.slice(1_000 * round_, 1_000))
        if round_ == 6:
            store.expand(["s3"])
        elif round_ == 16:
            scan = table.scan(page_rows=1_000)
            next(scan)
        elif round_ == 20:
            store.contract("s1")
        elif round_ == 22:
            hold_for_stream(store.context, 1, "replica", store.status()["snapshot"])
        time.sleep(0.15)
    return scan


@contextmanager
def moving(uri: str) -> Iterator[None]:
    """Another shard joins, so slowly that its tablets are on their way meanwhile."""
    with Store.open(uri) as store:
        thread = threading.Thread(
            target=store.expand_with, args=(store.elasticity(SLOWLY, parallel=4), ["s4"], {})
        )
        thread.start()
        yield
        thread.join()


def take(browser: Browser, place: Path, width: int, scheme: str, most_height: int) -> None:
    browser.resize(width, 800, scheme)
    time.sleep(0.3)
    height = min(browser.value("document.documentElement.scrollHeight"), most_height)
    browser.resize(width, height, scheme)
    time.sleep(0.3)
    place.write_bytes(browser.picture())


def main(into: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, chdir(scratch):
        uri = "flights.store"
        with make_store(Path(uri)) as store:
            scan = live(store, Random(7))
        server = make_server(uri)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            with started(Path(scratch) / "profile") as browser, moving(uri):
                browser.show(server.url)
                browser.wait("document.querySelector('#shards tbody tr:last-child td')?.dataset.value > 2")
                take(browser, into / "ui-light.png", 1_200, "light", 1_100)
                take(browser, into / "ui-dark.png", 1_200, "dark", 1_100)
                take(browser, into / "ui-narrow.png", 500, "light", 1_400)
                browser.show("about:blank")
                scan.close()
        finally:
            server.stop()
            thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else DOCS)
