"""Columns that are dropped, renamed and widened: what was written before, and who began before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from elasticscan.base.errors import (
    AlreadyExists,
    ElasticScanError,
    InvalidOption,
    LimitExceeded,
    NotFound,
    SchemaMismatch,
)
from elasticscan.store import Store, Table, schema_changes
from elasticscan.store.reading import scan
from elasticscan.store.repair.rebuild import repair_store

pytestmark = pytest.mark.usefixtures("unflushed")

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.string()),
        pa.field("n", pa.int32()),
        pa.field("d", pa.decimal128(5, 2)),
        pa.field("must", pa.int8(), nullable=False),
    ]
)
COUNT = 200
FAR = 1 << 40
Row = dict[str, Any]


@pytest.fixture(params=[None, "zstd"], ids=["mapped", "compressed"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Two shards, a table of 200 rows: commit 2."""
    with Store.create(tmp_path / "store", ["a", "b"], tablets=8, slots=32) as made:
        made.create_table("t", SCHEMA, ["id"], compression=request.param)
        made.table("t").upsert(old_rows(range(COUNT)))
        yield made


def old_row(i: int) -> Row:
    return {"id": i, "v": f"v{i % 5}", "n": i % 7 or None, "d": Decimal("1.25"), "must": i % 3}


def old_rows(ids: Any) -> pa.Table:
    return pa.Table.from_pylist([old_row(i) for i in ids], SCHEMA)


OLD = {i: old_row(i) for i in range(COUNT)}


def change(table: Table) -> None:
    """All kinds of changes; dropped names come again, with other types."""
    table.rename_column("v", "w")
    table.widen_column("n", pa.int64())
    table.widen_column("d", pa.decimal128(20, 2))
    table.drop_columns(["must"])
    table.add_columns([pa.field("must", pa.string()), pa.field("v", pa.float64())])


def changed(row: Row) -> Row:
    """A row from before the changes as it is after them."""
    return {"id": row["id"], "w": row["v"], "n": row["n"], "d": row["d"], "must": None, "v": None}


def new_row(i: int) -> Row:
    return {"id": i, "w": "new", "n": FAR + i, "d": Decimal("1e12"), "must": "x", "v": 0.5}


def write_new(table: Table, ids: Any) -> None:
    table.upsert(pa.Table.from_pylist([new_row(i) for i in ids], table.schema))


NEW_IDS = range(0, COUNT + 20, 4)
MIXED = {i: changed(row) for i, row in OLD.items()} | {i: new_row(i) for i in NEW_IDS}


def by_id(rows: pa.Table) -> dict[int, Row]:
    listed = rows.to_pylist()
    message = {row["id"]: row for row in listed}
    assert len(message) == len(listed), "a row came twice"
    return message


def read(store: Store, **how: Any) -> dict[int, Row]:
    return by_id(store.table("t").scan(**how).to_table())


def file_columns(store: Store) -> set[str]:
    """All columns of the fragments that serve slots."""
    with store.context.catalog.reading() as tx:
        places = [Path(store.context.root_of(f.shard)) / f.path for f in tx.state.fragments()]
    return {name for place in places for name in ipc.open_file(place).schema.names}


# ------------------------------------------------------------------------------------- what is read


def test_rows_from_before_have_the_new_names_and_types_and_no_file_is_written_anew(
    store: Store, other: Store, table: Table
) -> None:
    before, columns = store.context.catalog.versions()[1], file_columns(store)
    change(table)
    assert store.context.catalog.versions()[1] == before, "it is no commit"
    assert file_columns(store) == columns
    assert table.schema.names == ["id", "w", "n", "d", "must", "v"]
    assert table.schema.types[2:4] == [pa.int64(), pa.decimal128(20, 2)]
    write_new(table, NEW_IDS)
    for made in (store, other):
        assert read(made) == read(made, page_rows=7) == MIXED
        assert read(made, snapshot=2) == {i: changed(row) for i, row in OLD.items()}
        got = made.table("t").get([1, 0, 9_999], ["w", "must", "n"], keep_missing=True).to_pylist()
        assert got[:2] == [{name: row[name] for name in ("w", "must", "n")} for row in (MIXED[1], MIXED[0])]


def test_values_of_dropped_columns_leave_the_files_when_no_snapshot_from_before_is_kept(
    store: Store, table: Table
) -> None:
    table.tag("before")
    change(table)
    write_new(table, NEW_IDS)
    table.set_retention("0s")
    store.compact()
    assert "must" in file_columns(store), "a scan at the tag may have begun before"
    table.drop_tag("before")
    write_new(table, NEW_IDS)
    store.compact()
    assert "must" not in file_columns(store)
    assert read(store) == MIXED


# -------------------------------------------------------------------------------- who began before


