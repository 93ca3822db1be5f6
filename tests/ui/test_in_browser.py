"""The page in a headless Chromium shows what `status --json` prints, also while tablets move."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

pytest.importorskip("uvicorn", reason="pip install 'elasticscan[ui]'")

from elasticscan.base.clock import SystemClock
from elasticscan.cli.app import app
from elasticscan.store import Store
from elasticscan.store.context.leases import hold_for_stream
from elasticscan.store.reading import progress
from elasticscan.ui.server import PageServer
from tests.ui.browser import CHROMIUM, Browser, started

NO_BROWSER = "no Chromium is installed here; Debian's package is `chromium`"
SCHEMA = pa.schema([("id", pa.int64()), ("km", pa.float64())])
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'

# Every fact and every cell of the page, as the values that they are of.
SHOWN = """(() => {
  const cells = (row) => [...row.cells].map((cell) => JSON.parse(cell.dataset.value));
  const facts = [...document.querySelectorAll("[data-fact]")].map((one) => [one.dataset.fact, +one.dataset.value]);
  const tables = [...document.querySelectorAll("table")].map((one) => [one.id, [...one.tBodies].flatMap((body) => [...body.rows].map(cells))]);
  const swatches = [...document.querySelectorAll("#legend li")].map((one) => [one.textContent, one.firstChild.style.background]);
  const rows = [...document.querySelectorAll("#map g")].map((row) => [...row.querySelectorAll("path")].map((path) => [path.getAttribute("fill"), path.getAttribute("d")]));
  return { facts: Object.fromEntries(facts), tables: Object.fromEntries(tables), swatches: swatches.length, rows };
})()"""  # noqa: E501


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail(NO_BROWSER)
        pytest.skip(NO_BROWSER)
    with started(tmp_path_factory.mktemp("profile")) as one:
        yield one


class GatedClock(SystemClock):
    """A clock whose sleeps take no time, and block while it is stopped: slow moves wait here."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()

    def sleep(self, seconds: float) -> None:
        assert self._open.wait(60)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()


@pytest.fixture
def clock() -> GatedClock:
    return GatedClock()


@pytest.fixture
def store(tmp_path: Path, clock: GatedClock, unflushed: None) -> Iterator[Store]:
    path = tmp_path / "watched.store"
    with Store.create(path, ["s1", "s2"], tablets=8, retention_seconds=3_600) as made:
        made.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": range(900), "km": [1.0] * 900}))
        made.create_table("empty", SCHEMA, ["id"])
    with Store.open(path, clock) as made:
        yield made


@pytest.fixture
def server(store: Store, browser: Browser) -> Iterator[PageServer]:
    made = PageServer(store.uri, "127.0.0.1", 0)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        browser.complaints.clear()
        browser.show(made.url)
        browser.wait("document.getElementById('state')?.dataset.is === 'live'")
        yield made
    finally:
        browser.show("about:blank")
        made.stop()
        thread.join(20)
    assert not thread.is_alive()


def printed(store: Store) -> dict[str, Any]:
    """Return the status that the command line prints."""
    ended = CliRunner().invoke(app, ["status", store.uri, "--json"])
    assert ended.exit_code == 0
    return dict(json.loads(ended.stdout))


