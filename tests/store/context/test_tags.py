"""Tags: their names and their number. What they keep is in `tests/transcripts`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import elasticscan
from elasticscan.base.errors import LimitExceeded
from elasticscan.store import Store, Table
from elasticscan.store.context import tags

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def rows(ids: range, v: str) -> pa.Table:
    return pa.table([list(ids), [v] * len(ids)], schema=SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store that keeps nothing but what is held."""
    with elasticscan.create(
        tmp_path / "a.store", ["s1", "s2"], tablets=4, slots=16, retention_seconds=0
    ) as made:
        yield made


@pytest.fixture
def table(store: Store) -> Table:
    made = store.create_table("t", SCHEMA, ["id"])
    made.upsert(rows(range(100), "a"))
    return made


def test_a_name_stands_for_one_snapshot_of_its_table(store: Store, table: Table) -> None:
    made = table.tag("v1")
    assert table.tag("v1", made.snapshot) == table.tags()[0] == made
    other = store.create_table("other", SCHEMA, ["id"])
    newest = other.upsert(rows(range(5), "x"))
    assert other.tag("v1").snapshot == newest
    assert [entry["tags"] for entry in store.status()["tables"]] == [
        [{"name": "v1", "snapshot": tag.snapshot, "created_at": tag.created_at}]
        for tag in (other.tags()[0], made)
    ]


def test_tags_are_bounded(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "MAX_TAGS", 2)
    for name in ("a", "b"):
        table.tag(name)
    with pytest.raises(LimitExceeded, match="2 tags"):
        table.tag("c")


def test_tags_outlive_an_adoption(store: Store, table: Table) -> None:
    table.tag("v1")
    table.upsert(rows(range(5), "b"))
    store.adopt()
    table.compact()
    assert set(table.scan(snapshot="v1").to_table()["v"].to_pylist()) == {"a"}
