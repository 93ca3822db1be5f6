"""Counts by fragments: never another number than a scan gives, whatever happens to a table."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from elasticscan.base.errors import InvalidTopologyChange
from elasticscan.filters import Aggregate
from elasticscan.metadata import Bounds, Fragment
from elasticscan.protocol import ContinuationKey
from elasticscan.store import Store, Table, known_values
from elasticscan.store.reading import aggregating

SCHEMA = pa.schema({"id": pa.int64(), "n": pa.int64()})


def some_rows(ids: list[int]) -> pa.Table:
    return pa.table({"id": ids, "n": ids}, schema=SCHEMA)


def happen(
    store: Store, table: Table, draw: random.Random, rows_of: Callable[[list[int]], pa.Table] = some_rows
) -> None:
    """One of all that may change where rows are, or how many there are."""
    ids = draw.sample(range(400), 60)
    rows = rows_of(ids)
    roll = draw.randrange(9)
    with suppress(InvalidTopologyChange):
        if roll < 2:
            table.upsert(rows)
        elif roll == 2:
            table.delete(ids)
        elif roll == 3:
            table.overwrite(rows)
        elif roll < 6:
            tablets = store.context.placement().tablets
            store.move(draw.choice(tablets).id, draw.choice(["s1", "s2"]))
        elif roll == 6:
            store.split(draw.choice(store.context.placement().tablets).id)
        else:
            table.compact()


def known_of(store: Store, key: ContinuationKey, texts: list[str], schema: pa.Schema = SCHEMA) -> Any:
    values = known_values(store.context, key, [Aggregate.parse(text, schema) for text in texts])
    return values and [value[0].as_py() for value in values]


def count_by_fragments(store: Store, key: ContinuationKey) -> int | None:
    values = known_of(store, key, ["count(*)"])
    return None if values is None else int(values[0])


def run(place: Path, seed: int) -> tuple[int, int, int]:
    """The program of a seed: how many counts were made, how many by fragments, and how many were wrong."""
    draw, made, counted, wrong = random.Random(seed), 0, 0, 0
    with Store.create(place, ["s1", "s2"], tablets=3, slots=16, upkeep="off") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        for _ in range(25):
            happen(store, table, draw)
            commits = [commit.number for commit in table.history()]
            for snapshot in [None, *draw.sample(commits, min(2, len(commits)))]:
                with table.scan(["id"], snapshot=snapshot) as scan:
                    rows = count_by_fragments(store, scan.standing)
                    made, counted = made + 1, counted + (rows is not None)
                with table.scan(snapshot=snapshot) as scan:
                    known = known_of(store, scan.standing, ["count(*)", "count(n)", "min(n)", "max(n)"])
                    n = scan.to_table()["n"]
                    wrong += known is not None and known != [
                        len(n),
                        len(n),
                        pc.min(n).as_py(),
                        pc.max(n).as_py(),
                    ]
                    wrong += (known is None) != (rows is None) or (rows is not None and rows != len(n))
    return made, counted, wrong


@pytest.mark.parametrize("seed", range(6))
def test_what_is_counted_by_fragments_is_what_a_scan_gives(tmp_path: Path, seed: int) -> None:
    made, counted, wrong = run(tmp_path / "store", seed)
    assert not wrong
    assert made > counted > 0


def test_a_table_that_was_merged_is_counted_without_a_look_at_a_file(tmp_path: Path) -> None:
    with Store.create(tmp_path / "store", ["s1", "s2"], tablets=4, slots=16, upkeep="off") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        with table.scan() as scan:
            assert count_by_fragments(store, scan.standing) == 0
        for start in (0, 50):
            table.upsert(pa.table({"id": range(start, start + 100), "n": range(100)}, schema=SCHEMA))
        with table.scan() as scan:
            assert count_by_fragments(store, scan.standing) is None
        table.compact()
        for file in Path(store.uri).glob("shards/**/*.arrow"):
            file.unlink()
        assert table.aggregate("count(*)")["count(*)"].to_pylist() == [150]


def test_least_and_greatest_values_that_statistics_have_not_exactly_are_read(tmp_path: Path) -> None:
    with Store.create(tmp_path / "store", ["s1"], tablets=1, slots=16, upkeep="off") as store:
        rows = pa.table(
            {"id": [1, 2], "s": ["a" * 60, "b" * 60], "f": [-0.0, float("nan")], "g": [1.5, None]}
        )
        table = store.create_table("t", rows, ["id"])
        with table.scan() as scan:
            known = known_of(store, scan.standing, ["min(g)", "max(g)", "count(g)", "max(id)"], rows.schema)
            assert known == [1.5, 1.5, 1, 2]
            for text in ("min(s)", "max(s)", "min(f)", "max(f)", "sum(id)"):
                assert known_of(store, scan.standing, ["count(*)", text], rows.schema) is None
        assert table.aggregate(["min(s)", "max(s)"]).to_pylist() == [{"min(s)": "a" * 60, "max(s)": "b" * 60}]


def test_rows_of_later_commits_in_the_same_fragment_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.create(tmp_path / "store", ["s1"], tablets=1, slots=16, upkeep="off") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        parts = [{"id": range(start, start + 100), "n": range(100)} for start in (0, 100)]
        first, _ = [table.upsert(pa.table(part, schema=SCHEMA)) for part in parts]
        table.compact()
        for snapshot, expected in ((first, None), (None, 200)):
            with table.scan(snapshot=snapshot) as scan:
                assert count_by_fragments(store, scan.standing) == expected
        monkeypatch.setattr(aggregating, "_is_plain", _with(bounds=True))
        with table.scan(snapshot=first) as scan:
            assert count_by_fragments(store, scan.standing) == 200  # what the rule is for


def test_a_scan_that_reads_some_rows_is_not_counted_so(tmp_path: Path) -> None:
    with Store.create(tmp_path / "store", ["s1"], tablets=2, slots=16, upkeep="off") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(pa.table({"id": range(100), "n": range(100)}, schema=SCHEMA))
        for given in ({"filter": "n > 5"}, {"filter": "id = 5"}, {"limit": 4}):
            with table.scan(**given) as scan:  # type: ignore[arg-type]
                assert count_by_fragments(store, scan.standing) is None
        with table.scan(page_rows=10) as scan:
            assert count_by_fragments(store, scan.standing) == 100
            next(scan)
            assert count_by_fragments(store, scan.standing) is None


# Planted faults: were the rules weaker, the program above would find wrong counts.


def _with(**trusted: Any) -> Callable[[Fragment, Bounds], bool]:
    """The rule without some of its conditions."""
    conditions: dict[str, Callable[[Fragment, Bounds], bool]] = {
        "unique": lambda fragment, _: fragment.unique,
        "tombstones": lambda fragment, _: not fragment.tombstones,
        "history": lambda fragment, _: fragment.superseded_at is None,
        "bounds": lambda fragment, bounds: bounds.wholly_hold(fragment),
        "moved": lambda fragment, _: len(fragment.slots) == fragment.slots_written,
    }
    left = [conditions[name] for name in conditions.keys() - trusted.keys()]
    return lambda fragment, bounds: all(condition(fragment, bounds) for condition in left)


@pytest.mark.long
@pytest.mark.usefixtures("rows_in_files")
@pytest.mark.parametrize("trusted", ["tombstones", "moved"])
def test_a_weaker_rule_counts_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: str) -> None:
    monkeypatch.setattr(aggregating, "_is_plain", _with(**{trusted: True}))
    assert any(run(tmp_path / f"store{seed}", seed)[2] for seed in range(12))
