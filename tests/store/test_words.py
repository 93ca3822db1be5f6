"""Words of other calls and libraries as arguments: each is refused with what to write, in every method."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import elasticscan
from elasticscan.base.errors import InvalidOption, WrongArguments
from elasticscan.store import Scan, Store, Table, telling_words
from elasticscan.store.words import KEYWORDS, OF_METHODS, WITHOUT

TYPED = """
offset skip having predicate condition where filter cols columns on key keys partition_by mode schema limit
order_by data ttl if_not_exists upsert version timestamp table name qqqq
""".split()  # noqa: SIM905


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with elasticscan.create(tmp_path / "a.store", ["s1"], tablets=2, slots=16) as made:
        yield made


@pytest.fixture
def trips(store: Store) -> Table:
    return store.create_table("trips", {"id": [1, 2], "km": [0.5, 2.0]}, "id")


def methods(kind: type) -> list[str]:
    return [name for name, member in vars(kind).items() if callable(member) and not name.startswith("_")]


def all_methods() -> Iterator[tuple[type, str]]:
    for kind in (Store, Table, Scan):
        names = {
            name
            for each in kind.__mro__
            if each.__module__.startswith("elasticscan")
            for name in methods(each)
        }
        names |= {name for name in ("create", "open", "from_backup") if kind is Store}
        yield from ((kind, name) for name in sorted(names))


def test_every_method_refuses_every_word_that_it_does_not_take(store: Store, trips: Table) -> None:
    """Before anything is done; the error names a word that the method takes, or what to do without one."""
    tried = 0
    objects: dict[type, Any] = {Store: store, Table: trips, Scan: trips.scan()}
    for kind, name in all_methods():
        method = getattr(objects[kind], name)
        own = signature(method).parameters
        more = signature(trips.scan).parameters if "how" in own else {}
        for word in TYPED:
            if word in own or word in more:
                continue
            given = {word: 1, **({"path": "never"} if name == "export" else {})}
            with pytest.raises(WrongArguments) as refused:
                method(**given)
            tried += 1
            assert refused.value.fields["option"] == word
            assert f"{word}=" in refused.value.message or "table.scan(" in refused.value.message
            assert isinstance(refused.value, TypeError)
            assert isinstance(refused.value, InvalidOption)
    assert tried > 1_000
    assert len(trips.history()) == 2
    assert [table.name for table in store.tables()] == ["trips"]


def test_what_is_told_is_taken(store: Store, trips: Table) -> None:
    """Words in the tables are names of arguments that some method has."""
    known = {
        name
        for kind, method in all_methods()
        for name, each in signature(getattr(kind, method)).parameters.items()
        if each.kind is not Parameter.VAR_KEYWORD
    }
    known |= {"text", "args", "condition"}  # of a catalog in Spark
    assert {name for names in KEYWORDS.values() for name in names} - known == set()
    assert {name for needs, _ in WITHOUT.values() for name in needs} - known == set()
    assert set(OF_METHODS) - {method for _, method in all_methods()} == set()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda table: table.scan(where="km > 1"), "scan takes filter="),
        (lambda table: table.to_arrow(version=2), "to_arrow takes snapshot="),
        (lambda table: table.aggregate("count(*)", where="km > 1"), "aggregate takes filter="),
        (lambda table: table.delete(filter="km > 1"), "delete takes where="),
        (lambda table: table.update({"km": "1"}, predicate="km > 1"), "update takes where="),
        (lambda table: table.scan(row_filter="km > 1"), "scan takes filter="),
        (
            lambda table: table.scan(order_by="km", descending=True),
            "scan takes no descending=: order_by='column DESC'",
        ),
        (lambda table: table.to_pandas(selected_fields=["km"]), "to_pandas takes columns="),
        (lambda table: table.scan(select=["km"]), "scan takes columns="),
        (lambda table: table.scan(snapshot_id=2), "scan takes snapshot="),
        (lambda table: table.get([1], as_of=2), "get takes snapshot="),
        (lambda table: table.scan(batch_size=9), "scan takes page_rows="),
        (lambda table: table.scan(order="km"), "scan takes order_by="),
        (lambda table: table.scan(colums=["km"]), "scan takes columns="),
        (lambda table: table.changes(since=2), "changes takes no since=: write after=16, the commit before"),
        (lambda table: table.upsert([], since=2), "upsert takes if_unchanged_since="),
        (lambda table: table.upsert([], on="id"), "upsert takes no on=: rows are matched by the primary key"),
        (lambda table: table.overwrite([], mode="x"), "upsert, insert, merge and overwrite"),
        (lambda table: table.scan(offset=10), "scan takes no offset=: a scan goes on from the key of a page"),
        (lambda table: table.to_arrow(skip=10), "to_arrow takes no skip=: a scan goes on from the key"),
        (lambda table: table.aggregate("count(*) AS n", having="n > 1"), "no having=: .*filter"),
        (lambda table: table.aggregate("count(*)", limit=3), r"no limit=: .*\.slice\(0, 10\)"),
        (lambda table: table.merge([], predicate="s.id = t.id"), "no predicate=: rows are matched by the"),
        (lambda table: table.merge([], on="id"), "merge takes no on=: rows are matched by the primary key"),
        (lambda table: table.merge(data=[]), "merge takes rows=, and no data="),
        (lambda table: table.create_index("by_km", on=["km"]), "create_index takes no on=: write columns="),
        (lambda table: table.get(ids=[1]), "get takes keys=, and no ids="),
        (lambda table: table.update({"km": "1"}, upsert=True), r"no upsert=: merge\(rows"),
        (lambda table: table.upsert([], if_not_exists=True), r"no if_not_exists=: insert\(rows\) refuses"),
        (lambda table: table.upsert([], ttl=9), "upsert takes no ttl=: rows stay until they are deleted"),
        (lambda table: table.upsert([], where="km > 1"), r"no where=: .*update\(set, where\)"),
        (lambda table: table.changes(limit=3), r"no limit=: .*next\(table.changes\(…, page_rows=10\)\).rows"),
        (lambda table: table.export("x", mode="overwrite"), "export takes no mode=: it replaces no files"),
        (lambda table: table.scan().count(filter="km > 1"), r"table.scan\(filter=…\).count\(\)"),
        (lambda table: table.set_retention(days=7), "set_retention takes period=, and no days="),
        (lambda table: table.tags(limit=7), "tags takes no limit=, and nothing else: leave it out"),
    ],
)
def test_a_word_of_another_call_is_told_with_the_one_there_is(
    trips: Table, call: Callable[[Any], object], told: str
) -> None:
    with pytest.raises(WrongArguments, match=told):
        call(trips)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda store, table: table.scan("id", "km > 1", "auto"),
            r"scan takes 2 .*\(columns, filter\), .* given 3;",
        ),
        (lambda store, table: store.keep(168), "no positional arguments, .*: bytes_per_second=, on_step="),
        (lambda store, table: table.drop(1), "drop takes no positional arguments, and was given 1$"),
        (lambda store, table: table.scan("id", columns="id"), "scan was given columns twice; give it once"),
        (lambda store, table: table.upsert(), "upsert lacks rows; it takes rows=, txn="),
        (lambda store, table: table.update(where="id = 1"), "update lacks set; it takes set=, where="),
        (lambda store, table: store.create_table("u"), "create_table lacks schema and primary_key; it takes"),
        (lambda store, table: elasticscan.open(), "open lacks uri; it takes uri="),
    ],
)
def test_too_many_arguments_and_too_few_are_told_with_those_there_are(
    store: Store, trips: Table, call: Callable[[Any, Any], object], told: str
) -> None:
    with pytest.raises(WrongArguments, match=told) as refused:
        call(store, trips)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_an_error_of_the_kind_from_within_stays_what_it_is(trips: Table) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        raise TypeError("from within")
        yield

    with pytest.raises(TypeError, match=r"^from within$"):
        trips.upsert(pa.RecordBatchReader.from_batches(trips.schema, batches()))

    @telling_words
    def call(one: int) -> int:
        return len(one)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len"):
        call(1)


def test_what_is_told_of_distinct_rows_works(trips: Table) -> None:
    _, told = WITHOUT["distinct"]
    assert told.startswith("aggregate('count(*)', group_by=columns)")
    assert trips.aggregate("count(*)", group_by=["km"]).num_rows == 2