def expected(status: dict[str, Any], store: Store) -> dict[str, Any]:
    """Return the texts of the page for a status."""
    goes = {move["tablet"]: move["to"] for move in status["moves"]}
    kept = {table["name"]: table["retention_seconds"] for table in status["tables"]}
    slot_map = store.slot_map(60).stripes()
    tables = {
        "topologies": [[t["number"], t["at"], t["reason"]] for t in reversed(slot_map["topologies"])],
        "tablets": [
            [
                t["id"],
                t["slots"][0],
                t["slots"][1] - 1,
                t["shard"],
                goes.get(t["id"]),
                t["bytes"],
                t["fragments"],
            ]
            for t in status["tablets"]
        ],
        "shards": [
            [s["name"] + (" (leaving)" if s["draining"] else ""), s["tablets"], s["bytes"], None]
            for s in status["shards"]
        ],
        "tables": [
            [t["name"], t["rows"], t["fragments"], *t["upkeep"]["bytes"].values(), None]
            for t in status["tables"]
        ],
        "streams": [
            [
                *(
                    s[of]
                    for of in ("name", "table", "commit", "behind_commits", "behind_rows", "behind_seconds")
                ),
                *(kept[s["table"]], None, s["expires_at"]),
            ]
            for s in status["streams"]
        ],
        "leases": [
            [
                *(lease[name] for name in ("purpose", "table", "snapshot", "snapshot_at")),
                next(
                    (
                        t["moved"]
                        for t in reversed(slot_map["topologies"])
                        if t["at"] <= (lease["snapshot_at"] or 0)
                    ),
                    None,
                ),
                lease["expires_at"],
            ]
            for lease in status["leases"]
            if not lease["purpose"].startswith("stream:")
        ],
        "scans": [
            [
                *(
                    scan[name]
                    for name in ("table", "snapshot", "parts", "slots", "slots_done", "slots_moved")
                ),
                *(scan[name] for name in ("rows", "rows_per_second", "pages", "virtual_reads", "began_at")),
                None,
            ]
            for scan in status["scans"]
        ],
        "debt": [
            [
                *(t["name"], *(t["upkeep"][of] for of in ("merges_due", "bytes_due", "slot_fragments"))),
                *t["upkeep"]["amplification"].values(),
            ]
            for t in status["tables"]
        ],
        "done": [
            [s[name] for name in ("step", "steps", "pieces", "bytes_read", "bytes_written", "newest_at")]
            for s in status["upkeep"]["done"]
        ],
        "running": [
            [s[name] for name in ("step", "owner", "started_at")] for s in status["upkeep"]["running"]
        ],
        "moves": [
            [m[name] for name in ("tablet", "from", "to", "phase", "started_at")] for m in status["moves"]
        ],
    }
    facts = {name: status[name] for name in ("topology", "snapshot", "slots")}
    return {
        "facts": facts | {"tablets": len(status["tablets"])},
        "tables": tables,
        "swatches": len(slot_map["shards"]),
        "rows": [topology["paths"] for topology in slot_map["topologies"]],
    }


def compare(browser: Browser, store: Store) -> dict[str, Any]:
    """Check that the page shows what the command line prints, one refresh later at most; return it."""
    status = printed(store)
    wanted = expected(status, store)
    for _ in range(200):
        if (seen := browser.value(SHOWN)) == wanted:
            break
        threading.Event().wait(0.05)
    assert seen == wanted
    return status


@pytest.mark.long
def test_the_page_shows_what_status_prints_while_tablets_move(
    store: Store, clock: GatedClock, server: PageServer, browser: Browser
) -> None:
    compare(browser, store)
    table = store.table("t")
    scan = table.scan(page_rows=50)
    next(scan)
    hold_for_stream(store.context, 1, HOSTILE, store.status()["snapshot"])

    def in_background(work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=work)
        thread.start()
        return thread

    with clock.stopped():
        moving = in_background(lambda: store.expand(["s3"], store.elasticity(1)))
        browser.wait("document.querySelectorAll('#moves tbody tr').length")
        status = compare(browser, store)
        assert status["moves"] and status["leases"] and status["scans"] == []
        assert browser.value("document.querySelectorAll('.reader').length") > 0
        assert "s3" in browser.value("document.getElementById('legend').textContent")
    moving.join(60)
    # The scan's line is thick over the slots that have moved since its snapshot was committed.
    browser.wait("document.querySelector('.reader path')?.getAttribute('d')")
    assert "slots moved since)" in browser.value("document.querySelector('.reader').textContent")
    store.contract("s1")
    table.delete([1, 2, 3])
    table.compact()
    hold_for_stream(store.context, 1, HOSTILE, store.status()["snapshot"])
    scan.close()
    status = compare(browser, store)
    assert [shard["name"] for shard in status["shards"]] == ["s2", "s3"]
    # A name is text, whatever it says.
    assert browser.value("document.querySelector('#streams tbody th').textContent") == HOSTILE
    assert browser.value("document.images.length") == 0
    assert browser.value("document.title") == "watched.store · elasticscan"
    assert browser.complaints == []


