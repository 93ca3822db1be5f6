"""status: the streams of a table, their position, and how far they are behind."""

from __future__ import annotations

import pyarrow as pa
import pytest

from elasticscan.store import Store
from elasticscan.store.context.leases import take_lease
from tests.cli.conftest import Shell

WEEK = 7 * 86_400


def hold(store: Store, name: str, commit: int, table: str = "t", seconds: float = WEEK) -> None:
    """Keep the changes after a commit, as a stream of this name does."""
    with store.context.catalog.writing() as tx:
        take_lease(tx, f"{table}/{name}", tx.state.table_named(table), commit, f"stream:{name}", seconds)


@pytest.fixture
def followed(uri: str, rows: pa.Table) -> str:
    """Make the store of `uri` with a stream that has all of `t`, and one that is two commits behind."""
    with Store.open(uri) as store:
        hold(store, "slow", 2)
        store.table("t").upsert(rows.slice(0, 10))
        store.table("t").upsert(rows.slice(0, 3))
        hold(store, "quick", 4)
    return uri


def test_a_stream_is_as_far_behind_as_the_table_has_commits_after_its_own(
    shell: Shell, followed: str
) -> None:
    quick, slow = shell.json("status", followed)["streams"]
    assert (slow["name"], slow["table"], slow["commit"]) == ("slow", "t", 2)
    assert (slow["behind_commits"], slow["behind_rows"]) == (2, 13)
    assert slow["behind_seconds"] > 0
    behind = [quick[f"behind_{what}"] for what in ("commits", "rows", "seconds")]
    assert (quick["name"], quick["commit"], behind) == ("quick", 4, [0, 0, 0.0])


@pytest.mark.long
def test_scans_and_ended_leases_are_no_streams(uri: str) -> None:
    with Store.open(uri) as store:
        next(store.table("t").scan(page_rows=10))
        hold(store, "gone", 2, seconds=-1)
        assert len(store.status()["leases"]) == 1
        assert store.status()["streams"] == []


def test_a_stream_of_a_table_that_was_dropped_is_not_one_of_the_next_table_of_that_name(
    followed: str, rows: pa.Table
) -> None:
    with Store.open(followed) as store:
        store.table("t").drop()
        assert store.status()["streams"] == []
        store.create_table("t", rows.schema, ["id"])
        assert store.status()["streams"] == []


def test_people_see_a_line_for_each_stream(shell: Shell, followed: str) -> None:
    with Store.open(followed) as store:
        hold(store, "[bold]odd", 4)
    lines = shell.ok("status", followed).partition("\nstreams\n")[2].splitlines()
    assert "behind rows" in lines[0]
    assert [line.split()[:5] for line in lines[1:4]] == [
        ["[bold]odd", "t", "4", "0", "0"],
        ["quick", "t", "4", "0", "0"],
        ["slow", "t", "2", "2", "13"],
    ]
