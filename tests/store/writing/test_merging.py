"""Merges: rows that meet those with the same keys, in one commit, exact alongside other writers and moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import (
    SchemaMismatch,
)
from elasticscan.store import Store, Table
from elasticscan.store.writing import merging

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int32()),
        pa.field("city", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


def rows(keys: Any, n: int = 0, city: str = "Oslo") -> pa.Table:
    return pa.Table.from_pylist([{"id": k, "n": n, "city": city, "tags": ["a", None]} for k in keys], SCHEMA)


@pytest.fixture
def table(store: Store) -> Table:
    """A table with the keys 0 to 9."""
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(rows(range(10)))
    return table


def content(table: Table) -> dict[int, tuple[Any, ...]]:
    read = table.scan().to_table().to_pylist()
    return {row["id"]: (row["n"], row["city"], row["tags"]) for row in read}


def test_columns_that_come_or_go_while_rows_are_read_begin_it_again(store: Store, table: Table) -> None:
    schema = pa.schema([SCHEMA.field("id"), SCHEMA.field("n")])

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"id": 1, "n": 5}], schema)
        table.add_columns([pa.field("x", pa.int8())])
        table.upsert(rows([2]).append_column("x", pa.array([7], pa.int8())))
        yield pa.RecordBatch.from_pylist([{"id": 2, "n": 5}], schema)
        table.drop_columns(["tags"])
        yield pa.RecordBatch.from_pylist([{"id": 50, "n": 5}], schema)

    table.merge(pa.RecordBatchReader.from_batches(schema, batches()), columns=["n"])
    read = table.scan(filter="n = 5", columns=["id", "city", "x"]).to_table().sort_by("id").to_pylist()
    assert read == [
        {"id": 1, "city": "Oslo", "x": None},
        {"id": 2, "city": "Oslo", "x": 7},
        {"id": 50, "city": None, "x": None},
    ]


def test_rows_are_not_inserted_without_a_value_that_the_table_requires(store: Store) -> None:
    n = pa.field("n", pa.int64(), nullable=False)
    strict = store.create_table("strict", pa.schema([("id", pa.int64()), n, ("c", pa.string())]), ["id"])
    strict.insert([{"id": 1, "n": 1, "c": "a"}])
    with pytest.raises(SchemaMismatch, match="column 'n' has 1 nulls but the table allows none"):
        strict.merge([{"id": 1, "c": "b"}, {"id": 2, "c": "b"}], columns=["c"])
    strict.merge([{"id": 1, "c": "b"}, {"id": 2, "c": "b"}], columns=["c"], when_not_matched="ignore")
    assert strict.scan().to_table().to_pylist() == [{"id": 1, "n": 1, "c": "b"}]


@settings(max_examples=8, deadline=None)
@given(
    before=st.sets(st.integers(0, 40)),
    new=st.lists(st.integers(0, 40), unique=True),
    matched=st.sampled_from(merging.WHEN_MATCHED),
    not_matched=st.sampled_from(merging.WHEN_NOT_MATCHED),
    some=st.booleans(),
    piece=st.integers(1, 5),
)
def test_it_does_what_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, before: set[int], new: list[int],
    matched: str, not_matched: str, some: bool, piece: int,
) -> None:  # fmt: skip
    if (matched, not_matched) == ("ignore", "ignore"):
        return
    expected: dict[int, tuple[Any, ...]] = {key: (0, "Oslo", ["a", None]) for key in before}
    for key in new:
        if key in before and matched == "delete":
            del expected[key]
        elif key in before and matched == "update":
            expected[key] = (1, "Oslo" if some else "Lima", ["a", None])
        elif key not in before and not_matched == "insert":
            expected[key] = (1, None, None) if some else (1, "Lima", ["a", None])
    with Store.create(tmp_path_factory.mktemp("m") / "m.store", ["s1", "s2"], tablets=2, slots=8) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(rows(before))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merging, "MOST_KEYS", piece)
            data = rows(new, 1, "Lima").to_reader(max_chunksize=3)
            table.merge(
                data, columns=["n"] if some else None, when_matched=matched, when_not_matched=not_matched
            )
        assert content(table) == expected
