"""Checks on what comes in, left out one at a time: each is missed by something that a user would see."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import ElasticScanError, InvalidKey
from elasticscan.connector import ElasticScanSource
from elasticscan.connector import writing as connector_writing
from elasticscan.connector.conversion import spark_schema
from elasticscan.storage import definition, ingest
from elasticscan.store import Store, schema_changes, writer
from elasticscan.store import definitions as store_definitions
from elasticscan.store.context import Context

Patch = pytest.MonkeyPatch
SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), ("v", pa.int64())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "s.store", ["s1"], tablets=2, slots=8) as made:
        made.create_table("t", SCHEMA, ["id"])
        made.table("t").upsert(pa.table({"id": ["a"], "v": [1]}, schema=SCHEMA))
        yield made


def any_key_can_be_resumed(store: Store) -> None:
    """A page may end at any row that was written."""
    try:
        rows = {"id": [letter * (1 << 20) for letter in "bcdefgh"], "v": range(7)}
        store.table("t").upsert(pa.table(rows, schema=SCHEMA))
    except InvalidKey:
        pass
    for page in store.table("t").scan(page_rows=1):
        if page.key is not None:
            assert len(page.key) < 100_000
            store.resume(page.key)


def a_deep_type_harms_nothing(store: Store) -> None:
    deep: pa.DataType = pa.int64()
    for _ in range(64):
        deep = pa.list_(deep)
    with contextlib.suppress(ElasticScanError):
        store.table("t").add_columns([pa.field("deep", deep)])
    with Store.open(store.uri) as again:
        again.table("t").upsert(again.table("t").scan().to_table())


def a_first_write_that_fails_leaves_nothing(store: Store) -> None:
    options = {"store": store.uri, "table": "fresh", "primaryKey": "id"}
    write = ElasticScanSource(options).writer(spark_schema(SCHEMA), overwrite=False)
    rows = pa.RecordBatch.from_pydict({"id": ["a", "a"], "v": [1, 2]}, schema=SCHEMA)
    with pytest.raises(InvalidKey):
        write.write(iter([rows]))
    assert [table.name for table in store.tables()] == ["t"]


def a_slow_write_is_told_to_try_again(store: Store) -> None:
    def slow() -> Iterator[pa.RecordBatch]:
        for number in range(6):
            if number == 5:
                store.collect_garbage(grace_seconds=0)
            ids = [f"{number}-{row}" for row in range(100)]
            yield pa.RecordBatch.from_pydict({"id": ids, "v": range(100)}, schema=SCHEMA)

    reader = pa.RecordBatchReader.from_batches(SCHEMA, slow())
    with pytest.raises(ElasticScanError) as caught:
        writer.write(store.context, store.table("t").definition, reader, buffer_bytes=1_000)
    assert "restore" not in str(caught.value)


def key_length_not_checked(patch: Patch) -> None:
    patch.setattr(ingest, "check_key_bytes", lambda *_: None)


def depth_not_checked_and_not_tried(patch: Patch) -> None:
    patch.setattr(definition, "_check_limits", lambda _: None)
    patch.setattr(schema_changes, "check_works", lambda *_: None)


def table_made_before_its_rows(patch: Patch) -> None:
    def at_once(context: object, name: str, schema: pa.Schema, keys: list[str], *_: object) -> object:
        info = store_definitions.define_table(context, name, schema, keys)  # type: ignore[arg-type]
        with context.catalog.writing() as tx:  # type: ignore[attr-defined]
            return tx.create_table(name, info)

    patch.setattr(connector_writing, "reserve_table", at_once)


def collection_not_noticed_while_staging(patch: Patch) -> None:
    patch.setattr(Context, "noticing_collection", lambda _: nullcontext())


FAULTS: list[tuple[Callable[[Patch], None], Callable[[Store], None]]] = [
    (key_length_not_checked, any_key_can_be_resumed),
    (depth_not_checked_and_not_tried, a_deep_type_harms_nothing),
    (table_made_before_its_rows, a_first_write_that_fails_leaves_nothing),
    (collection_not_noticed_while_staging, a_slow_write_is_told_to_try_again),
]


@pytest.mark.parametrize(("plant", "holds"), FAULTS, ids=lambda each: each.__name__)
def test_a_check_that_is_left_out_is_noticed(
    store: Store, plant: Callable[[Patch], None], holds: Callable[[Store], None]
) -> None:
    holds(store)
    with Patch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, ElasticScanError, pa.ArrowException)):
            holds(store)