def test_a_snapshot_is_never_read_by_a_definition_from_before_it(
    store: Store, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan looks its table up, then takes a lease on the newest snapshot."""
    honest = scan.bind_to_key
    table.set_retention("0s")  # so that a lease is needed

    def later(*args: Any) -> Any:
        monkeypatch.setattr(scan, "bind_to_key", honest)
        change(table)
        write_new(table, NEW_IDS)
        store.compact()
        return honest(*args)

    monkeypatch.setattr(scan, "bind_to_key", later)
    assert read(store) == MIXED


# -------------------------------------------------------------------------------- alongside the rest


@pytest.mark.usefixtures("rows_in_files")
def test_a_backup_and_a_repair_have_the_columns_of_now(store: Store, table: Table, tmp_path: Path) -> None:
    change(table)
    write_new(table, NEW_IDS)
    store.backup(tmp_path / "backup")
    with Store.from_backup(tmp_path / "backup", tmp_path / "again") as again:
        assert read(again) == MIXED
        assert read(again, snapshot=2) == {i: changed(row) for i, row in OLD.items()}
        again.table("t").rename_column("w", "x")
        assert read(again, columns=["id", "x"])[1]["x"] == "v1"
    for catalog in ("whole", "gone"):
        if catalog == "gone":
            store.close()
            (Path(store.uri) / "catalog.db").unlink()
        else:
            table.rename_column("w", "later")  # which no file knows
        report = repair_store(store.uri, tmp_path / catalog)
        assert report.lost == []
        with Store.open(tmp_path / catalog) as made:
            fields = _schema_of_now()
            if catalog == "whole":
                assert made.table("t").schema.names == ["id", "later", "n", "d", "must", "v"]
                made.table("t").rename_column("later", "w")
            assert made.table("t").schema == pa.schema(fields)
            assert read(made) == MIXED


def _schema_of_now() -> list[pa.Field]:
    return [
        SCHEMA.field("id"),
        pa.field("w", pa.string()),
        pa.field("n", pa.int64()),
        pa.field("d", pa.decimal128(20, 2)),
        pa.field("must", pa.string()),
        pa.field("v", pa.float64()),
    ]


# -------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t: t.drop_columns(["v", "nn"]), NotFound, "did you mean"),
        (lambda t: t.rename_column("id", "key"), InvalidOption, "primary key"),
        (lambda t: t.rename_column("v", "N"), AlreadyExists, "differs in case at most"),
        (lambda t: t.rename_column("v", "_slot"), SchemaMismatch, "taken by the store"),
        (lambda t: t.rename_column("v", "x" * 2_000), LimitExceeded, "bytes"),
        (lambda t: t.widen_column("id", pa.int64()), InvalidOption, "primary key"),
        (lambda t: t.widen_column("n", pa.uint64()), SchemaMismatch, "allowed are"),
        (lambda t: t.widen_column("n", pa.float64()), SchemaMismatch, "allowed are"),
        (lambda t: t.widen_column("d", pa.decimal128(9, 3)), SchemaMismatch, "allowed are"),
        (lambda t: t.widen_column("d", pa.decimal128(4, 2)), SchemaMismatch, "allowed are"),
    ],
)
def test_what_cannot_be_changed_is_refused_and_nothing_is(
    table: Table, call: Callable[[Table], Any], error: type[ElasticScanError], message: str
) -> None:
    before = table.definition
    with pytest.raises(error, match=message):
        call(table)
    assert table.definition == before


def test_columns_of_an_index_are_free_once_it_is_dropped(store: Store, table: Table) -> None:
    table.create_index("by_v", ["v"], include=["n"])
    for call in (
        lambda: table.drop_columns(["v"]),
        lambda: table.rename_column("v", "w"),
        lambda: table.widen_column("n", pa.int64()),
    ):
        with pytest.raises(InvalidOption, match="drop the index first"):
            call()
    table.drop_index("by_v")
    change(table)
    table.create_index("by_v", ["w"], include=["n"])
    write_new(table, NEW_IDS)
    assert read(store, index="by_v", filter="w = 'new'") == {i: new_row(i) for i in NEW_IDS}


def test_changing_nothing_changes_nothing(table: Table) -> None:
    before = table.definition
    assert table.rename_column("v", "v") == table.widen_column("n", pa.int32()) == SCHEMA
    assert table.definition == before
    assert table.rename_column("v", "V").names[1] == "V"


def test_columns_that_were_dropped_and_names_that_were_given_are_bounded(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_changes, "MAX_COLUMNS", 7)
    monkeypatch.setattr(schema_changes, "MAX_RENAMES", 2)
    for _ in range(2):
        table.add_columns([pa.field("more", pa.int8())])
        table.drop_columns(["more"])
    with pytest.raises(LimitExceeded, match="dropped ones included"):
        table.add_columns([pa.field("more", pa.int8())])
    table.rename_column("v", "w")
    table.rename_column("w", "v")
    with pytest.raises(LimitExceeded, match="renamed 2 times"):
        table.rename_column("v", "w")


@pytest.mark.parametrize(
    ("kind", "wider", "values"),
    [
        (pa.int8(), pa.int16(), [-128, 127]),
        (pa.int16(), pa.int64(), [-(1 << 15), (1 << 15) - 1]),
        (pa.uint8(), pa.uint64(), [0, 255]),
        (pa.uint32(), pa.uint64(), [0, (1 << 32) - 1]),
        (pa.float16(), pa.float32(), [0.5, -2.0]),
        (pa.float16(), pa.float64(), [0.5, -2.0]),
        (pa.float32(), pa.float64(), [0.5, float("inf")]),
        (pa.decimal128(5, 2), pa.decimal128(38, 2), [Decimal("-999.99"), Decimal("999.99")]),
        (pa.decimal256(5, 2), pa.decimal256(60, 2), [Decimal("-999.99"), Decimal("999.99")]),
    ],
    ids=str,
)
def test_every_widening_keeps_every_value(
    tmp_path: Path, kind: pa.DataType, wider: pa.DataType, values: list[Any]
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    with Store.create(tmp_path / "store", ["a"], tablets=1, slots=4) as store:
        table = store.create_table("t", schema, ["id"])
        ids = list(range(len(values) + 1))
        table.upsert(pa.table([pa.array(ids), pa.array([*values, None], kind)], schema=schema))
        assert table.widen_column("v", wider).field("v").type == wider
        for _ in range(2):
            assert [row["v"] for _, row in sorted(read(store).items())] == [*values, None]
            table.upsert(pa.table([pa.array([9]), pa.array([None], wider)], schema=table.schema))
            table.delete([9])
            store.compact()
