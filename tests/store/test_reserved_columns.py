"""Names of columns that reads, queries and files add cannot be the names of a table's columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from elasticscan.base.errors import SchemaMismatch
from elasticscan.connector.reading import _METADATA
from elasticscan.connector.sql.changing import ACTION
from elasticscan.connector.sql.row_changes import _DELETES
from elasticscan.storage.fragment import SYSTEM_COLUMNS
from elasticscan.store import Store, feed_fields

ADDED = sorted(
    {*_METADATA.names, *(field.name for field in feed_fields()), ACTION, _DELETES, *SYSTEM_COLUMNS}
)
NAMES = [*ADDED, *(name.upper() for name in ADDED), "_Elasticscan_x", "_Shard"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "a.store", ["s1"]) as made:
        made.create_table("t", {"id": [1, 2], "v": ["a", "b"]}, primary_key="id")
        yield made


@pytest.mark.parametrize("name", NAMES)
def test_a_table_gets_no_column_of_a_reserved_name(store: Store, tmp_path: Path, name: str) -> None:
    rows = pa.table({"id": [1, 2, 3], name: ["eu", "us", None]})
    pyarrow.parquet.write_table(rows, tmp_path / "rows.parquet")
    table = store.table("t")
    before = table.definition
    for call in (
        lambda: store.create_table("u", rows.schema, primary_key="id"),
        lambda: store.create_table("u", rows, primary_key="id"),
        lambda: store.create_table("u", rows.to_pydict(), primary_key="id"),
        lambda: store.create_table("u", rows, primary_key=name),
        lambda: store.load("u", tmp_path / "rows.parquet", primary_key="id"),
        lambda: table.add_columns({name: "string"}),
        lambda: table.rename_column("v", name),
    ):
        with pytest.raises(SchemaMismatch, match="is taken by the store"):
            call()
    assert [known.name for known in store.tables()] == ["t"]
    assert table.definition == before


def test_a_name_that_only_resembles_a_reserved_one_is_free(store: Store) -> None:
    table = store.create_table(
        "u", {"id": [1], "_shards": ["a"], "shard": ["b"], "_x": [1]}, primary_key="id"
    )
    assert table.to_arrow().num_rows == 1
