"""Tables that gain columns: how rows that are older read, by every path and alongside everything else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.base.errors import (
    FragmentDamaged,
    InvalidOption,
    SchemaMismatch,
    TableChanged,
)
from elasticscan.metadata import Fragment
from elasticscan.storage import BatchCache, FragmentReader
from elasticscan.store import Store
from elasticscan.store.writing import publishing, staging

pytestmark = pytest.mark.usefixtures("unflushed")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
NOTE = pa.struct([pa.field("tags", pa.list_(pa.string()), nullable=False), ("at", pa.timestamp("us"))])
NEW = [pa.field("n", pa.int32()), pa.field("note", NOTE), pa.field("by", pa.map_(pa.string(), pa.int64()))]
COUNT = 300

Row = dict[str, Any]
Rows = dict[int, Row]


@pytest.fixture(params=[None, "zstd"], ids=["mapped", "compressed"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Two shards, a table of 300 rows: commit 2."""
    with Store.create(tmp_path / "store", ["a", "b"], tablets=8, slots=32) as made:
        made.create_table("t", SCHEMA, ["id"], compression=request.param)
        made.table("t").upsert(old_rows(range(COUNT)))
        yield made


def old_rows(ids: Any, v: str = "old") -> pa.Table:
    return pa.table({"id": list(ids), "v": [v] * len(ids)}, schema=SCHEMA)


def new_row(i: int) -> Row:
    note = {"tags": ["x", None], "at": None} if i % 3 else None
    return {"id": i, "v": "new", "n": i % 7 if i % 5 else None, "note": note, "by": [("k", i)]}


def new_rows(ids: Any) -> pa.Table:
    return pa.Table.from_pylist([new_row(i) for i in ids], schema=pa.schema([*SCHEMA, *NEW]))


def nulls(rows: Rows) -> Rows:
    return {i: {**row, **dict.fromkeys((f.name for f in NEW), None)} for i, row in rows.items()}


GUIDE = Path(__file__).resolve().parents[2] / "docs" / "schema-changes.md"
OLD: Rows = {i: {"id": i, "v": "old"} for i in range(COUNT)}
MIXED: Rows = nulls(OLD) | {i: new_row(i) for i in range(0, COUNT + 50, 4)}


def read(made: Store, **how: Any) -> Rows:
    return by_id(made.table("t").scan(**how).to_table())


def by_id(table: pa.Table) -> Rows:
    rows = table.to_pylist()
    found = {row["id"]: row for row in rows}
    assert len(found) == len(rows), "a row came twice"
    return found


def gain(made: Store) -> None:
    """New columns, and rows that have them among and alongside the old ones: commit 3."""
    made.table("t").add_columns(NEW)
    made.table("t").upsert(new_rows(range(0, COUNT + 50, 4)))


def paths(made: Store) -> set[str]:
    with made.context.catalog.reading() as tx:
        return {fragment.path for fragment in tx.fragments()}


# --------------------------------------------------------------------------------- the definition


def test_columns_come_after_the_others_and_no_file_is_written_anew(store: Store, other: Store) -> None:
    before = paths(store)
    found = store.table("t").add_columns(NEW)
    assert found == store.table("t").schema == other.table("t").schema
    assert found == pa.schema([*SCHEMA, *NEW])
    assert paths(store) == before
    assert store.context.catalog.versions()[1] == 2, "it is no commit"
    assert read(store) == read(other) == nulls(OLD)


def test_a_column_that_is_there_already_is_passed_over(store: Store) -> None:
    store.table("t").add_columns(NEW[:1])
    before = store.context.catalog.versions()
    assert store.table("t").add_columns([*SCHEMA, NEW[0]]).names == ["id", "v", "n"]
    assert store.context.catalog.versions() == before
    assert store.table("t").add_columns(pa.schema(NEW)).names == ["id", "v", "n", "note", "by"]


def test_types_may_be_given_by_their_names(store: Store) -> None:
    table = store.table("t")
    assert table.add_columns({"a": "int32", "b": pa.date32()}).field("a").type == pa.int32()
    assert table.widen_column("a", "int64").field("a").type == pa.int64()
    with pytest.raises(InvalidOption, match=r"type='long' .*such as int64"):
        table.widen_column("a", "long")


