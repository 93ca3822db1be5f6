"""The demo's arithmetic, and its plain scan."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.cli import demo_needs
from elasticscan.cli.demo import _away
from elasticscan.cli.demo_accounts import (
    NEEDED_MOVES,
    Account,
    Arrival,
    account,
    count_within,
    failures,
    pause_seconds,
    usual_pause,
    window,
)
from elasticscan.cli.demo_flights import KEY, airlines, flights
from elasticscan.cli.demo_needs import NotInstalled, check_java, java_major
from elasticscan.cli.demo_plain import PlainScan
from elasticscan.cli.demo_spark import Desk
from elasticscan.store import Store

Shell = Any
EXACT, LOST = Account(5, 5, 0, 0, 0), Account(5, 4, 1, 0, 0)


def keys(numbers: list[int]) -> pa.Table:
    return pa.table(
        {"a": pa.array(numbers, pa.int64()), "b": pa.array([f"k{n % 3}" for n in numbers], pa.string())}
    )


@settings(deadline=None, max_examples=100)
@given(
    expected=st.sets(st.integers(0, 30), max_size=20),
    seen=st.lists(st.integers(0, 30), max_size=40),
)
def test_an_account_counts_like_a_multiset(expected: set[int], seen: list[int]) -> None:
    found = account(keys(sorted(expected)), keys(seen), ["a", "b"])
    assert found == Account(
        expected=len(expected),
        read=len(seen),
        missing=len(expected - set(seen)),
        repeated=len(seen) - len(set(seen)),
        unknown=len(set(seen) - expected),
    )
    assert found.exact == (sorted(seen) == sorted(expected))


def test_an_account_compares_times_of_any_unit() -> None:
    times = pa.table({"at": pa.array([1, 2], pa.timestamp("s", "UTC"))})
    finer = pa.table({"at": pa.array([1_000_000, 2_000_000], pa.timestamp("us", "UTC"))})
    assert account(times, finer, ["at"]).exact


def test_only_moves_while_pages_were_still_to_be_read_count() -> None:
    pages = [Arrival(float(second), 10, 100) for second in range(1, 11)]
    # Whoever holds 250 bytes back may have read the last three pages before the eighth arrived.
    assert window([pages, pages[2:5]], ahead_bytes=250) == (1.0, 7.0)
    assert window([pages], ahead_bytes=0) == (1.0, 9.0)
    assert window([pages], ahead_bytes=10_000) == (1.0, 1.0)
    assert count_within([0.5, 1.0, 3.0, 7.0, 7.5], (1.0, 7.0)) == 3


def test_a_scan_without_pages_has_no_window() -> None:
    assert window([[], []]) == (0.0, 0.0)


def test_the_job_waits_until_enough_tablets_have_moved() -> None:
    assert pause_seconds(0.1, 0, False, 0.5) == 0.5
    assert pause_seconds(0.4, NEEDED_MOVES - 1, False, 0.5) == math.inf
    assert pause_seconds(0.4, NEEDED_MOVES, False, 0.5) == 0.5
    assert pause_seconds(0.9, NEEDED_MOVES, False, 0.5) == math.inf
    assert pause_seconds(0.9, NEEDED_MOVES, True, 0.5) == 0.5


def test_pauses_add_up_to_the_length_that_was_asked_for() -> None:
    assert usual_pause(rows=10_000, page_rows=1_000, tasks=2, seconds=5) == 1.0


def test_the_demo_fails_unless_it_showed_what_it_should() -> None:
    assert failures(EXACT, LOST, NEEDED_MOVES) == []
    assert "missed 1 rows" in failures(LOST, LOST, NEEDED_MOVES)[0]
    assert "only 3 moves" in failures(EXACT, LOST, 3)[0]
    assert "nothing to see" in failures(EXACT, EXACT, NEEDED_MOVES)[0]


def test_an_incomplete_line_of_the_job_is_left_for_later(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "desk")
    desk.open()
    (tmp_path / "desk" / "1.pages").write_text("1.5 10 100 .\n2.5 10 10")
    desk.set_pause(math.inf)
    assert desk.arrivals() == [[Arrival(1.5, 10, 100)]]
    assert float((tmp_path / "desk" / "pause").read_text()) == math.inf


def test_the_flights_have_a_unique_key() -> None:
    found = flights()
    assert found.num_rows == 336_776
    assert found.select(KEY).group_by(list(KEY)).aggregate([]).num_rows == 336_776
    assert [found.column(name).null_count for name in KEY] == [0, 0, 0]
    assert flights(100) == found.slice(0, 100)
    assert set(found.column("carrier").unique().to_pylist()) == set(airlines())


def plain_scan(uri: str) -> tuple[Store, PlainScan]:
    store = Store.open(uri)
    return store, PlainScan(store, "t", ["id"], page_rows=500)


def test_the_plain_scan_is_right_while_nothing_moves(uri: str, rows: pa.Table) -> None:
    store, plain = plain_scan(uri)
    with store:
        plain.run(lambda _: True)
        assert account(rows, plain.to_table(), ["id"]).exact


def test_the_plain_scan_loses_rows_of_a_tablet_that_leaves(uri: str, rows: pa.Table) -> None:
    store, plain = plain_scan(uri)
    with store:
        last = store.context.placement().tablets[3].id
        plain.step()
        store.expand(["s3"])
        if store.context.shard_names()[store.context.placement().tablets[3].shard] == "s1":
            store.move(last, "s3")
        plain.run(lambda _: True)
        found = account(rows, plain.to_table(), ["id"])
        assert found.missing > 0
        assert found.repeated == 0


def test_the_plain_scan_repeats_rows_of_a_tablet_that_arrives_late(uri: str, rows: pa.Table) -> None:
    store, plain = plain_scan(uri)
    with store:
        # s2 holds the upper half of the slots; its first tablet is read before s1 comes so far.
        first = store.context.placement().tablets[4].id
        plain.step()
        plain.step()
        store.move(first, "s1")
        plain.run(lambda _: True)
        found = account(rows, plain.to_table(), ["id"])
        assert found.repeated > 0
        assert found.missing == 0


def test_rows_read_elsewhere_than_planned_are_counted(uri: str) -> None:
    with Store.open(uri) as store:
        base = store.context.placement()
        shards = {name: shard for shard, name in store.context.shard_names().items()}
    slots = np.array([0, 100, 2_048, 4_095], dtype=np.int32)
    seen = pa.table({"_slot": slots, "_shard": ["s1", "s2", "s2", "s3"]})
    assert _away(seen, base, shards) == (2, 2)


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("no java at all", None),
    ],
)
def test_the_version_of_java_is_understood(text: str, major: int | None) -> None:
    assert java_major(text) == major


def test_a_missing_java_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotInstalled, match=r"no java on the PATH: install it .*openjdk-17-jre-headless"):
        check_java()


def test_a_java_home_without_java_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NotInstalled, match=r"does not run"):
        check_java()


def test_an_old_java_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NotInstalled, match=r"is Java 11"):
        check_java()


def test_without_pyspark_the_demo_says_what_to_install(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_needs.importlib.util, "find_spec", lambda _: None)
    code, told = shell.fails("demo")
    assert code == 2
    assert "elasticscan[demo]" in told


@pytest.mark.spark
def test_the_demo_finds_every_flight_while_tablets_move(tmp_path: Path) -> None:
    """In a process of its own, as people run it: it starts and stops a Spark session."""
    words = ["demo", "--rows", "60000", "--seconds", "6", "--keep", str(tmp_path), "--json"]
    code = f"import sys; sys.argv[1:] = {words}; from elasticscan.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    found = json.loads(ended.stdout)
    assert found["elastic"] == {"expected": 60_000, "read": 60_000, "missing": 0, "repeated": 0, "unknown": 0}
    assert found["plain"]["missing"] > 0
    assert found["moves"] >= NEEDED_MOVES
    assert found["followed"] > 0
    assert found["failures"] == []
    assert sum(found["by_airline"].values()) == 60_000
    with Store.open(tmp_path / "flights.store") as store:
        assert sorted(store.context.shard_names().values()) == ["s2", "s3"]
        assert store.scan("flights").to_table().num_rows == 60_000
