"""Columns that come, go, are renamed and widened: what was written before, and who began before.

Rows at every snapshot alongside all else are a matter of the programs "columns change".
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow import ipc

from elasticscan.base.errors import (
    FragmentDamaged,
    LimitExceeded,
    SchemaMismatch,
    TableChanged,
)
from elasticscan.connector.partitions import PLACES
from elasticscan.connector.sql.changing import ACTION
from elasticscan.connector.sql.row_changes import _DELETES
from elasticscan.storage import FragmentReader
from elasticscan.storage.fragment import SYSTEM_COLUMNS
from elasticscan.store import Store, Table, feed_fields
from elasticscan.store.repair.rebuild import repair_store
from elasticscan.store.writing import definitions
from tests.base.connections import call_at_statements

pytestmark = pytest.mark.usefixtures("unflushed")

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.string()),
        pa.field("n", pa.int32()),
        pa.field("must", pa.int8(), nullable=False),
    ]
)
COUNT = 200
OLD = [{"id": i, "v": f"v{i % 5}", "n": i % 7 or None, "must": i % 3} for i in range(COUNT)]
NEW = [{"id": i, "w": "new", "n": i + (1 << 40), "must": "x", "v": 0.5} for i in range(0, COUNT + 20, 4)]
CHANGED = [{"id": row["id"], "w": row["v"], "n": row["n"], "must": None, "v": None} for row in OLD]
MIXED = [*({row["id"]: row for row in CHANGED} | {row["id"]: row for row in NEW}).values()]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Two shards, a table of 200 rows: commit 2."""
    with Store.create(tmp_path / "store", ["a", "b"], tablets=8, slots=32) as made:
        made.create_table("t", SCHEMA, ["id"]).upsert(pa.Table.from_pylist(OLD, SCHEMA))
        yield made


def change(table: Table) -> None:
    """All kinds of changes; dropped names come again, with other types."""
    table.rename_column("v", "w")
    table.widen_column("n", pa.int64())
    table.drop_columns(["must"])
    table.add_columns([pa.field("must", pa.string()), pa.field("v", pa.float64())])


def write_new(table: Table) -> None:
    table.upsert(pa.Table.from_pylist(NEW, table.schema))


def read(rows: pa.Table) -> list[dict[str, Any]]:
    return list(rows.sort_by("id").to_pylist())


def file_columns(store: Store) -> set[str]:
    """All columns of the fragments that serve slots."""
    tx = store.context.catalog.newest()
    places = [Path(store.context.roots.root(f.shard).place) / f.path for f in tx.state.fragments()]
    return {name for place in places for name in ipc.open_file(place).schema.names}


def test_values_of_dropped_columns_leave_the_files_when_no_snapshot_from_before_is_kept(
    store: Store, table: Table
) -> None:
    table.tag("before")
    change(table)
    write_new(table)
    table.set_retention("0s")
    store.compact()
    assert "must" in file_columns(store), "a scan at the tag may have begun before"
    table.drop_tag("before")
    write_new(table)
    store.compact()
    assert "must" not in file_columns(store)
    assert read(table.to_arrow()) == MIXED


def is_free(lock: Path) -> bool:
    with lock.open("rb") as queue:
        try:
            fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.parametrize("at", range(2))
def test_a_snapshot_is_never_read_by_a_definition_from_before_it(
    store: Store, other: Store, table: Table, at: int
) -> None:
    """Others change all, and merge, at a statement of a scan that looks a table up and then takes a lease."""
    lock = Path(store.uri) / "catalog.db.lock"
    if not lock.exists():
        pytest.skip("no one comes between the statements of a catalog at a server")
    table.set_retention("0s")  # so that a lease is needed
    free = list[str]()

    def let_others_in(statement: str) -> None:
        if is_free(lock):
            free.append(statement)
            if len(free) == at + 1:
                change(other.table("t"))
                write_new(other.table("t"))
                other.compact()

    end = call_at_statements(store.context.catalog, let_others_in)
    scan = table.scan()
    end()
    assert len(free) > at and read(scan.to_table()) == MIXED


def test_columns_that_were_dropped_and_names_that_were_given_are_bounded(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "MAX_COLUMNS", 6)
    monkeypatch.setattr(definitions, "MAX_RENAMES", 2)
    for _ in range(2):
        table.add_columns([pa.field("more", pa.int8())])
        table.drop_columns(["more"])
    with pytest.raises(LimitExceeded, match="dropped ones included"):
        table.add_columns([pa.field("more", pa.int8())])
    table.rename_column("v", "w")
    table.rename_column("w", "v")
    with pytest.raises(LimitExceeded, match="renamed 2 times"):
        table.rename_column("v", "w")


