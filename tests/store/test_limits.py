"""No call leaves a table, or a store, that something cannot be done with afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base import limits
from elasticscan.base.errors import ElasticScanError, LimitExceeded, SchemaMismatch
from elasticscan.storage.conform import check_row_bytes
from elasticscan.store import Store
from elasticscan.store.context import tags
from tests.base.examples import examples
from tests.storage.columns import COLUMNS, sample_rows

ID = pa.field("id", pa.int64())
Make = Callable[[Store, list[pa.Field]], object]


def nested(levels: int, kind: str = "list") -> pa.DataType:
    found = pa.int64()
    for _ in range(levels):
        found = pa.list_(found) if kind == "list" else pa.struct([("part", found)])
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "s.store", ["s1", "s2"], tablets=2, slots=16) as made:
        made.create_table("t", pa.schema([ID, ("v", pa.string())]), ["id"])
        made.table("t").upsert(pa.table({"id": range(20), "v": ["x"] * 20}))
        yield made


def works(store: Store, name: str = "t", filled: pa.RecordBatch | None = None) -> None:
    """Everything that is done to a table can be done to this one, and the store opens."""
    table = store.table(name)
    row = filled if filled is not None else sample_rows(table.schema, 1)
    store.table(name).upsert(row)
    store.table(name).upsert(row)
    count = store.table(name).scan().to_table().num_rows
    store.table(name).delete(row.select(list(table.primary_key)))
    store.table(name).compact()
    placed = store.status()["tablets"][0]
    store.move(placed["id"], "s2" if placed["shard"] == "s1" else "s1")
    store.table(name).upsert(row)
    store.table(name).create_index("by_key", list(table.primary_key))
    with Store.open(store.uri) as again:
        assert again.table(name).scan().to_table().num_rows == count
        assert sum(batch.num_rows for batch in again.table(name).changes(after=1).batches()) > 0
        assert again.verify() == []
    store.table(name).drop_index("by_key")


def create(store: Store, fields: list[pa.Field]) -> object:
    return store.create_table("other", pa.schema([ID, *fields]), ["id"])


def add(store: Store, fields: list[pa.Field]) -> object:
    return store.table("t").add_columns(fields)


def create_from_rows(store: Store, fields: list[pa.Field]) -> object:
    schema = pa.schema([ID, *fields])
    values = [pa.array([1]), *(pa.nulls(1, field.type) for field in fields)]
    return store.create_table("other", pa.RecordBatch.from_arrays(values, schema=schema), ["id"])


@pytest.mark.parametrize("make", [create, create_from_rows, add])
@pytest.mark.parametrize("kind", ["list", "struct"])
def test_a_type_at_the_limit_works(store: Store, make: Make, kind: str) -> None:
    make(store, [pa.field("deep", nested(limits.MAX_NESTING, kind))])
    works(store, "other" if make is create else "t")


def deep(levels: int, kind: str = "list") -> tuple[list[pa.Field], str]:
    return [pa.field("deep", nested(levels, kind))], "32 levels of nesting in column 'deep'"


REFUSED: dict[str, tuple[list[pa.Field], str]] = {
    "one level more": deep(limits.MAX_NESTING + 1),
    "one level more of structs": deep(limits.MAX_NESTING + 1, "struct"),
    "more levels than Arrow writes": deep(65),
    "more levels than a stack has": deep(5_000, "struct"),
    "many columns": ([pa.field(f"c{i}", pa.int8()) for i in range(limits.MAX_COLUMNS)], "columns"),
    "very many columns": ([pa.field(f"c{i}", pa.int8()) for i in range(20_000)], "columns"),
    "wide": ([pa.field("big", pa.binary(limits.MAX_FIXED_BYTES + 1))], "bytes of fixed"),
    "product of widths": (
        [pa.field("big", pa.list_(pa.list_(pa.int64(), 1 << 20), 1 << 20))],
        "bytes of fixed size",
    ),
    "long name": ([pa.field("é" * 128, pa.int8())], "name of column"),
    "large schema": (
        [pa.field("s", pa.struct([(f"{i:0>240}", pa.timestamp("us", "x" * 300)) for i in range(8_000)]))],
        "bytes of schema",
    ),
    "no name": ([pa.field("  ", pa.int8())], "control characters"),
    "a line break": ([pa.field("a\nb", pa.int8())], "control characters"),
    "a zero": ([pa.field("a\0b", pa.int8())], "control characters"),
    "a deletion": ([pa.field("a\x7f", pa.int8())], "control characters"),
}


MAKES = [(make, what) for make in (create, create_from_rows, add) for what in REFUSED]
MAKES.remove((create_from_rows, "product of widths"))  # a row of it fills the memory


@pytest.mark.parametrize(("make", "what"), MAKES)
def test_a_definition_that_cannot_be_kept_is_refused_and_all_else_goes_on(
    store: Store, make: Make, what: str
) -> None:
    fields, message = REFUSED[what]
    with pytest.raises(SchemaMismatch if message == "control characters" else LimitExceeded, match=message):
        make(store, fields)
    assert [table.name for table in store.tables()] == ["t"]
    assert store.table("t").schema.names == ["id", "v"]
    store.table("t").upsert(pa.table({"id": [100], "v": ["y"]}))


def test_a_key_that_no_continuation_key_takes_is_refused_before_it_is_staged(store: Store) -> None:
    store.create_table("texts", pa.schema([("k", pa.string()), ("n", pa.binary())]), ["k", "n"])
    longest = limits.MAX_KEY_BYTES - 4  # two ends of two bytes
    store.table("texts").upsert(pa.table({"k": ["a" * longest, "b"], "n": [b"", b"\0" * 8_000]}))
    for keys in (
        {"k": ["a" * (longest + 1)], "n": [b""]},
        {"k": ["a"], "n": [b"\0" * 9_000]},  # a zero takes two bytes
        {"k": ["a" * (1 << 20)], "n": [b""]},
    ):
        with pytest.raises(LimitExceeded, match=r"primary key takes .* most of them in column") as caught:
            store.table("texts").upsert(pa.table(keys, schema=store.table("texts").schema))
        assert caught.value.fields["length"] > limits.MAX_KEY_BYTES
        with pytest.raises(LimitExceeded):
            store.table("texts").delete(pa.table(keys, schema=store.table("texts").schema))
    assert store.collect_garbage(grace_seconds=0, orphan_seconds=0).removed == 0
    first = next(store.table("texts").scan(page_rows=1))
    assert first.rows.num_rows + store.resume(first.key or "").count() == 2


def test_a_table_has_a_limit_on_indexes_and_their_columns(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticscan.store.writing.indexing.MAX_INDEXES", 2)
    monkeypatch.setattr("elasticscan.store.writing.indexing.MAX_KEY_COLUMNS", 1)
    with pytest.raises(LimitExceeded, match="columns at most"):
        store.table("t").create_index("a", ["id", "v"])
    for name in ("a", "b"):
        store.table("t").create_index(name, ["v"])
    with pytest.raises(LimitExceeded, match="has 2 indexes, the most"):
        store.table("t").create_index("c", ["v"])
    store.table("t").create_index("b", ["v"])  # it is there
    with pytest.raises(SchemaMismatch, match=r"'of' of type list.* cannot be indexed"):
        store.create_table("u", pa.schema([ID, ("of", nested(1))]), ["id"]).create_index("a", ["of"])


def test_a_table_has_a_limit_on_tags_and_a_status_has_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tags, "MAX_TAGS", 2)
    table = store.table("t")
    made = [table.tag(name) for name in ("a", "b")]
    assert table.tag("a", made[0].snapshot) == made[0]
    with pytest.raises(LimitExceeded, match="2 tags"):
        table.tag("c")
    (status,) = store.status()["tables"]
    assert status["tags"] == [asdict(tag) for tag in made]


def test_a_row_that_is_too_large_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[check_row_bytes.__module__], "MAX_ROW_BYTES", 1_000)
    many = pa.table({"id": range(100), "v": ["x" * 900] * 100})
    store.table("t").upsert(many)
    with pytest.raises(LimitExceeded, match="most of them in column 'v'"):
        store.table("t").upsert(pa.table({"id": range(100), "v": ["x"] * 77 + ["x" * 2_000] + ["x"] * 22}))
    assert store.collect_garbage(grace_seconds=0, orphan_seconds=0).removed == 0


def test_a_primary_key_has_a_limit_on_its_columns_and_fixed_bytes(store: Store) -> None:
    names = [f"k{i}" for i in range(limits.MAX_KEY_COLUMNS + 1)]
    with pytest.raises(LimitExceeded, match="columns in its primary key"):
        store.create_table("keys", pa.schema([(name, pa.int8()) for name in names]), names)
    with pytest.raises(LimitExceeded, match="bytes in its primary key"):
        store.create_table("keys", pa.schema([("k", pa.binary(limits.MAX_KEY_BYTES + 1))]), ["k"])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of the strategy, for an event
@settings(max_examples=examples(20), deadline=None)
@given(
    st.lists(COLUMNS, min_size=1, max_size=4),
    st.sets(st.integers(0, 3), min_size=1, max_size=2),
    st.booleans(),
)
def test_any_definition_is_refused_or_everything_works(
    tmp_path_factory: pytest.TempPathFactory, fields: list[pa.Field], keys: set[int], added: bool
) -> None:
    place = tmp_path_factory.mktemp("any") / "s.store"
    with Store.create(place, ["s1", "s2"], tablets=2, slots=4) as store:
        try:
            if added:
                store.create_table("any", pa.schema([ID]), ["id"])
                store.table("any").upsert(pa.table({"id": [1, 2]}))
                store.table("any").add_columns(fields)
            else:
                names = [fields[at].name for at in sorted(keys) if at < len(fields)]
                store.create_table("any", pa.schema(fields), names)
        except ElasticScanError:
            assert added or store.tables() == ()
            store.create_table("after", pa.schema([ID]), ["id"])
            works(store, "after")
        else:
            works(store, "any")
            store.table("any").drop()
            store.collect_garbage(grace_seconds=0, orphan_seconds=0)
