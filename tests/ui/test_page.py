"""The page's server: one document for all, from one reader, for who sits at this machine alone."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("uvicorn", reason="pip install 'elasticscan[ui]'")
pytest.importorskip("starlette", reason="pip install 'elasticscan[ui]'")

from elasticscan.base.errors import InvalidOption, StoreNotFound
from elasticscan.base.json_text import json_text
from elasticscan.store import Store
from elasticscan.store.context.leases import hold_for_stream
from elasticscan.ui import is_loopback, make_server, server
from elasticscan.ui.hosts import answered_names
from elasticscan.ui.server import PageServer, policy_of
from elasticscan.ui.watching import Broadcast, StoreLooker

pytestmark = pytest.mark.usefixtures("unflushed")

SCHEMA = pa.schema([("id", pa.int64()), ("km", pa.float64())])


@pytest.fixture
def uri(tmp_path: Path) -> str:
    path = str(tmp_path / "shown.store")
    with Store.create(path, ["s1", "s2"], tablets=8, retention_seconds=3_600) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": range(1_000), "km": [1.0] * 1_000}))
    return path


@contextmanager
def served(uri: str, host: str = "127.0.0.1", **how: Any) -> Iterator[PageServer]:
    made = PageServer(uri, host, 0, **how)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.stop()
        thread.join(20)
        assert not thread.is_alive()


def asked(
    made: PageServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, Mapping[str, str], str]:
    line = http.client.HTTPConnection("127.0.0.1", made.port, timeout=20)
    try:
        line.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = line.getresponse()
        return answer.status, {name.lower(): v for name, v in answer.getheaders()}, answer.read().decode()
    finally:
        line.close()


class Viewer:
    """A viewer that follows the events: the newest document of each kind."""

    def __init__(self, made: PageServer) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", made.port, timeout=20)
        self._line.request("GET", "/events")
        self._answer = self._line.getresponse()
        assert self._answer.status == 200
        self.documents: dict[str, Any] = {}

    def until(self, met: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while not met(self.documents):
            line = self._answer.readline().decode()
            assert line, "the events ended"
            if line.startswith("event: "):
                self.documents[line[7:].strip()] = json.loads(self._answer.readline().decode()[6:])
        return self.documents

    def close(self) -> None:
        self._answer.close()
        self._line.close()


def test_the_page_gets_what_status_prints(uri: str) -> None:
    with served(uri) as made, Store.open(uri) as store, closing(Viewer(made)) as viewer:
        seen = viewer.until(lambda seen: "problem" in seen)
        assert seen["status"] == json.loads(json_text(store.status()))
        assert seen["slot-map"] == json.loads(json_text(store.slot_map(60).stripes()))
        assert (seen["store"], seen["problem"]) == ({"uri": uri}, None)
        store.move(1, "s2")
        store.table("t").delete([1, 2])
        hold_for_stream(store.context, 1, "<script>alert(1)</script>", store.status()["snapshot"])
        seen = viewer.until(
            lambda seen: seen["status"]["streams"] and len(seen["slot-map"]["topologies"]) == 2
        )
        assert seen["status"] == json.loads(json_text(store.status()))
        assert seen["status"]["tables"][0]["rows"] >= 998
        assert [t["reason"] for t in seen["slot-map"]["topologies"]] == ["created", "tablet 1 moved to s2"]


@pytest.mark.long
def test_a_store_that_goes_away_is_a_message_until_it_is_back(uri: str) -> None:
    with served(uri) as made, closing(Viewer(made)) as viewer:
        viewer.until(lambda seen: "problem" in seen)
        away = Path(uri).with_suffix(".away")
        Path(uri).rename(away)
        reported = viewer.until(lambda seen: seen["problem"] is not None)["problem"]
        assert reported["code"].startswith("ES_") and reported["message"]
        away.rename(uri)
        viewer.until(lambda seen: seen["problem"] is None)


def test_the_page_is_one_file_that_loads_nothing_and_runs_its_own_script_alone(uri: str) -> None:
    with served(uri) as made:
        status, headers, page = asked(made, "/")
    assert status == 200
    policy = headers["content-security-policy"]
    assert policy == policy_of(page)
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert len(re.findall(r"'sha256-[^']+'", policy)) == 2
    outside = set(re.findall(r"https?://[^\"'\s]+", page)) - {"http://www.w3.org/2000/svg"}
    assert outside == set()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\son\w+=", page)
    assert not re.search(r"<[^>]+\s(src|style)=", page)
    assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"


def test_nothing_can_be_changed_and_nobody_else_may_follow(uri: str) -> None:
    with served(uri) as made:
        assert [asked(made, "/", method)[0] for method in ("POST", "PUT", "DELETE", "OPTIONS")] == [405] * 4
        assert asked(made, "/events", "POST")[0] == 405
        assert asked(made, "/nothing")[0] == 404
        assert asked(made, "/events", sec_fetch_site="cross-site")[0] == 403
        assert made.broadcast is None, "none of that looked at the store"


@pytest.mark.parametrize(
    "header", ["evil.example", "evil.example:8765", "localhost.evil.example", "10.0.0.1", "", "a@127.0.0.1"]
)
def test_who_comes_by_a_foreign_name_is_refused(uri: str, header: str) -> None:
    with served(uri) as made:
        for path in ("/", "/events", "/nothing"):
            status, headers, text = asked(made, path, host=header)
            assert (status, "--host" in text) == (421, True)
            assert "content-security-policy" in headers
        assert asked(made, "/", host=f"LOCALHOST:{made.port}")[0] == 200


def test_a_request_with_two_names_or_none_is_refused(uri: str) -> None:
    with served(uri) as made:
        for hosts in (b"", b"Host: 127.0.0.1\r\nHost: evil.example\r\n"):
            with socket.create_connection(("127.0.0.1", made.port), 20) as line:
                line.sendall(b"GET / HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n")
                assert line.recv(100).split()[1] in (b"400", b"421")


def test_names_that_are_answered_are_those_of_what_was_bound() -> None:
    here = answered_names("127.0.0.1", "127.0.0.1", ("box", "box.lan"))
    assert all(map(here, ["127.0.0.1", "127.0.0.1:80", "localhost:9", "[::1]:9", "localhost."]))
    assert not any(map(here, ["box", "192.168.0.7", "[::2]", "127.0.0.1:x", "localhost:1:2", "x localhost"]))
    everywhere = answered_names("0.0.0.0", "0.0.0.0", ("box", "box.lan"))
    assert all(map(everywhere, ["box:8765", "BOX.lan", "192.168.0.7", "[fe80::1]:9", "localhost"]))
    assert not any(map(everywhere, ["evil.example", "box.evil.example", ""]))
    assert [is_loopback(name) for name in ("localhost", "127.9.9.9", "::1", "0.0.0.0", "box")] == [
        *(True, True, True, False, False)
    ]


class Counting:
    """A looker that counts."""

    def __init__(self) -> None:
        self.looks = self.closed = 0
        self.problem = "null"

    def look(self) -> Mapping[str, str]:
        self.looks += 1
        return {"status": str(self.looks), "store": '"same"', "problem": self.problem}

    def close(self) -> None:
        self.closed += 1


def test_one_reader_serves_all_viewers_and_sleeps_after_the_last() -> None:
    async def watched() -> None:
        looker = Counting()
        broadcast = Broadcast(looker, pause_seconds=0.01)
        viewers: list[AsyncIterator[tuple[str, str] | None]] = [broadcast.follow() for _ in range(50)]
        for viewer in viewers:
            kinds = [document[0] for _ in range(3) if (document := await anext(viewer))]
            assert sorted(kinds) == ["problem", "status", "store"]
            assert (await anext(viewer) or ("",))[0] == "status", "what is the same is not sent again"
        assert looker.looks < 120
        slow = await anext(viewers[0])
        assert slow is not None and int(slow[1]) >= 2, "who is slow gets the newest"
        for viewer in viewers:
            await viewer.aclose()  # type: ignore[attr-defined]
        assert broadcast.viewers == 0
        while not looker.closed:
            await asyncio.sleep(0.01)
        looks = looker.looks
        await asyncio.sleep(0.05)
        assert (looker.looks, looker.closed) == (looks, 1)
        again = broadcast.follow()
        assert int((await anext(again) or ("", ""))[1]) == looks + 1, "what is old is not shown again"
        await again.aclose()  # type: ignore[attr-defined]

    asyncio.run(watched())


def test_a_viewer_that_goes_is_noticed_and_the_store_closed(uri: str) -> None:
    looker = Counting()
    with served(uri, looker=looker) as made:
        with closing(Viewer(made)) as viewer:
            viewer.until(lambda seen: "status" in seen)
        for _ in range(1_000):
            if looker.closed:
                break
            threading.Event().wait(0.02)
        assert looker.closed == 1


def test_there_is_a_bound_on_pages(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_VIEWERS", 1)
    with served(uri, looker=Counting()) as made, closing(Viewer(made)) as viewer:
        viewer.until(lambda seen: "status" in seen)
        assert asked(made, "/events")[0] == 503


def test_a_looker_hides_passwords_and_lets_go_of_a_store_that_fails(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = StoreLooker(uri)
    assert fine.look()["problem"] == "null"

    def broken(*_: object) -> None:
        raise OSError("the disk of postgresql://ann:hidden-word@db/shown says no")

    monkeypatch.setattr(Store, "status", broken)
    reported = fine.look()
    assert list(reported) == ["problem"]
    assert "says no" in reported["problem"] and "hidden-word" not in reported["problem"]
    monkeypatch.undo()
    assert fine.look()["problem"] == "null"
    fine.close()


def test_an_address_that_cannot_be_had_is_reported(uri: str, tmp_path: Path) -> None:
    with served(uri) as made:
        with pytest.raises(InvalidOption, match="--port 0"):
            make_server(uri, "127.0.0.1", made.port)
        with pytest.raises(InvalidOption, match="--host"):
            make_server(uri, "no such host")
    with pytest.raises(StoreNotFound):
        make_server(str(tmp_path / "none.store"))


def test_without_its_extra_the_page_says_what_to_install(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "elasticscan.ui.server")
    with pytest.raises(InvalidOption, match=r"pip install 'elasticscan\[ui\]'"):
        make_server(uri)


def test_the_command_prints_where_it_is_and_ends_when_it_is_reported_to(uri: str) -> None:
    command = [sys.executable, "-m", "elasticscan.cli", "ui", uri, "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ))
    try:
        assert process.stdout is not None
        reported = json.loads(process.stdout.readline())
        assert reported["url"] == f"http://127.0.0.1:{reported['port']}/"
        with socket.create_connection(("127.0.0.1", reported["port"]), 20) as line:
            line.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in line.recv(1_000)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert process.stderr is not None and process.stderr.read() == b""
    finally:
        process.kill()
        process.communicate()