# The slots of each kind that the bars of scans are drawn over.
BARS = """[...document.querySelectorAll("#map .scan")].map((bar) => Object.fromEntries(["done", "moved"].map((kind) =>
  [kind, [...bar.querySelectorAll("." + kind)].map((rect) => [+rect.getAttribute("x"), +rect.getAttribute("x") + +rect.getAttribute("width")])])))"""  # noqa: E501


@pytest.mark.long
def test_a_scan_in_flight_is_a_bar_over_the_slot_map(
    store: Store, server: PageServer, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "two seconds" in browser.value("document.querySelector('#scans').nextElementSibling.textContent")
    monkeypatch.setattr(progress, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(progress, "SHARE_OF_TIME", 1e9)
    scan = store.table("t").scan(page_rows=100)
    for _ in range(3):
        next(scan)
    store.expand(["s3"])
    next(scan)
    status = compare(browser, store)
    (message,) = status["scans"]
    assert message["slots_done"] > 0 and message["slots_moved"] > 0
    assert browser.value(BARS) == [{"done": message["done"], "moved": message["moved"]}]
    label = browser.value("document.querySelector('#map .scan span').textContent")
    assert label.startswith(f"scan of t: {100 * message['slots_done'] // message['slots']} % of its slots")
    purposes = browser.value("[...document.querySelectorAll('#map .reader')].map((one) => one.textContent)")
    assert purposes == [], "its lease is the same scan"
    scan.close()
    assert compare(browser, store)["scans"] == []
    browser.wait("document.querySelectorAll('#map .scan').length === 0")
    assert browser.complaints == []


def test_the_page_works_without_a_mouse_in_light_and_dark(server: PageServer, browser: Browser) -> None:
    def paper() -> str:
        return str(browser.value("getComputedStyle(document.body).backgroundColor"))

    light = paper()
    browser.resize(1_200, 900, "dark")
    dark = paper()
    assert light != dark
    focused = list[str]()
    for _ in range(8):
        browser.press("Tab", 9)
        focused.append(browser.value("document.activeElement.outerHTML.slice(0, 40)"))
        if "<summary" in focused[-1]:
            break
    assert any("skip" in one for one in focused) and "<summary" in focused[-1]
    browser.press("Enter", 13, "\r")
    assert browser.value("document.activeElement.parentElement.open")


def test_the_page_tells_screen_readers_what_it_has(server: PageServer, browser: Browser) -> None:
    browser.call("Accessibility.enable")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    browser.call("Accessibility.disable")
    named = {
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    }
    roles = {role for role, _ in named}
    assert {"banner", "main", "contentinfo", "status"} <= roles
    regions = {name for role, name in named if role == "region"}
    assert {"Slots", "Shards", "Tables", "Streams", "Scans in flight", "Upkeep"} <= regions
    assert ("table", "Shards by bytes") in named and ("columnheader", "tablets") in named
    assert all(name for role, name in named if role in ("table", "image", "region"))


def test_nothing_overflows_a_narrow_window_and_nothing_comes_from_elsewhere(
    store: Store, server: PageServer, browser: Browser
) -> None:
    store.create_table("t" * 64, SCHEMA, ["id"])
    browser.wait(f"document.body.textContent.includes('{'t' * 64}')")
    browser.resize(420, 900)
    assert browser.value("document.documentElement.scrollWidth") == 420
    places = browser.value("performance.getEntriesByType('resource').map((one) => one.name)")
    assert all(place.startswith(server.url) for place in places)
    # Trusted Types: no markup can be made of a text, by whatever mistake.
    attempt = (
        "try { document.body.innerHTML = '<b>x</b>'; return 'made' } catch (error) { return error.name }"
    )
    assert browser.value(f"(() => {{ {attempt} }})()") == "TypeError"


@pytest.mark.long
def test_a_store_that_goes_away_is_reported_and_comes_back(
    store: Store, server: PageServer, browser: Browser
) -> None:
    away = Path(store.uri).with_suffix(".away")
    Path(store.uri).rename(away)
    browser.wait("!document.getElementById('problem').hidden")
    assert "goes on when the store is back" in browser.value("document.getElementById('problem').textContent")
    away.rename(store.uri)
    browser.wait("document.getElementById('problem').hidden")
    assert browser.value("document.getElementById('state').textContent") == "live"
