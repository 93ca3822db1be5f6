"""The page's server: it shows what `status` says, and only to who asks for it by its own name."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from html import unescape
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import InvalidOption, NotFound
from elasticscan.store import Store
from elasticscan.store.context.leases import hold_for_stream
from elasticscan.ui import make_server, sections, server
from elasticscan.ui.server import POLICY, PageServer

pytestmark = pytest.mark.usefixtures("unflushed")

SCHEMA = pa.schema([("id", pa.int64()), ("km", pa.float64())])
HOSTILE = "<script>alert(1)</script><img src=x onerror='alert(2)'>"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    path = str(tmp_path / "shown.store")
    with Store.create(path, ["s1", "s2"], tablets=8, retention_seconds=3_600) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": range(1_000), "km": [1.0] * 1_000}))
    return path


@contextmanager
def served(uri: str, host: str = "127.0.0.1") -> Iterator[PageServer]:
    made = make_server(uri, host)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join(20)
        assert not thread.is_alive()


def asked(
    made: PageServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, Mapping[str, str], str]:
    with closing(http.client.HTTPConnection("127.0.0.1", made.port, timeout=20)) as line:
        line.request(method, path, headers=headers)
        answer = line.getresponse()
        return answer.status, {name.lower(): v for name, v in answer.getheaders()}, answer.read().decode()


def tables_of(page: str) -> dict[str, list[list[str]]]:
    """Return the cells of the page's tables by their titles."""
    return {
        title: [
            [unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
            for row in re.findall(r"<tr>(.*?)</tr>", body)
        ]
        for title, body in re.findall(r"<h2>(.*?)</h2><div><table><tr>.*?</tr>(.*?)</table>", page)
    }


def test_the_page_shows_what_status_says(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PAUSE_SECONDS", 0.0)
    with served(uri) as made, Store.open(uri) as store:
        first = asked(made, "/")[2]
        store.move(1, "s2")
        store.table("t").delete([1, 2])
        hold_for_stream(store.context, 1, HOSTILE, store.status()["snapshot"])
        status, page = store.status(), asked(made, "/")[2]
        assert store.slot_map(60).svg in page
    found = tables_of(page)
    ids = {str(tablet["id"]): tablet["shard"] for tablet in status["tablets"]}
    assert {row[0]: row[2] for row in found.pop("tablets")} == ids
    for title, _, rows in sections(status):
        shown = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows]
        if title == "streams":  # how long it is behind grows
            shown, found[title] = [row[:5] for row in shown], [row[:5] for row in found[title]]
        assert found.pop(title) == shown
    assert found == {}
    assert HOSTILE not in page and "&lt;script&gt;" in page
    assert "tablet 1 moved to s2" in page and "tablet 1 moved to s2" not in first


def test_what_is_under_way_is_listed(uri: str) -> None:
    with Store.open(uri) as store:
        status = store.status()
    times = {"started_at": 0.0, "silent_since": 60.0, "taken_over_from": None}
    status |= {
        "upkeep": {**status["upkeep"], "running": [{"step": "merge", "owner": "me", "started_at": 0.0}]},
        "moves": [{"tablet": 1, "from": "a", "to": "b", "phase": "copying", **times}],
    }
    found = {title: rows for title, _, rows in sections(status)}
    began = "1970-01-01T00:00:00Z"
    assert found["upkeep under way"] == [["merge", "me", began]]
    assert found["moves"] == [[1, "a", "b", "copying", began, "1970-01-01T00:01:00Z", ""]]


def test_one_reading_serves_all_pages(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PAUSE_SECONDS", 30.0)
    with served(uri) as made:
        pages = {asked(made, "/")[2]}
        with Store.open(uri) as store:
            store.move(1, "s2")
        assert {asked(made, "/")[2] for _ in range(5)} == pages


def test_a_store_that_goes_away_is_a_message_until_it_is_back(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PAUSE_SECONDS", 0.0)
    with served(uri) as made:
        away = Path(uri).with_suffix(".away")
        Path(uri).rename(away)
        assert "[ES_" in asked(made, "/")[2]
        away.rename(uri)
        assert "[ES_" not in asked(made, "/")[2]


def test_the_page_is_one_file_without_scripts_that_loads_nothing(uri: str) -> None:
    with served(uri) as made:
        status, headers, page = asked(made, "/")
        assert [asked(made, "/", method)[0] for method in ("POST", "PUT", "DELETE", "OPTIONS")] == [501] * 4
        assert asked(made, "/nothing")[0] == 404
    assert status == 200
    policy = headers["content-security-policy"]
    assert policy == POLICY
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src" not in policy
    assert set(re.findall(r"https?://[^\"'\s<]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script|\son\w+=|<[^>]+\s(src|href|style)=", page)
    assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"


def test_names_that_are_answered_are_this_machines(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = ["evil.example", "evil.example:8765", "localhost.evil.example", "", "a@127.0.0.1"]
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    with served(uri) as made:
        for header, path in product(foreign, ("/", "/nothing")):
            status, headers, text = asked(made, path, host=header)
            assert (status, "--host" in text) == (421, True)
            assert "content-security-policy" in headers
        assert asked(made, "/", host=f"LOCALHOST:{made.port}")[0] == 200
        for hosts in (b"", b"Host: 127.0.0.1\r\nHost: evil.example\r\n"):
            with socket.create_connection(("127.0.0.1", made.port), 20) as line:
                line.sendall(b"GET / HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n")
                assert line.recv(100).split()[1] in (b"400", b"421")
        here = made.answers
        assert all(map(here, ["127.0.0.1", "127.0.0.1:80", "localhost:9", "[::1]:9", "localhost.", "BOX:80"]))
        assert not any(map(here, ["box.evil.example", "127.0.0.1:x", "localhost:1:2"]))


def test_an_address_that_cannot_be_had_is_reported(uri: str, tmp_path: Path) -> None:
    with served(uri) as made:
        with pytest.raises(InvalidOption, match="--port 0"):
            make_server(uri, "127.0.0.1", made.port)
        with pytest.raises(InvalidOption, match="--host"):
            make_server(uri, "no such host")
    with pytest.raises(NotFound):
        make_server(str(tmp_path / "none.store"))


def test_the_command_prints_where_it_is_and_ends_when_it_is_reported_to(uri: str) -> None:
    command = [sys.executable, "-m", "elasticscan", "ui", uri, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        reported = json.loads(process.stdout.readline())
        assert reported["url"] == f"http://127.0.0.1:{reported['port']}/"
        with socket.create_connection(("127.0.0.1", reported["port"]), 20) as line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in line.recv(1_000)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert process.stderr.read() == b""
