"""A table's files are compressed as it says, or not, and are written anew where that has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticscan.store import Store

pytestmark = pytest.mark.usefixtures("unflushed")


def test_compact_writes_single_fragments_anew_where_the_form_has_changed(tmp_path: Path) -> None:
    def files() -> set[str]:
        return {file.name for file in Path(store.uri).rglob("*.arrow")}

    rows = {"id": range(200), "city": [f"city {i % 3}" for i in range(200)]}
    with Store.create(tmp_path / "store", ["a", "b"], tablets=4, slots=16) as store:
        table = store.create_table("t", rows, "id")
        table.compact()
        before, expected = files(), table.to_arrow().sort_by("id")
        table.set_compression("zstd")
        table.compact()
        with store.context.catalog.reading() as tx:
            forms = [store.context.readers.compression_of(fragment) for fragment in tx.state.fragments()]
        assert forms == ["zstd", "zstd"] and table.to_arrow().sort_by("id") == expected
        store.collect_garbage(grace_seconds=0)
        packed = files()
        assert packed.isdisjoint(before)
        table.compact()  # nothing is left to do
        assert files() == packed
