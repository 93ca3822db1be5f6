"""What a status, a history and a notebook say of a store is so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

from elasticscan.base.errors import InvalidOption, LimitExceeded
from elasticscan.store import Store, Table
from elasticscan.store.context.leases import hold_for_stream
from tests.base.manual_clock import ManualClock

ROWS_IN_FILES = True

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
HOSTILE = "<script>alert(1)</script>"

pytestmark = pytest.mark.usefixtures("unflushed")


def rows(version: int, count: int = 400) -> pa.Table:
    return pa.table({"id": range(count), "v": [version] * count})


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.create(tmp_path / "s", ["s1", "s2"], tablets=8, slots=64, clock=clock, upkeep="off") as made:
        table = made.create_table("t", SCHEMA, ["id"])
        for version in range(3):
            table.upsert(rows(version), user_metadata={"version": f"{version} {HOSTILE}"})
            clock.advance(10)
        yield made


def of_table(store: Store) -> dict[str, Any]:
    (table,) = store.status()["tables"]
    return dict(table)


def on_disk(store: Store) -> int:
    return sum(path.stat().st_size for path in Path(store.uri).rglob("t*/*.arrow"))


def test_a_lease_has_the_time_of_its_snapshot_and_a_table_its_retention(
    store: Store, table: Table, clock: ManualClock
) -> None:
    hold_for_stream(store.context, 1, "copy", store.status()["snapshot"] - 1)
    (lease,) = store.status()["leases"]
    assert lease["snapshot_at"] == clock.now() - 20
    assert of_table(store)["retention_seconds"] == store.context.known.retention_seconds
    table.set_retention("2h")
    assert of_table(store)["retention_seconds"] == 7_200


def test_a_status_tells_of_indexes(store: Store, table: Table) -> None:
    empty = of_table(store)["bytes"]
    assert abs(sum(tablet["bytes"] for tablet in store.status()["tablets"]) - empty) < 10
    table.create_index("by_v", ["v"])
    table.create_index("hashed", ["v", "id"], kind="hash", include=["id"])
    by_v, hashed = of_table(store)["indexes"]
    same = {"name": "by_v", "kind": "sorted", "columns": ["v"], "include": [], "ready": True}
    assert by_v == same | {"bytes": by_v["bytes"]}
    assert (hashed["kind"], hashed["columns"], hashed["include"]) == ("hash", ["v", "id"], [])
    assert empty + by_v["bytes"] + hashed["bytes"] == on_disk(store)
    table.drop_index("hashed")
    assert [index["name"] for index in of_table(store)["indexes"]] == ["by_v"]


def test_each_commit_is_reported_with_its_time_its_size_and_what_its_writer_said(
    store: Store, table: Table
) -> None:
    table.delete([1], user_metadata={"job": "purge", "by": "é = 1"})
    number = table.overwrite(rows(7, 1), ("job", 1))
    assert table.overwrite(rows(7, 1), ("job", 1), user_metadata={"try": "2"}) == number
    made = table.history()
    assert [commit.kind for commit in made] == ["create", "write", "write", "write", "delete", "overwrite"]
    assert [commit.rows for commit in made] == [0, 400, 400, 400, 1, 1]
    said = [{"version": f"{version} {HOSTILE}"} for version in range(3)]
    assert [dict(each.user_metadata) for each in made] == [{}, *said, {"job": "purge", "by": "é = 1"}, {}]
    assert [round(each.created_at - made[0].created_at) for each in made] == [0, 0, 10, 20, 30, 30]
    tx = store.context.catalog.newest()
    files = [fragment for fragment in tx.state.fragments() if fragment.min_commit == number]
    assert made[-1].bytes == sum(file.bytes for file in files) > made[0].bytes == 0
    store.create_table("other", SCHEMA, ["id"]).upsert(rows(1))
    for limit in range(8):
        assert table.history(limit) == made[max(6 - limit, 0) :]
    with pytest.raises(InvalidOption, match="limit"):
        table.history(-1)


def test_what_a_writer_says_is_kept_first_and_bounded(table: Table) -> None:
    first = table.upsert(rows(1), ("job", 1), user_metadata={"try": "1"})
    assert table.upsert(rows(1), ("job", 1), user_metadata={"try": "2"}) == first
    assert table.history()[-1].user_metadata == {"try": "1"}
    table.upsert(rows(1), user_metadata={"k": "x" * (4_096 - len('{"k": ""}'))})
    with pytest.raises(LimitExceeded, match="not 4,097;"):
        table.upsert(rows(1), user_metadata={"k": "x" * (4_097 - len('{"k": ""}'))})


def test_scans_and_topologies_say_in_a_shell_and_in_a_notebook_where_they_stand(
    store: Store, table: Table
) -> None:
    scan = table.scan(page_rows=100)
    next(scan)
    store.move(1, "s2")
    assert repr(scan) == (
        f"<elasticscan.Scan of 't' at snapshot {scan.snapshot}: 96 rows in 1 pages, 0 of them where slots "
        "had moved to; 14 of 64 slots done>"
    )
    scan.to_table()
    assert "400 rows" in repr(scan) and "64 of 64 slots done" in repr(scan)
    assert repr(store.topology) == "Topology(2, 'tablet 1 moved to s2'; tablets at s1 3, s2 5)"
    shown = [text for each in (store.topology, store) if "<script" not in (text := each._repr_html_())]
    topology, _ = (ET.fromstring(f"<div>{text}</div>") for text in shown)
    svg = "{http://www.w3.org/2000/svg}"
    assert len(topology.findall(f"{svg}svg/{svg}g")) == 1