def test_the_example_of_the_guide_does_what_it_says(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    code, of_old_rows, others = blocks[:3]
    *before, last = code.replace('"tour.store"', repr(str(tmp_path / "tour.store"))).splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(before), names)
    counted, _, promised = last.partition("  # ")
    assert eval(counted, names) == int(promised) == 1  # noqa: S307
    trips = names["trips"]
    for write in (trips.upsert, trips.overwrite):
        with pytest.raises(SchemaMismatch, match=r"missing: city, tags.*a column of nulls"):
            write(pa.table({"id": [3], "km": [1.5]}))
    with pytest.raises(SchemaMismatch, match=r"missing: city, tags.*give None"):
        trips.upsert([{"id": 3, "km": 1.5}])
    exec(of_old_rows, names)
    assert trips.scan(filter="city IS NULL").count() == 2
    *calls, last = others.splitlines()
    exec("\n".join(calls), names)
    message, _, promised = last.partition("  # ")
    assert eval(message, names) == eval(promised)  # noqa: S307


# -------------------------------------------------------------------------------------- reading


def test_old_rows_are_null_in_new_columns_whatever_the_pages(store: Store, other: Store) -> None:
    gain(store)
    for made in (store, other):
        assert read(made) == MIXED
        assert read(made, page_rows=7) == MIXED
        assert read(made, page_bytes=200) == MIXED
        assert read(made, columns=["note", "id"]) == {
            i: {"note": row["note"], "id": i} for i, row in MIXED.items()
        }


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("n IS NULL", lambda row: row["n"] is None),
        ("n IS NOT NULL", lambda row: row["n"] is not None),
        ("n = 3", lambda row: row["n"] == 3),
        ("n <=> NULL AND v = 'old'", lambda row: row["n"] is None and row["v"] == "old"),
        ("NOT (n > 1)", lambda row: row["n"] is not None and row["n"] <= 1),
        ("coalesce(n, 0) = 0", lambda row: not row["n"]),
    ],
)
def test_filters_see_the_nulls_and_statistics_pass_over_no_old_row(
    store: Store, text: str, means: Callable[[Row], bool]
) -> None:
    gain(store)
    wanted = {i: row for i, row in MIXED.items() if means(row)}
    assert read(store, filter=text) == wanted
    store.table("t").create_index("by_n", ["n"], include=["v"])
    store.table("t").create_index("by_n_hash", ["n"], kind="hash")
    for index in ("auto", "none", "by_n"):
        assert read(store, filter=text, index=index) == wanted


def test_an_index_of_a_new_column_has_the_old_rows(store: Store) -> None:
    gain(store)
    store.table("t").create_index("by_n", ["n"], include=["note"])
    for descending in (False, True):
        found = store.table("t").scan(order_by="n DESC" if descending else "n", page_rows=20).to_table()
        assert by_id(found) == MIXED
        order = [(row["n"] is not None, row["n"] or 0, row["id"]) for row in found.to_pylist()]
        assert order == sorted(order, reverse=descending)


# ----------------------------------------------------------------------------- alongside everything else


def test_a_write_that_was_staged_before_the_column_came_is_committed_with_nulls(
    store: Store, other: Store
) -> None:
    table = other.table("t").definition
    staged = staging.stage(other.context, table, old_rows(range(290, 320)).to_batches())
    gain(store)
    store.table("t").create_index("by_n", ["n"])
    store.expand(["c"])  # its rows are staged again elsewhere
    publishing.publish(other.context, table, staged)
    wanted = MIXED | nulls({i: {"id": i, "v": "old"} for i in range(290, 320)})
    assert read(store) == read(other) == wanted
    assert read(store, index="by_n", filter="n IS NULL OR n >= 0") == wanted


