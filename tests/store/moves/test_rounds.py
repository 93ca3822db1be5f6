"""A move copies in rounds while much is committed, and switches once little is left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa

from elasticscan.store import Store
from elasticscan.store.moves.mover import MOST_ROUNDS, SMALL_REST_ROWS, Mover
from elasticscan.store.moves.owners import owning
from elasticscan.store.moves.under_way import enter_moves
from elasticscan.topology import Move

MUCH = 3 * SMALL_REST_ROWS


def rows(commit: int) -> pa.Table:
    return pa.table({"k": range(MUCH), "v": [commit] * MUCH})


def test_rows_that_are_committed_while_a_tablet_is_copied_are_copied_in_further_rounds(
    tmp_path: Path,
) -> None:
    with Store.create(tmp_path / "a.store", ["a", "b"], tablets=2, slots=8, upkeep="off") as store:
        table, points = store.create_table("t", rows(0), primary_key="k"), Counter[str]()

        def at(point: str) -> None:
            points[point] += 1
            if point == "copied" and points[point] < MOST_ROUNDS:
                table.upsert(rows(points[point]))

        move = Move(1, source=1, target=2)
        with owning() as owner:
            with store.context.catalog.writing() as tx:
                enter_moves(tx, [move], owner)
            Mover(store.context, owner, checkpoint=at).carry_out(move)
        assert points["copied"] == MOST_ROUNDS > 1
        assert {tablet["shard"] for tablet in store.status()["tablets"]} == {"b"}
        found = table.to_arrow()
        assert sorted(found["k"].to_pylist()) == list(range(MUCH))
        assert set(found["v"].to_pylist()) == {MOST_ROUNDS - 1}
        assert store.verify() == []
