"""The memory of a table follows its commits, whichever were flushed, and is made anew as little as it can."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from elasticscan.base.errors import ShardUnavailable
from elasticscan.store import Store
from elasticscan.store.context import memory
from elasticscan.store.context.memory import Memories, TableMemory
from elasticscan.store.upkeep.flushing import flush
from tests.store.writing.test_small_commits import SCHEMA, rows


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "store", ["s1", "s2"], tablets=8, slots=64, upkeep="off") as it:
        it.create_table("t", SCHEMA, ["id"])
        yield it


def seen(store: Store, memories: Memories) -> TableMemory:
    with store.context.catalog.reading() as tx:
        return memories.of(tx, tx.state.table_named("t"))


def held(of: TableMemory) -> list[tuple[int, int]]:
    """Return (slot, commit) of all rows."""
    parts = [rows.rows for part in (of._old, of._new) for rows in part.rows.values()]
    columns = ([*part.column("_slot").to_pylist()] for part in parts)
    commits = ([*part.column("_commit").to_pylist()] for part in parts)
    return sorted(pair for pairs in zip(columns, commits, strict=True) for pair in zip(*pairs, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_who_follows_has_what_one_has_who_begins(
    store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_FEW_ROWS", 10)
    rng, memories = random.Random(seed), Memories()
    for _ in range(25):
        match rng.randrange(8):
            case 0:
                flush(store.context, 1)
            case 1:
                root = Path(store.uri) / "shards" / rng.choice(["s1", "s2"])
                root.rename(root.with_name("away"))
                with suppress(ShardUnavailable):  # all rows are of this shard
                    flush(store.context, 1)
                root.with_name("away").rename(root)
            case 2:
                store.table("t").delete([rng.randrange(40)])
            case _:
                first = rng.randrange(40)
                store.table("t").upsert(rows(first, first + rng.randrange(1, 5)))
        if rng.random() < 0.6:
            assert held(seen(store, memories)) == held(seen(store, Memories()))


def test_a_commit_costs_the_last_few_alone(store: Store) -> None:
    memories, table = Memories(), store.table("t")
    table.upsert(rows(0, 1_000))
    large = seen(store, memories)
    table.upsert(rows(0, 10))
    first = seen(store, memories)
    table.upsert(rows(5, 20))
    second = seen(store, memories)
    assert second.fragments[0] is first.fragments[0] is large.fragments[0]
    assert [fragment.rows for fragment in second.fragments] == [1_000, 25]
    assert seen(store, memories) is second
    table.upsert(rows(20, 300))
    assert [fragment.rows for fragment in seen(store, memories).fragments] == [1_305]
