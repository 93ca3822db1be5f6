"""Damage, missing files, shards that are away, keepers, and histories by time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import CatalogUnavailable
from elasticscan.catalog import topology
from elasticscan.store import Kept, Store
from tests.cli.conftest import Shell


def test_status_as_json_is_exactly_the_status_of_the_store(shell: Shell, uri: str) -> None:
    with Store.open(uri) as store:
        assert shell.json("status", uri) == json.loads(json.dumps(store.status()))


def test_topologies_are_drawn(shell: Shell, uri: str, tmp_path: Path) -> None:
    shell.ok("move", uri, 1, "s2")
    drawing = tmp_path / "map.svg"
    assert [each["topology"] for each in shell.json("topologies", uri, "--svg", drawing)] == [1, 2]
    with Store.open(uri) as store:
        assert drawing.read_text() == store.slot_map().svg
        assert store.slot_map().svg.count("<g>") == 2
        assert "tablet 1 moved to s2" in store.slot_map(1).svg
        assert store._repr_html_() == store.slot_map(40).svg


@pytest.mark.long
def test_a_slot_map_has_the_placements_of_its_topologies(uri: str) -> None:
    with Store.open(uri) as store:
        for number in range(70):  # some are kept as differences, some whole
            store.move(1, "s2" if number % 2 == 0 else "s1")
        with store.context.catalog.reading() as tx:
            kept = tuple(topology(tx, entry.number) for entry in store.topology_history())
        assert len(kept) > 70
        for limit in (1, 5, 70, 1000):
            assert store.slot_map(limit).topologies == kept[-limit:]


def test_a_shard_that_is_away_is_named_by_gc(shell: Shell, uri: str) -> None:
    Path(uri, "shards", "s1").rename(Path(uri, "away"))
    assert [each["shard"] for each in shell.json("gc", uri)["skipped"]] == ["s1"]
    code, _, err = shell.run("gc", uri)
    assert (code, "shard s1 was skipped" in err) == (0, True)


def test_damage_needs_an_operator(shell: Shell, uri: str) -> None:
    fragment = max(Path(uri, "shards", "s1").rglob("*.arrow"))
    content = bytearray(fragment.read_bytes())
    content[len(content) // 2] ^= 1
    fragment.write_bytes(content)
    code, message = shell.fails("verify", uri)
    assert (code, fragment.name in message) == (5, True)
    code, out, _ = shell.run("verify", uri, "--json")
    assert (code, len(json.loads(out)["damaged"])) == (5, 1)


def test_adopt_names_files_that_are_missing(shell: Shell, uri: str) -> None:
    gone = next(Path(uri).glob("shards/s*/t1/*.arrow"))
    gone.unlink()
    assert f"t1/{gone.name} of shard {gone.parts[-3]}, which is gone" in shell.ok("adopt", uri)
    assert shell.json("adopt", uri)["missing"] == [[gone.parts[-3], f"t1/{gone.name}"]]


def test_a_repair_that_lost_something_ends_with_another_code(shell: Shell, uri: str, tmp_path: Path) -> None:
    next(Path(uri).glob("shards/s1/t1/*.arrow")).unlink()
    for more in ((), ("--json",)):
        code, out, err = shell.run("repair", uri, tmp_path / f"new{len(more)}", *more)
        assert (code, "is gone" in out + err) == (5, True)


@pytest.mark.usefixtures("rows_in_files")
def test_a_keeper_merges_and_then_nothing_is_due(shell: Shell, uri: str, rows: pa.Table) -> None:
    with Store.open(uri, upkeep="off") as store:
        for _ in range(10):
            store.table("t").upsert(rows.slice(0, 5))
    due = shell.json("status", uri)["tables"][0]["upkeep"]["merges_due"]
    assert due > 0
    kept = shell.json("keep", uri, "--once", "--bytes-per-second", "1G")
    assert kept["merges"] >= due
    assert kept["problems"] == []
    assert shell.json("status", uri)["tables"][0]["upkeep"]["merges_due"] == 0
    assert "Nothing was changed." in shell.ok("keep", uri, "--once")


def test_a_keeper_continues_when_the_catalog_was_out_of_reach(
    shell: Shell, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = iter([CatalogUnavailable("the server is away"), Kept(merges=3), KeyboardInterrupt()])

    def keep(_: object, **__: object) -> Kept:
        match next(rounds):
            case Kept() as kept:
                return kept
            case error:
                raise error

    monkeypatch.setattr(Store, "keep", keep)
    code, out, err = shell.run("keep", uri, "--every", "0.01s", "--json")
    assert code == 0
    assert [json.loads(line).get("merges") for line in out.splitlines()] == [None, 3]
    assert "the server is away" in err
    rounds = iter([CatalogUnavailable("the server is away")])
    assert shell.fails("keep", uri, "--once")[0] == 3


def test_a_keeper_runs_until_it_is_stopped(uri: str) -> None:
    words = [sys.executable, "-m", "elasticscan", "keep", uri, "--every", "0.05s", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        assert [json.loads(keeper.stdout.readline())["problems"] for _ in range(2)] == [[], []]
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(60) == 0
