"""Stores, tables, scans, topologies, history and explanations in a shell and in a notebook."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

from elasticscan.store import Store

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64())])
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(1)</script>"

pytestmark = pytest.mark.usefixtures("unflushed")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "s", ["s1", "s2"], tablets=8, slots=64, upkeep="off") as made:
        table = made.create_table("t", SCHEMA, ["id"])
        table.create_index("by_k", ["k"])
        table.upsert(pa.table({"id": range(2_000), "k": range(2_000)}), user_metadata={"why": HOSTILE})
        yield made


def html(shown: object) -> ET.Element:
    """What a notebook gets, as one element; it must be well-formed."""
    text: str = shown._repr_html_()  # type: ignore[attr-defined]
    assert "<script" not in text
    return ET.fromstring(f"<div>{text}</div>")


def test_a_scan_says_where_it_stands_and_draws_where_its_slots_went(store: Store) -> None:
    scan = store.table("t").scan(page_rows=500)
    next(scan)
    store.move(1, "s2")
    assert repr(scan) == (
        "<elasticscan.Scan of 't' at snapshot 2: 497 rows in 1 pages, 0 of them where slots had moved to; "
        "15 of 64 slots done>"
    )
    rows = html(scan).findall(f"{SVG}svg/{SVG}g")
    assert len(rows) == 2, "its base topology, and what came since"
    scan.to_table()
    assert "2,000 rows" in repr(scan) and "64 of 64 slots done" in repr(scan)
    assert html(scan) is not None


def test_a_topology_is_one_line_in_a_shell_and_a_row_of_the_slot_map_in_a_notebook(store: Store) -> None:
    store.move(1, "s2")
    topology = store.topology
    assert repr(topology) == "Topology(2, 'tablet 1 moved to s2'; tablets at s1 3, s2 5)"
    assert len(html(topology).findall(f"{SVG}svg/{SVG}g")) == 1
    assert html(store) is not None


def test_history_has_a_line_for_each_commit(store: Store) -> None:
    table = store.table("t")
    history = table.history()
    lines = repr(history).splitlines()
    assert lines[0] == "History of 2 commits" and len(lines) == 3
    assert "write" in lines[2] and "2,000 rows" in lines[2]
    assert history == tuple(history) and history[-1].user_metadata == {"why": HOSTILE}
    assert pickle.loads(pickle.dumps(history)) == history
    rows = list(html(history).iter("tr"))
    assert len(rows) == 3 and (rows[-1][-1].text or "") == f"why={HOSTILE}"
    for number in range(30):
        table.upsert([{"id": number, "k": 0}])
    lines = repr(table.history()).splitlines()
    assert (lines[1], len(lines)) == ("12 earlier", 22)


def test_a_table_shows_its_columns_and_its_newest_commits(store: Store) -> None:
    cells = [cell.text for cell in html(store.table("t")).iter("td")]
    assert cells[:6] == ["id", "int64", "primary key", "k", "int64", None]
    assert "2,000" in cells


def test_an_explanation_is_a_dictionary_that_notebooks_show_as_tables(store: Store) -> None:
    table = store.table("t")
    scan = table.scan(filter="k < 10")
    scan.to_table()
    explained = scan.explain()
    assert json.loads(json.dumps(explained, default=str))["table"] == "t"
    assert dict(explained) == explained
    assert repr(explained).splitlines() == [
        "Explanation of a scan of 't' at snapshot 2",
        "columns   id, k",
        "filter    k < 10",
        f"access    {explained['access']}",
        f"until now {explained['actual']['rows_scanned']:,} rows scanned, 10 returned",
    ]
    shown = html(explained)
    cells = [cell.text for cell in shown.iter("td")]
    assert {"by_k", "direct", "rows scanned", "rows returned"} <= set(cells)
    assert cells[cells.index("rows returned") + 1] == "10"
    titles = [title.text for title in shown.iter("th")]
    assert f"access, chosen: {explained['access']}" in titles
    assert html(table.scan(index="none").explain()) is not None
