"""expand, contract, move, split, join, topologies, compact, gc, verify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import CatalogUnavailable, MoveInProgress
from elasticscan.store import Kept, Store

Shell = Any


def shards(status: dict[str, Any]) -> dict[str, int]:
    return {shard["name"]: shard["tablets"] for shard in status["shards"]}


def test_a_shard_that_joins_gets_its_share(shell: Shell, uri: str) -> None:
    message = shell.json("expand", uri, "s3", "s4")
    assert message["shards"] == {"s1": 2, "s2": 2, "s3": 2, "s4": 2}
    assert shards(shell.json("status", uri)) == message["shards"]


def test_a_number_is_no_name_of_a_shard(shell: Shell, uri: str, tmp_path: Path) -> None:
    for words in (["expand", uri, "3"], ["create", tmp_path / "new.store", "--shard", "3"]):
        code, message = shell.fails(*words)
        assert code == 2
        assert "[ES_INVALID_OPTION] '3' is a number, and shards have names: write one for each" in message
    assert len(shards(shell.json("status", uri))) == 2
    shell.ok("expand", uri, f"3={tmp_path / 'third'}")


def test_a_shard_that_leaves_is_empty_and_gone(shell: Shell, uri: str, rows: pa.Table) -> None:
    assert "contracted by s1" in shell.ok("contract", uri, "s1", "--bytes-per-second", "1G")
    assert shards(shell.json("status", uri)) == {"s2": 8}
    with Store.open(uri) as store:
        assert store.table("t").scan().to_table().num_rows == rows.num_rows


def test_a_tablet_moves(shell: Shell, uri: str) -> None:
    assert shell.json("move", uri, 1, "s2")["shards"] == {"s1": 3, "s2": 5}
    assert "tablet 1 moved to s1" in shell.ok("move", uri, 1, "s1")


def test_there_is_nothing_to_resume_in_a_healthy_store(shell: Shell, uri: str) -> None:
    assert shell.json("move", uri, "--resume") == {"moves_resumed": 0}
    assert "0 interrupted moves" in shell.ok("move", uri, "--resume")


@pytest.mark.parametrize("words", [[], ["1"], ["1", "s2", "--resume"]])
def test_a_move_names_a_tablet_and_a_shard_or_resumes(shell: Shell, uri: str, words: list[str]) -> None:
    code, message = shell.fails("move", uri, *words)
    assert code == 2
    assert "--resume" in message


def test_a_tablet_is_split_and_joined_again(shell: Shell, uri: str) -> None:
    assert shell.json("split", uri, 1, "--at", 100)["shards"] == {"s1": 5, "s2": 4}
    left, right = (t["id"] for t in shell.json("status", uri)["tablets"][:2])
    assert shell.json("status", uri)["tablets"][0]["slots"] == [0, 100]
    assert shell.json("join", uri, left, right)["shards"] == {"s1": 4, "s2": 4}


def test_all_topologies_are_listed(shell: Shell, uri: str) -> None:
    shell.ok("expand", uri, "s3")
    shell.ok("contract", uri, "s1")
    found = shell.json("topologies", uri)
    assert [topology["reason"] for topology in found] == ["created", "expanded by s3", "contracted by s1"]
    assert [list(topology["shards"]) for topology in found] == [
        ["s1", "s2"],
        ["s1", "s2", "s3"],
        ["s2", "s3"],
    ]
    assert "expanded by s3" in shell.ok("topologies", uri)


@pytest.mark.long
def test_a_slot_map_has_the_placements_of_its_topologies(uri: str) -> None:
    with Store.open(uri) as store:
        for number in range(70):  # some are kept as differences, some whole
            store.move(1, "s2" if number % 2 == 0 else "s1")
        kept = tuple(store.topology_at(entry.number) for entry in store.topology_history())
        assert len(kept) > 70
        for limit in (1, 5, 70, 1000):
            assert store.slot_map(limit).topologies == kept[-limit:]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["expand", "s1=elsewhere"], "ES_ALREADY_EXISTS"),
        (["expand", "No"], "ES_INVALID_NAME"),
        (["expand", "s3", "--bytes-per-second", "fast"], "ES_INVALID_OPTION"),
        (["contract", "s9"], "ES_SHARD_NOT_FOUND"),
        (["move", "99", "s2"], "ES_TABLET_NOT_FOUND"),
        (["move", "1", "s1"], "ES_INVALID_TOPOLOGY_CHANGE"),
        (["split", "99"], "ES_TABLET_NOT_FOUND"),
        (["join", "1", "3"], "ES_INVALID_TOPOLOGY_CHANGE"),
    ],
)
def test_a_change_that_cannot_be_made_says_why(shell: Shell, uri: str, words: list[str], code: str) -> None:
    exit_code, message = shell.fails(words[0], uri, *words[1:], "--json")
    assert exit_code == 2
    assert json.loads(message)["error"]["code"] == code


def test_an_expansion_by_a_shard_that_is_there_does_what_is_left_of_it(shell: Shell, uri: str) -> None:
    before = shell.json("status", uri)
    message = shell.ok("expand", uri, "s1")
    assert "Shard s1 is there already, and tablets are balanced; nothing moved." in message
    assert shell.json("expand", uri, "s1", "s2")["topology"] == before["topology"]
    tablet = next(tablet["id"] for tablet in before["tablets"] if tablet["shard"] == "s1")
    shell.ok("move", uri, tablet, "s2")
    assert set(shell.json("expand", uri, "s1")["shards"].values()) == {4}
    assert [shard["name"] for shard in shell.json("status", uri)["shards"]] == ["s1", "s2"]


def test_a_change_that_may_succeed_later_has_its_own_exit_code(
    shell: Shell, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> None:
        raise MoveInProgress("tablet 1 is being moved")

    monkeypatch.setattr(Store, "split", busy)
    assert shell.fails("split", uri, 1)[0] == 3


def test_small_fragments_are_merged_and_their_files_removed(shell: Shell, uri: str, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("id,name,value\n1,x,1.5\n2,y,2.5\n3,z,3.5\n")
    for _ in range(2):
        shell.ok("load", uri, "t", tmp_path / "r.csv")
    before = shell.json("status", uri)["tables"][0]["fragments"]
    gone = shell.json("compact", uri, "t")["fragments_removed"]
    assert shell.json("status", uri)["tables"][0]["fragments"] == before - gone
    assert gone > 0
    assert shell.json("gc", uri, "--grace", "1d")["files_removed"] == 0
    planned = shell.json("gc", uri, "--grace", "0s", "--dry-run")
    assert planned["files_removed"] == len(planned["decisions"]) > 0
    message = shell.ok("gc", uri, "--grace", "0s", "--dry-run")
    for decision in planned["decisions"]:
        assert decision["path"] in message
        assert decision["reason"].partition(", since")[0] in message  # the seconds since may be more by now
    assert f"{planned['files_removed']} files to remove" in message
    assert shell.json("gc", uri, "--grace", "0s")["files_removed"] == planned["files_removed"]
    assert "0 files removed" in shell.ok("gc", uri)
    assert "0 fragments fewer" in shell.ok("compact", uri)


def test_a_shard_that_is_away_is_named_by_gc(shell: Shell, uri: str) -> None:
    Path(uri, "shards", "s1").rename(Path(uri, "away"))
    assert [each["shard"] for each in shell.json("gc", uri)["skipped"]] == ["s1"]


def test_a_store_is_adopted(shell: Shell, uri: str) -> None:
    assert "owns its shards" in shell.ok("adopt", uri)
    found = shell.json("adopt", uri)
    assert found["missing"] == []
    assert found["commits"][0] == found["commits"][1]


def test_an_undamaged_store_is_verified(shell: Shell, uri: str) -> None:
    assert shell.json("verify", uri) == {"damaged": []}
    assert "as it was written" in shell.ok("verify", uri)


def test_damage_needs_an_operator(shell: Shell, uri: str) -> None:
    fragment = max(Path(uri, "shards", "s1").rglob("*.arrow"))
    content = bytearray(fragment.read_bytes())
    content[len(content) // 2] ^= 1
    fragment.write_bytes(content)
    code, message = shell.fails("verify", uri)
    assert code == 5
    assert fragment.name in message
    code, out, _ = shell.run("verify", uri, "--json")
    assert code == 5
    assert len(json.loads(out)["damaged"]) == 1


def test_adopt_says_where_a_missing_file_may_come_from(shell: Shell, uri: str) -> None:
    first, second = sorted(Path(uri).glob("shards/s*/t1/*.arrow"))[:2]
    trash = first.parents[1] / "trash" / "1" / "t1"
    trash.mkdir(parents=True)
    first.rename(trash / first.name)
    second.unlink()
    message = {
        line.split()[4]: line for line in shell.ok("adopt", uri).splitlines() if "which is gone" in line
    }
    assert "gc` puts it back from the trash" in message[f"t1/{first.name}"]
    assert "elasticscan repair OLD NEW" in message[f"t1/{second.name}"]
    found = shell.json("adopt", uri)
    assert found["in_trash"] == [[first.parts[-3], f"t1/{first.name}"]]
    assert len(found["missing"]) == 2


def test_a_repair_that_lost_something_ends_with_another_code(shell: Shell, uri: str, tmp_path: Path) -> None:
    assert "t: 5,000 rows" in shell.ok("repair", uri, tmp_path / "whole")
    next(Path(uri).glob("shards/s1/t1/*.arrow")).unlink()
    for more in ((), ("--json",)):
        code, out, err = shell.run("repair", uri, tmp_path / f"new{len(more)}", *more)
        assert code == 5
        assert "is gone" in out + err


def test_a_keeper_does_what_is_due_and_then_nothing(shell: Shell, uri: str, rows: pa.Table) -> None:
    with Store.open(uri, upkeep="off") as store:
        for _ in range(10):
            store.table("t").upsert(rows.slice(0, 5))
    due = shell.json("status", uri)["tables"][0]["upkeep"]
    assert due["merges_due"] > 0
    assert "merges" in shell.ok("status", uri)
    kept = shell.json("keep", uri, "--once", "--bytes-per-second", "1G")
    assert kept["merges"] >= due["merges_due"]
    assert kept["problems"] == []
    assert shell.json("status", uri)["tables"][0]["upkeep"]["merges_due"] == 0
    assert "Nothing was due" in shell.ok("keep", uri, "--once")


def test_a_keeper_goes_on_when_the_catalog_was_out_of_reach(
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
    assert [json.loads(line)["merges"] for line in out.splitlines()] == [0, 3]
    assert "the server is away" in err
    rounds = iter([CatalogUnavailable("the server is away")])
    assert "the server is away" in shell.fails("keep", uri, "--once")[1]
    assert "--every must be more than 0" in shell.fails("keep", uri, "--every", "0s")[1]


def test_topologies_are_drawn(shell: Shell, uri: str, tmp_path: Path) -> None:
    shell.ok("move", uri, 1, "s2")
    drawing = tmp_path / "map.svg"
    message = shell.json("topologies", uri, "--svg", drawing)
    assert message == {"svg": str(drawing), "first": 1, "last": 2}
    with Store.open(uri) as store:
        assert drawing.read_text() == store.slot_map().svg
        assert store.slot_map().svg.count("<g>") == 2
        assert "tablet 1 moved to s2" in store.slot_map(1).svg
        assert store._repr_html_().startswith(f"<code>&lt;elasticscan.Store {uri}&gt;</code>")
    assert "Topologies 2 to 2: " in shell.ok("topologies", uri, "--svg", drawing, "--limit", 1)


def test_tablets_that_were_moved_by_hand_are_balanced_again(shell: Shell, uri: str) -> None:
    before = shell.json("status", uri)
    for tablet in [tablet["id"] for tablet in before["tablets"] if tablet["shard"] == "s1"][:3]:
        shell.ok("move", uri, tablet, "s2")
    assert shell.json("rebalance", uri)["shards"] == {"s1": 4, "s2": 4}
    newest = shell.json("status", uri)["topology"]
    assert shell.json("rebalance", uri)["topology"] == newest
    assert "The shards are balanced; nothing moved." in shell.ok("rebalance", uri)
    assert "ids " in shell.ok("status", uri)
