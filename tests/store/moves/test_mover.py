"""One move: rounds while much is committed, a switch whose answer is lost. Splits and joins in one commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest

from elasticscan.store import Store
from elasticscan.store.moves.elasticity import split_and_join
from elasticscan.store.moves.mover import MOST_ROUNDS, SMALL_REST_ROWS, Mover
from elasticscan.store.moves.owners import OwnedStep, enter_moves, owner_is_gone, owning
from elasticscan.topology import Move
from tests.base.connections import gate_statements
from tests.base.manual_clock import ManualClock

ROWS = [{"k": number, "v": number} for number in range(40)]


def carry_out(store: Store, sync_point: Callable[[str], None]) -> None:
    """Move the first tablet from `a` to `b`."""
    move = Move(1, source=1, target=2)
    with owning() as owner:
        with store.context.catalog.writing() as tx:
            enter_moves(tx, [move], owner)
        Mover(store.context, owner, move, sync_point).carry_out()
    assert {tablet["shard"] for tablet in store.status()["tablets"]} == {"b"}
    assert store.status()["moves"] == []
    assert store.verify() == []


def test_rows_that_are_committed_while_a_tablet_is_copied_are_copied_in_further_rounds(
    tmp_path: Path,
) -> None:
    points, much = Counter[str](), range(3 * SMALL_REST_ROWS)

    def at(point: str) -> None:
        points[point] += 1
        if point == "copied" and points[point] < MOST_ROUNDS:
            table.upsert(pa.table({"k": much, "v": [points[point]] * len(much)}))

    with Store.create(tmp_path / "a.store", ["a", "b"], tablets=2, slots=8, upkeep="off") as store:
        table = store.create_table("t", pa.table({"k": much, "v": [0] * len(much)}), primary_key="k")
        carry_out(store, at)
        assert points["copied"] == MOST_ROUNDS > 1
        found = table.to_arrow()
        assert sorted(found["k"].to_pylist()) == [*much]
        assert set(found["v"].to_pylist()) == {MOST_ROUNDS - 1}


class LostAnswer:
    """The catalog of a store takes the commit of a switch, gives no answer, and stays away for a while."""

    def __init__(self, refused: int) -> None:
        self.is_switching, self.left = False, refused
        self.was_lost = False

    def point(self, name: str) -> None:
        self.is_switching = self.is_switching or name == "switching"

    def gate(self, statement: str, execute: Callable[[], Any]) -> Any:
        if self.was_lost and self.left:
            self.left -= 1
            raise apsw.ProtocolError("the connection was lost")
        answer = execute()
        if self.is_switching and not self.was_lost and statement == "COMMIT":
            self.was_lost = True
            raise apsw.ProtocolError("the answer was lost")
        return answer


class BusyClock(ManualClock):
    """Time in which another process splits the tablet, as soon as someone waits for the catalog."""

    other: Store | None = None

    def sleep(self, seconds: float) -> None:
        other, self.other = self.other, None
        if other is not None:
            other.split(1)
        super().sleep(seconds)


@pytest.mark.parametrize(("refused", "is_split"), [(0, False), (1, False), (3, False), (6, False), (6, True)])
def test_a_switch_whose_answer_was_lost_is_not_undone(tmp_path: Path, refused: int, is_split: bool) -> None:
    Store.create(tmp_path / "a.store", ["a", "b"], tablets=2, slots=8, clock=ManualClock(1e9)).close()
    clock, lost = BusyClock(1e9), LostAnswer(refused)
    store, other = (Store.open(tmp_path / "a.store", clock, upkeep="off") for _ in range(2))
    clock.other = other if is_split else None
    table = store.create_table("t", ROWS, primary_key="k")
    table.compact()
    end = gate_statements(store.context.catalog, lost.gate)
    carry_out(store, lost.point)
    end()
    assert lost.was_lost
    assert clock.other is None, "no one waited"
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["k"]) == ROWS
    store.close()
    other.close()


def test_tablets_are_split_and_joined_at_once_and_what_became_impossible_is_skipped(tmp_path: Path) -> None:
    with Store.create(tmp_path / "a.store", ["a"], tablets=4, slots=8, upkeep="off") as store:
        assert split_and_join(store.context, [1, 9], [(3, 4), (2, 9)]) == (1, 1)
        tablets = [(tablet["id"], tablet["slots"]) for tablet in store.status()["tablets"]]
        assert tablets == [(5, [0, 1]), (6, [1, 2]), (2, [2, 4]), (7, [4, 8])]
        assert store.topology_history()[-1].reason == "1 tablets split, 1 pairs of neighbours joined"
        assert split_and_join(store.context, [5], []) == (0, 0)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="a process says there when it started")
def test_an_owner_is_gone_once_its_operation_ended_or_another_process_has_its_id() -> None:
    with owning() as owner:
        place, _, started, token = owner.split(":")
        mine = OwnedStep("a step", owner, 0.0, 0.0)
        taken = replace(mine, owner=f"{place}:1:{started}:{token}")
        assert (owner_is_gone(mine, 1e9), owner_is_gone(taken, 0.0)) == (False, True)
    assert owner_is_gone(mine, 0.0)
