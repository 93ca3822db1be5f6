"""Stores, scans and topologies in a shell and in a notebook."""

from __future__ import annotations

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


def test_a_scan_says_where_it_stands(store: Store) -> None:
    scan = store.table("t").scan(page_rows=500)
    next(scan)
    store.move(1, "s2")
    assert repr(scan) == (
        f"<elasticscan.Scan of 't' at snapshot {scan.snapshot}: 497 rows in 1 pages, 0 of them where "
        "slots had moved to; 15 of 64 slots done>"
    )
    scan.to_table()
    assert "2,000 rows" in repr(scan) and "64 of 64 slots done" in repr(scan)


def test_a_topology_is_one_line_in_a_shell_and_a_row_of_the_slot_map_in_a_notebook(store: Store) -> None:
    store.move(1, "s2")
    topology = store.topology
    assert repr(topology) == "Topology(2, 'tablet 1 moved to s2'; tablets at s1 3, s2 5)"
    assert len(html(topology).findall(f"{SVG}svg/{SVG}g")) == 1
    assert html(store) is not None
