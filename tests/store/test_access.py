"""The choice of an access path on real tables: estimates where they are enough, counts where they are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from elasticscan.base.errors import InvalidOption
from elasticscan.base.hashing import slots_of
from elasticscan.store import Store, Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("k", pa.int64()), ("v", pa.float64())])
ROWS = 400_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """`k` is mostly small; a few rows in a million-fold wider tail."""
    place: Path = tmp_path_factory.mktemp("access") / "s"
    made = Store.create(place, ["a", "b"], tablets=8)
    made.create_table("t", SCHEMA, ["id"])
    numbers = np.arange(ROWS)
    k = np.where(numbers % 40_000 == 0, 1_000_000 + numbers, numbers % 100)
    made.table("t").upsert(pa.table({"id": numbers, "k": k, "v": numbers / 7}, schema=SCHEMA))
    made.table("t").create_index("by_k", ["k"])
    return made


@pytest.mark.parametrize(
    ("condition", "rows"), [("k > 1000", 10), ("k = 1040000", 1), ("k IN (7, -1)", 4_000)]
)
def test_rare_values_are_counted_and_found_through_the_index(store: Store, condition: str, rows: int) -> None:
    assert store.table("t").scan(None, "k < 90").explain()["access"] == "direct", "it keeps most rows"
    scan = store.table("t").scan(["id", "k"], condition)
    message = scan.explain()
    assert message["access"] == "by_k"
    (by_k,) = (each for each in message["candidates"] if each["access"] == "by_k")
    assert by_k["rows_scanned"] == rows
    assert scan.to_table().num_rows == rows
    assert scan.explain()["actual"]["rows_scanned"] == rows


def test_entries_of_a_long_list_of_values_are_estimated_by_some_of_these(store: Store) -> None:
    values = ", ".join(map(str, range(0, 200, 2)))  # half of them are in the table
    candidates = store.table("t").scan(["id"], f"k IN ({values})").explain()["candidates"]
    (by_k,) = (each for each in candidates if each["access"] == "by_k")
    assert by_k["rows_scanned"] == pytest.approx(ROWS / 2, rel=0.4)


def test_an_index_that_is_damaged_does_not_keep_others_from_being_chosen(tmp_path: Path) -> None:
    made = Store.create(tmp_path / "s", ["a"])
    made.create_table("t", SCHEMA, ["id"])
    numbers = np.arange(ROWS)
    made.table("t").upsert(pa.table({"id": numbers, "k": numbers % 7, "v": numbers / 7}, schema=SCHEMA))
    made.table("t").create_index("by_k", ["k"])
    (run,) = made.context.catalog.newest().state.runs(made.table("t").definition.id)
    (tmp_path / "s" / "shards" / "a" / run.path).unlink()
    scan = made.table("t").scan(None, "k < 6")
    assert scan.explain()["access"] == "direct"
    assert scan.to_table().num_rows == np.count_nonzero(numbers % 7 < 6)


@pytest.mark.parametrize("compacted", [True, False])
def test_a_direct_scan_is_priced_by_what_it_will_read(tmp_path: Path, compacted: bool) -> None:
    made = Store.create(tmp_path / "s", ["a"], tablets=4, slots=400)
    schema = pa.schema([("g", pa.int32()), ("id", pa.int64()), ("v", pa.float64())])
    made.create_table("t", schema, ["g", "id"], shard_key=["g"])
    numbers = np.arange(ROWS)
    of_slot = np.unique(slots_of([pa.array(range(10_000), pa.int32())], 400), return_index=True)[1]
    groups = of_slot[numbers // 1_000].astype(np.int32)  # each in a slot of its own
    rows = pa.table({"g": groups, "id": numbers, "v": numbers / 7})
    made.table("t").upsert(rows)
    made.table("t").upsert(rows.take(np.arange(0, ROWS, 1_000)))  # a version more in every slot
    if compacted:
        made.table("t").compact()
        made.table("t").set_retention("0s")
        made.table("t").compact()
    scan = made.table("t").scan(None, "id BETWEEN 5000 AND 5999", index="none")
    (direct,) = scan.explain()["candidates"]
    assert scan.to_table().num_rows == 1_000
    actual = scan.explain()["actual"]["rows_scanned"]
    assert direct["rows_scanned"] == pytest.approx(actual, rel=0.05)
    assert (actual < ROWS / 2) == compacted


def rows_to_scan(table: Table, snapshot: int | None = None) -> dict[str, float]:
    message = table.scan(None, "k >= 0", snapshot=snapshot).explain()
    return {each["access"]: each["rows_scanned"] for each in message["candidates"]}


@pytest.mark.usefixtures("rows_in_files")
def test_rows_that_only_other_snapshots_have_are_not_priced(tmp_path: Path) -> None:
    made = Store.create(tmp_path / "s", ["a", "b"])
    table = made.create_table("t", SCHEMA, ["id"])
    numbers = np.arange(3_000)
    rows = pa.table({"id": numbers, "k": numbers % 7, "v": numbers / 7}, schema=SCHEMA)
    for _ in range(3):
        table.upsert(rows)
    table.create_index("by_k", ["k"])
    table.compact()  # older versions become history
    assert rows_to_scan(table) == {"direct": 3_000, "by_k": 3_000}
    before = made.status()["snapshot"]
    table.overwrite(rows.slice(0, 5))
    assert rows_to_scan(table) == {"direct": 5, "by_k": 5}
    assert rows_to_scan(table, before) == {"direct": 3_000, "by_k": 3_000}


# By primary key


def test_a_value_of_the_key_is_read_alone_and_its_slot_alone_too(store: Store) -> None:
    scan = store.table("t").scan(None, "id = 4711", index="key")
    message = scan.explain()
    assert (message["access"], message["slots"], message["ranges"]) == ("key", 1, 1)
    assert [each["slots"] for each in message["scans"]] == [1]
    (by_key,) = (each for each in message["candidates"] if each["access"] == "key")
    assert (by_key["condition"], by_key["remainder"], by_key["rows_scanned"]) == ("id = 4711", None, 1)
    assert scan.to_table().column("id").to_pylist() == [4711]
    assert scan.explain()["actual"]["rows_scanned"] == 1


def test_the_path_by_key_can_be_asked_for_where_there_is_one(store: Store) -> None:
    with pytest.raises(InvalidOption, match="limits no id"):
        store.table("t").scan(None, "k = 7", index="key")
    with pytest.raises(InvalidOption, match="is not the order of index"):
        store.table("t").scan(None, "id = 7", index="key", order_by="k")
    with pytest.raises(InvalidOption, match="cannot be named"):
        store.table("t").create_index("key", ["v"])
