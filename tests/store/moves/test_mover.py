"""One move: rounds while much is committed, and a switch whose answer is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest

from elasticscan.store import Store
from elasticscan.store.moves.mover import MOST_ROUNDS, SMALL_REST_ROWS, Mover
from elasticscan.store.moves.owners import enter_moves, owning
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
