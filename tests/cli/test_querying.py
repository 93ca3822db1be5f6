"""sql: queries over the tables of a store."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from elasticscan.store import Store

Shell = Any


def test_a_query_reads_every_table_at_one_snapshot(shell: Shell, uri: str) -> None:
    pytest.importorskip("duckdb", reason="pip install 'elasticscan[sql]'")
    query = "SELECT x.name, count(*) AS n FROM t x JOIN t y USING (id) GROUP BY ALL ORDER BY ALL"
    (line, *_) = shell.ok("sql", uri, query, "--json").splitlines()
    assert line == '{"name": "n0", "n": 715}'
    shell.ok("delete", uri, "t", "--where", "true")
    assert "0 rows." in shell.ok("sql", uri, query)
    assert len(shell.ok("sql", uri, query, "--snapshot", "2", "--json").splitlines()) == 7
    assert "there are more" in shell.ok("sql", uri, "SELECT * FROM range(100)")
    for several in ("SELECT 1; SELECT 2", ""):
        code, message = shell.fails("sql", uri, several)
        assert (code, "one query" in message) == (2, True)
    for wrong in ("DROP TABLE t", "SELEC", "SELECT nope FROM t", "SELECT * FROM nope"):
        assert shell.fails("sql", uri, wrong)[0] == 2
    for past in ("t VERSION AS OF 2", "t AT (VERSION => 2)", "t@v2"):
        assert "read with --snapshot 2" in shell.fails("sql", uri, f"SELECT * FROM {past}")[1]
    assert "to write files: export" in shell.fails("sql", uri, "COPY t TO 'x.csv'")[1]
    assert "nope does not exist! The store's tables: t" in " ".join(
        shell.fails("sql", uri, "SELECT * FROM nope")[1].split()
    )


def test_a_query_without_its_extra_tells_it(shell: Shell, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, message = shell.fails("sql", uri, "SELECT 1")
    assert (code, "pip install 'elasticscan[sql]'" in message) == (2, True)


def test_a_snapshot_has_the_tables_that_were_there(shell: Shell, uri: str) -> None:
    pytest.importorskip("duckdb", reason="pip install 'elasticscan[sql]'")
    with Store.open(uri) as store:
        then = store.status()["snapshot"]
        store.create_table("later", {"id": [1]}, primary_key="id")
    at = ("--snapshot", str(then))
    counted = "SELECT count(*) AS n FROM t"
    assert shell.ok("sql", uri, counted, *at, "--json") == shell.ok("sql", uri, counted, "--json")
    code, message = shell.fails("sql", uri, "SELECT * FROM later", *at)
    assert code == 2
    assert f"later does not exist! The store's tables at snapshot {then}: t" in " ".join(message.split())
    code, message = shell.fails("sql", uri, counted, "--snapshot", "99")
    assert code == 2
    assert "ES_SNAPSHOT_NOT_FOUND" in message