OF_DECIMALS = (
    pa.decimal128(5, 2),
    pa.decimal128(38, 2),
    [Decimal("-999.99"), Decimal("999.99"), None],
)
WIDENED: list[tuple[pa.DataType, pa.DataType, list[Any]]] = [
    (pa.int16(), pa.int64(), [-(1 << 15), (1 << 15) - 1, None]),
    (pa.uint8(), pa.uint64(), [0, 255, None]),
    (pa.uint32(), pa.uint64(), [0, (1 << 32) - 1, None]),
    (pa.float16(), pa.float32(), [0.5, -2.0, None]),
    (pa.float16(), pa.float64(), [0.5, -2.0, None]),
    OF_DECIMALS,
    (pa.decimal256(5, 2), pa.decimal256(60, 2), [Decimal("-999.99"), Decimal("999.99"), None]),
]


@pytest.mark.usefixtures("rows_in_files")
def test_a_file_only_lacks_columns_that_came_after_it_or_went_before(store: Store, table: Table) -> None:
    def columns_of(fragment: Any, names: list[str], definition: Any) -> pa.RecordBatch:
        disk = store.context.disk_of(fragment.shard)
        return FragmentReader(disk, fragment.path, names, fragment.seal, definition).batch(0)

    first = table.definition
    table.add_columns([pa.field("late", pa.int32()), pa.field("later", pa.int32())])
    table.upsert(table.scan(limit=100).to_table())
    tx = store.context.catalog.newest()
    old, *_, new = sorted(tx.state.fragments(), key=lambda fragment: fragment.min_commit)
    with pytest.raises(FragmentDamaged, match="late"):
        columns_of(old, ["id", "late"], first)
    now = table.definition
    assert columns_of(old, ["id", "late"], now).column("late").null_count == old.rows
    of_then = replace(now, columns=(*now.columns[:-1], replace(now.columns[-1], stored="other")))
    with pytest.raises(FragmentDamaged, match="has no column 'later'"):
        columns_of(new, ["later"], of_then)
    with pytest.raises(TableChanged, match="were changed while"):
        columns_of(new, ["later"], replace(of_then, definition=1, names_of=2))
    never = [*now.columns[:-2], *(replace(each, nullable=False) for each in now.columns[-2:])]
    never_null = pa.schema([pa.field("late", pa.int32(), nullable=False)])
    with pytest.raises(FragmentDamaged, match="never null"):
        columns_of(old, ["late"], replace(now, columns=tuple(never), schema=never_null))


@pytest.mark.usefixtures("rows_in_files")
@pytest.mark.parametrize("with_catalog", [True, False])
def test_a_repair_has_the_columns_of_now(
    store: Store, table: Table, tmp_path: Path, with_catalog: bool
) -> None:
    change(table)
    write_new(table)
    expected = table.schema
    if with_catalog:
        table.rename_column("w", "later")  # which no file knows
    else:
        store.close()
        (Path(store.uri) / "catalog.db").unlink()
    assert repair_store(store.uri, tmp_path / "again").lost == []
    with Store.open(tmp_path / "again") as made:
        if with_catalog:
            made.table("t").rename_column("later", "w")
        assert made.table("t").schema == expected
        assert read(made.table("t").to_arrow()) == MIXED


def test_every_widening_keeps_every_value(store: Store) -> None:
    names = [f"v{number}" for number in range(len(WIDENED))]
    columns = [pa.array(values, kind) for kind, _, values in WIDENED]
    table = store.create_table("wide", pa.table([pa.array(range(3)), *columns], ["id", *names]), ["id"])
    for kind in (pa.decimal128(9, 3), pa.decimal128(4, 2), pa.decimal256(9, 2)):
        with pytest.raises(SchemaMismatch, match="name a wider type"):
            table.widen_column(f"v{WIDENED.index(OF_DECIMALS)}", kind)
    for name, (_, wider, _) in zip(names, WIDENED, strict=True):
        assert table.widen_column(name, wider).field(name).type == wider
    for _ in range(2):
        found = table.scan().to_table().sort_by("id").to_pydict()
        assert [found[name] for name in names] == [values for _, _, values in WIDENED]
        table.upsert(table.scan(filter="id = 1").to_table())
        store.compact()


def test_no_column_gets_a_name_of_what_reads_queries_and_files_add(
    store: Store, table: Table, tmp_path: Path
) -> None:
    feed = [field.name for field in feed_fields()]
    added = {*PLACES.names, *feed, ACTION, _DELETES, *SYSTEM_COLUMNS}
    for name in (*added, *(name.upper() for name in added), "_Elasticscan_x", "_Shard"):
        rows = pa.table({"id": [1, 2, 3], name: ["eu", "us", None]})
        pyarrow.parquet.write_table(rows, tmp_path / "rows.parquet")
        for call in (
            partial(store.create_table, "u", rows, primary_key="id"),
            partial(store.create_table, "u", rows.schema, primary_key=name),
            partial(store.load, "u", tmp_path / "rows.parquet", primary_key="id"),
            partial(table.add_columns, {name: "string"}),
            partial(table.rename_column, "v", name),
        ):
            with pytest.raises(SchemaMismatch, match="is reserved, like"):
                call()
    assert [known.name for known in store.tables()] == ["t"]
    assert table.schema == SCHEMA
    free = {"id": [1], "_shards": ["a"], "shard": ["b"], "_x": [1]}
    assert store.create_table("u", free, primary_key="id").to_arrow().num_rows == 1
