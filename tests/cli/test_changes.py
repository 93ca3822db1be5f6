"""`elasticscan changes` names the commit after which the next call goes on."""

from __future__ import annotations

from pathlib import Path

import elasticscan
from tests.cli.conftest import Shell


def test_without_new_commits_the_place_stays_where_it_was(shell: Shell, tmp_path: Path) -> None:
    uri = str(tmp_path / "a.store")
    with elasticscan.create(uri, shards=["s1"]) as store:
        table = store.create_table("t", {"id": [1, 2]}, primary_key="id")
        newest = table.delete([1])
    told = shell.json("changes", uri, "t", "--after", newest, "--output", tmp_path / "nothing.parquet")
    assert (told["rows"], told["snapshot"]) == (0, newest)
    assert f"0 rows of changes up to commit {newest}." in shell.ok("changes", uri, "t", "--after", newest)