def test_an_index_of_the_new_column_that_comes_while_a_write_is_staged_has_its_rows(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = publishing.with_runs

    def later(*args: Any) -> Any:
        monkeypatch.setattr(publishing, "with_runs", honest)
        store.table("t").add_columns(NEW)
        store.table("t").create_index("by_n", ["n"], include=["by"])
        table, indexes = args[1], other.context.indexes(args[1].id)
        assert table.schema == SCHEMA
        return honest(args[0], table, indexes, args[3])

    monkeypatch.setattr(publishing, "with_runs", later)
    other.table("t").upsert(old_rows([1_000]))
    assert read(store, index="by_n", filter="n IS NULL")[1_000]["v"] == "old"
    assert len(read(store, index="by_n", filter="n IS NULL")) == COUNT + 1


def test_an_index_that_comes_between_a_copy_and_its_runs_has_the_rows_that_moved(
    store: Store, other: Store
) -> None:
    """Whoever builds runs may hold a definition that is older than the index."""
    tablet = next(t for t in other.context.placement().tablets if t.shard == 1)
    known = other.context.indexes

    def later(table: int) -> Any:
        vars(other.context).pop("indexes")
        store.table("t").add_columns(NEW)
        store.table("t").create_index("by_n", ["n"], include=["note"])
        return known(table)

    vars(other.context)["indexes"] = later
    other.move(tablet.id, "b")
    assert len(read(store, index="by_n", filter="n IS NULL")) == COUNT


# -------------------------------------------------------------------------------------- damage


def fragments(made: Store) -> tuple[Fragment, ...]:
    with made.context.catalog.reading() as tx:
        return tx.fragments()


def some_fragment(made: Store) -> tuple[Any, Any]:
    fragment = fragments(made)[0]
    return made.context.disk_of(fragment.shard), fragment


def test_a_file_only_lacks_columns_that_came_after_it_or_went_before(store: Store) -> None:
    disk, fragment = some_fragment(store)
    first = store.table("t").definition
    with pytest.raises(FragmentDamaged):
        FragmentReader(disk, fragment.path, ["id", "n"], fragment.seal)
    with pytest.raises(FragmentDamaged, match="has no column 'n'"):
        FragmentReader(disk, fragment.path, ["id", "n"], fragment.seal, first)
    gain(store)
    now = store.table("t").definition
    reader = FragmentReader(disk, fragment.path, ["id", "n"], fragment.seal, now)
    assert reader.batch(0).column("n").null_count == fragment.rows
    newer = next(one for one in fragments(store) if one.min_commit == 3)
    newer_disk = store.context.disk_of(newer.shard)
    of_then = replace(now, columns=(*now.columns[:-1], replace(now.columns[-1], stored="other")))
    with pytest.raises(FragmentDamaged, match="has no column 'by'"):
        FragmentReader(newer_disk, newer.path, ["by"], newer.seal, of_then)
    with pytest.raises(TableChanged, match="were changed while"):
        FragmentReader(newer_disk, newer.path, ["by"], newer.seal, replace(of_then, definition=1, names_of=2))
    never_null = [*now.columns[:2], replace(now.columns[2], nullable=False), *now.columns[3:]]
    table = replace(now, columns=tuple(never_null), schema=pa.schema([NEW[0].with_nullable(False)]))
    with pytest.raises(FragmentDamaged, match="never null"):
        FragmentReader(disk, fragment.path, ["n"], fragment.seal, table)


def test_columns_that_a_file_has_are_not_copied_for_those_that_it_lacks(store: Store) -> None:
    disk, fragment = some_fragment(store)
    store.table("t").add_columns(NEW)
    table, cache = store.table("t").definition, BatchCache()
    wide = table.schema
    readers = [
        FragmentReader(disk, fragment.path, columns, fragment.seal, table, cache)
        for columns in (wide.names, SCHEMA.names)
    ]
    with_nulls, plain = (reader.batch(0) for reader in readers)
    assert with_nulls.schema.names == [*wide.names, "_slot"]
    assert with_nulls.select(SCHEMA.names).equals(plain.select(SCHEMA.names))
    assert [with_nulls.column(field.name).null_count for field in NEW] == [len(plain)] * len(NEW)
    if store.table("t").definition.compression is None:
        places = [batch.column("id").buffers()[1].address for batch in (with_nulls, plain)]
        assert places[0] == places[1], "both point into the file's bytes"
