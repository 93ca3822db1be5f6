"""Tags: what they keep, whatever is merged, moved or replaced, and how they are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import elasticscan
from elasticscan.base import limits
from elasticscan.base.errors import (
    AlreadyExists,
    LimitExceeded,
    NotFound,
    SnapshotExpired,
)
from elasticscan.store import Store, Table
from elasticscan.store.context import tags

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def rows(ids: range, v: str) -> pa.Table:
    return pa.table([list(ids), [v] * len(ids)], schema=SCHEMA)


def values(table: Table, snapshot: int | str | None = None) -> dict[int, str]:
    read = table.scan(snapshot=snapshot).to_table()
    return dict(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True))


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


def test_a_tag_that_was_dropped_keeps_nothing(table: Table) -> None:
    table.tag("first")
    table.tag("again", "first")
    table.upsert(rows(range(50), "b"))
    table.drop_tag("first")
    table.compact()
    assert values(table, "again") == dict.fromkeys(range(100), "a")
    kept = table.tags()[0].snapshot
    table.drop_tag("again")
    table.compact()
    with pytest.raises(SnapshotExpired):
        values(table, kept)
    with pytest.raises(SnapshotExpired):
        table.tag("late", kept)
    assert table.tags() == ()


def test_a_name_stands_for_one_snapshot_of_its_table(store: Store, table: Table) -> None:
    made = table.tag("v1")
    assert table.tag("v1", made.snapshot) == table.tags()[0] == made
    other = store.create_table("other", SCHEMA, ["id"])
    newest = other.upsert(rows(range(5), "x"))
    assert other.tag("v1").snapshot == newest
    with pytest.raises(AlreadyExists, match=rf"'v1', of snapshot {made.snapshot}"):
        table.tag("v1")
    assert [tag.name for tag in table.tags()] == ["v1"]
    assert [entry["tags"] for entry in store.status()["tables"]] == [
        [{"name": "v1", "snapshot": tag.snapshot, "created_at": tag.created_at}]
        for tag in (other.tags()[0], made)
    ]


def test_an_unknown_name_is_reported_with_a_suggestion(table: Table) -> None:
    with pytest.raises(NotFound, match=r"list them by Table.tags\(\)"):
        table.scan(snapshot="release_1")
    table.tag("release_1")
    for use in (lambda: table.scan(snapshot="relase_1"), lambda: table.drop_tag("relase_1")):
        with pytest.raises(NotFound, match="did you mean 'release_1'"):
            use()


def test_only_a_snapshot_that_is_there_gets_a_tag(store: Store, table: Table) -> None:
    made = table.history()[0].number
    for snapshot in (made - 1, 99):
        with pytest.raises(NotFound):
            table.tag("x", snapshot)
    with pytest.raises(TypeError):
        table.tag("x", 1.5)  # type: ignore[arg-type]
    table.tag("made", made)
    table.overwrite(rows(range(3), "c"))
    table.compact()
    assert values(table, "made") == {}
    store.table("t").drop()
    with pytest.raises(NotFound):
        table.tag("x")
    with store.context.catalog.reading() as tx:
        assert not tx.state.tables
    store.create_table("t", SCHEMA, ["id"]).tag("made")


def test_tags_are_bounded(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "MAX_TAGS", 2)
    assert limits.MAX_TAGS > 2
    for name in ("a", "b"):
        table.tag(name)
    with pytest.raises(LimitExceeded, match="2 tags"):
        table.tag("c")


def test_tags_outlive_an_adoption(store: Store, table: Table) -> None:
    table.tag("v1")
    table.upsert(rows(range(5), "b"))
    store.adopt()
    table.compact()
    assert values(table, "v1") == dict.fromkeys(range(100), "a")


@pytest.mark.usefixtures("rows_in_files")
def test_a_tag_that_comes_while_fragments_are_merged_keeps_its_snapshot(store: Store, table: Table) -> None:
    old = store.context.catalog.versions()[1]
    table.upsert(rows(range(50), "b"))

    def tag_the_old(point: str) -> None:
        if point == "fragments merged" and not table.tags():
            table.tag("old", old)

    with Store.open(store.uri, checkpoint=tag_the_old, upkeep="off") as other:
        other.compact()
    assert [tag.name for tag in table.tags()] == ["old"]
    assert values(table, "old") == dict.fromkeys(range(100), "a")
