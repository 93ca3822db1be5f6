"""The picture of a store."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from elasticscan.cli.picture import BLOCK, LEAVING, MOST_BLOCKS, blocks, colours, picture, shard_lines


def drawn(what: Any) -> str:
    console = Console(width=120, force_terminal=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def status(**changes: Any) -> dict[str, Any]:
    shard = {"root": "", "draining": False, "bytes": 1_000}
    tablets = [{"id": n, "slots": [n, n + 1], "shard": "a" if n < 3 else "b", "epoch": 1} for n in range(5)]
    return {
        "topology": 1,
        "snapshot": 2,
        "slots": 5,
        "shards": [{"name": "a", **shard}, {"name": "b", **shard}],
        "tablets": tablets,
        "tables": [],
        "moves": [],
        "leases": [],
        "scans": [],
        "upkeep": {"running": []},
    } | changes


def test_each_shard_shows_its_tablets() -> None:
    lines = drawn(shard_lines(status())).splitlines()
    assert [line.count(BLOCK) for line in lines] == [3, 0, 2, 0]
    assert [line.strip() for line in lines[1::2]] == ["ids 0 to 2", "ids 3 to 4"]


def test_a_tablet_on_its_way_is_an_arrow_in_the_colour_of_where_it_goes() -> None:
    move = {"tablet": 1, "from": "a", "to": "b", "phase": "copying", "started_at": 0.0}
    message = drawn(picture("x", status(moves=[move])))
    assert BLOCK + LEAVING + BLOCK in message
    assert "copying" in message
    colour = colours(["a", "b"])
    text = blocks([{"id": 1}], colour["a"], {1: colour["b"]})
    assert [str(span.style) for span in text.spans] == [f"bold {colour['b']}"]


def test_a_shard_that_is_being_emptied_says_so() -> None:
    given = status()
    given["shards"][0]["draining"] = True
    assert "a leaving" in drawn(shard_lines(given))


def test_more_tablets_than_fit_are_counted() -> None:
    many = [{"id": n} for n in range(MOST_BLOCKS + 1_500)]
    text = blocks(many, "red", {}).plain
    assert text == BLOCK * MOST_BLOCKS + " and 1,500 more"


def test_an_estimated_row_count_is_marked() -> None:
    table = {
        "name": "t",
        "rows": 7,
        "rows_exact": False,
        "bytes": 1,
        "fragments": 1,
        "primary_key": ["id"],
        "compression": "zstd",
    }
    amplification = {"reads": 1.0, "writes": 1.0, "space": 1.0}
    table["indexes"] = []
    table["upkeep"] = {
        "merges_due": 0,
        "bytes_due": 0,
        "slot_fragments": 1,
        "amplification": amplification,
    }
    assert "≤ 7" in drawn(picture("x", status(tables=[table])))


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    assert "[red]x" in drawn(picture("[red]x", status()))
