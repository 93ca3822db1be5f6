"""explain: what was considered, what was chosen, and how good the estimates were."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticscan.store import Store

Shell = Any


@pytest.fixture
def indexed(uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    # With the real weights a table this small is read directly whatever the filter.
    monkeypatch.setattr("elasticscan.optimizer.choice.SEEK", 20.0)
    monkeypatch.setattr("elasticscan.optimizer.choice._WEIGHTS", {"sorted": 3.0, "hash": 2.0})
    with Store.open(uri) as store:
        store.table("t").create_index("by_value", ["value"], include=["name"])
        store.table("t").create_index("by_name", ["name"], kind="hash")
    return uri


def words_of_chosen(message: str) -> list[str]:
    (line,) = (line for line in message.splitlines() if "▶" in line)
    return line.split()


def test_all_candidates_are_reported_and_the_chosen_one_is_marked(shell: Shell, indexed: str) -> None:
    found = shell.json("explain", indexed, "t", "--filter", "value = 7.75")
    assert [(each["access"], each["kind"], each["chosen"]) for each in found["candidates"]] == [
        ("direct", "direct", False),
        ("by_value", "sorted", True),
        ("by_name", "hash", False),
    ]
    assert (found["access"], found["index_condition"], found["remainder"]) == (
        "by_value",
        "value = 7.75",
        None,
    )
    assert found["actual"] is None


def test_an_order_leaves_the_indexes_that_lie_in_it(shell: Shell, indexed: str) -> None:
    assert shell.json("explain", indexed, "t", "--order-by", "value DESC")["access"] == "by_value"


def test_what_cannot_be_chosen_has_no_cost_but_a_reason(shell: Shell, indexed: str) -> None:
    out = shell.ok("explain", indexed, "t", "--filter", "value = 7.75", "--json")
    assert "Infinity" not in out
    by_name = json.loads(out)["candidates"][2]
    assert (by_name["usable"], by_name["cost"]) == (False, None)
    message = shell.ok("explain", indexed, "t", "--filter", "value = 7.75")
    assert "a hash index needs the values of all its columns (name)" in message


def test_people_see_a_table_of_candidates_and_the_choice(shell: Shell, indexed: str) -> None:
    message = shell.ok("explain", indexed, "t", "--filter", "value < 5 AND id > 3", "--columns", "name")
    assert words_of_chosen(message)[:7] == ["▶", "by_value", "sorted", "value", "<", "5.0", "id"]
    assert "index by_value, 1 range (the cheapest)" in message
    assert "base-shard scan of 2,048 slots at s2" in message


def test_an_index_that_was_asked_for_is_taken_whatever_it_costs(shell: Shell, indexed: str) -> None:
    assert words_of_chosen(shell.ok("explain", indexed, "t"))[1] == "direct"
    message = shell.ok("explain", indexed, "t", "--index", "by_value")
    assert words_of_chosen(message)[1] == "by_value"
    assert "asked for with --index by_value" in message
    assert "a direct scan (asked for with --index none)" in shell.ok(
        "explain", indexed, "t", "--index", "none"
    )


def test_analyze_holds_the_estimates_against_a_run(shell: Shell, indexed: str) -> None:
    words = ["t", "--filter", "value < 30", "--columns", "name", "--analyze"]
    actual = shell.json("explain", indexed, *words)["actual"]
    assert (actual["rows_scanned"], actual["rows_returned"]) == (96, 96)
    assert actual["pages"] >= 1
    assert actual["seconds"] >= 0
    message = shell.ok("explain", indexed, *words)
    (line,) = (line for line in message.splitlines() if line.startswith("rows returned"))
    assert line.split()[-1] == "96"


def test_analyze_of_a_direct_scan_counts_what_statistics_ruled_out(shell: Shell, uri: str) -> None:
    words = ["t", "--filter", "value > 1e9", "--analyze"]
    actual = shell.json("explain", uri, *words)["actual"]
    assert actual["rows_scanned"] + actual["rows_skipped"] == 5_000
    assert actual["rows_skipped"] > 0
    assert "skipped by statistics" in shell.ok("explain", uri, *words)


def test_explain_leaves_no_lease_however_it_ends(shell: Shell, indexed: str) -> None:
    shell.ok("explain", indexed, "t", "--analyze")
    shell.ok("explain", indexed, "t")
    assert shell.json("status", indexed)["leases"] == []


def test_an_unknown_index_is_the_callers_mistake(shell: Shell, indexed: str) -> None:
    code, message = shell.fails("explain", indexed, "t", "--index", "by_valu")
    assert code == 2
    assert message.startswith("[ES_INDEX_NOT_FOUND]")
    assert "by_value" in message


def test_text_that_looks_like_markup_is_reported_as_it_is(shell: Shell, indexed: str) -> None:
    assert "name = '[red]'" in shell.ok("explain", indexed, "t", "--filter", "name = '[red]'")
