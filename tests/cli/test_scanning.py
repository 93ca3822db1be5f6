"""scan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from elasticscan.base.json_text import plain
from elasticscan.store import Store

Shell = Any


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_all_rows_go_to_stdout_as_json_lines(shell: Shell, uri: str, rows: pa.Table) -> None:
    found = lines(shell.ok("scan", uri, "t", "--json"))
    assert sorted(found, key=lambda row: row["id"]) == rows.to_pylist()


def test_values_that_json_has_no_form_for_and_control_characters_are_text(
    shell: Shell, tmp_path: Path
) -> None:
    place = str(tmp_path / "odd.store")
    with Store.create(place, ["s1"], tablets=1) as store:
        table = store.create_table(
            "t", pa.schema([("id", pa.int64()), ("x", pa.float64()), ("v", pa.string())]), ["id"]
        )
        values = (float("nan"), float("inf"), float("-inf"))
        table.upsert([{"id": at, "x": x, "v": "\x1b[31mred\nß"} for at, x in enumerate(values)])
    out = shell.ok("scan", place, "t", "--json")
    reported = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
    assert sorted(row["x"] for row in reported) == ["-Infinity", "Infinity", "NaN"]
    shown = shell.ok("scan", place, "t")
    assert "\x1b[31mred" not in shown
    assert "\\x1b[31mred\\nß" in shown


def test_people_see_the_first_rows_and_that_there_are_more(shell: Shell, uri: str) -> None:
    assert "20 rows of snapshot 2; there are more" in shell.ok("scan", uri, "t")
    key = json.loads(shell.run("scan", uri, "t", "--pages", 1, "--page-rows", 30, "--json")[2])
    assert "20 rows of snapshot 2; there are more" in shell.ok("scan", uri, "--key", key["continuation_key"])


@pytest.mark.parametrize("count", [3, 20])
def test_people_are_reported_when_they_saw_all(shell: Shell, uri: str, count: int) -> None:
    reported = shell.ok("scan", uri, "t", "--filter", f"id < {count}", "--columns", "id")
    assert f"{count} rows of snapshot 2." in reported


def test_people_who_ask_for_pages_see_how_to_go_on(shell: Shell, uri: str) -> None:
    reported = shell.ok("scan", uri, "t", "--pages", 1, "--page-rows", 5)
    assert "5 rows of snapshot 2; there are more:" in reported
    assert f"elasticscan scan {uri} --key " in reported


def test_columns_and_filter_are_as_asked(shell: Shell, uri: str) -> None:
    found = lines(shell.ok("scan", uri, "t", "--columns", "name,id", "--filter", "id >= 4998", "--json"))
    assert sorted(found, key=lambda row: row["id"]) == [
        {"name": "n0", "id": 4998},
        {"name": "n1", "id": 4999},
    ]


def test_columns_that_are_named_one_by_one_are_all_there(shell: Shell, uri: str) -> None:
    for words in (["--columns", "value", "--columns", "id"], ["--columns", "value,id"]):
        assert shell.ok("get", uri, "t", "4", "--json", *words) == '{"value": 1.0, "id": 4}\n'
        assert (
            shell.ok("scan", uri, "t", "--filter", "id = 4", "--json", *words) == '{"value": 1.0, "id": 4}\n'
        )
    reported = shell.json("index", "create", uri, "t", "by_both", "--columns", "name", "--columns", "value")
    assert reported["columns"] == ["name", "value"]
    (first, *_) = shell.ok(
        "aggregate", uri, "t", "count(*)", "--by", "name", "--by", "id", "--json"
    ).splitlines()
    assert first == '{"name": "n0", "id": 0, "count(*)": 1}'


def test_an_option_of_one_value_that_is_given_twice_is_refused(shell: Shell, uri: str) -> None:
    for words in (
        ("count", uri, "t", "--filter", "id < 2", "--filter", "id > 0"),
        ("delete", uri, "t", "--where", "id < 2", "--where", "id > 0"),
        ("tag", "create", uri, "t", "x", "--snapshot", "1", "--snapshot", "2"),
    ):
        code, reported = shell.fails(*words)
        assert code == 2
        assert f"{words[-2]} is given twice; give it once" in reported
    assert shell.json("count", uri, "t", "--json")["rows"] == 5_000


def test_a_scan_may_stop_after_some_pages_and_go_on_elsewhere(shell: Shell, uri: str, rows: pa.Table) -> None:
    _, out, err = shell.run("scan", uri, "t", "--page-rows", 1_000, "--pages", 2, "--json")
    shell.ok("expand", uri, "s3")
    rest = shell.ok("scan", uri, "t", "--key", json.loads(err)["continuation_key"], "--json")
    assert 0 < len(lines(out)) <= 2_000
    assert sorted(lines(out) + lines(rest), key=lambda row: row["id"]) == rows.to_pylist()


def test_a_limit_is_exact_and_the_end(shell: Shell, uri: str, tmp_path: Path) -> None:
    code, out, err = shell.run("scan", uri, "t", "--limit", 1_234, "--page-rows", 500, "--json")
    assert (code, len(lines(out)), err) == (0, 1_234, "")
    words = ["--limit", 1_234, "--page-rows", 500, "--pages", 2]
    begun = shell.json("scan", uri, "t", *words, "-o", tmp_path / "part.arrow")
    assert (
        len(lines(shell.ok("scan", uri, "--key", begun["continuation_key"], "--json")))
        == 1_234 - begun["rows"]
    )


def test_an_older_snapshot_can_be_read(shell: Shell, uri: str, tmp_path: Path) -> None:
    before = shell.json("status", uri)["snapshot"]
    (tmp_path / "r.csv").write_text("id,name,value\n1,changed,0.5\n")
    shell.ok("load", uri, "t", tmp_path / "r.csv")
    condition = ["--filter", "id = 1", "--columns", "name", "--json"]
    assert lines(shell.ok("scan", uri, "t", *condition)) == [{"name": "changed"}]
    assert lines(shell.ok("scan", uri, "t", "--snapshot", before, *condition)) == [{"name": "n1"}]


@pytest.mark.parametrize(
    ("name", "open_file"), [("o.parquet", pyarrow.parquet.read_table), ("o.csv", pyarrow.csv.read_csv)]
)
def test_rows_go_to_a_file(
    shell: Shell, uri: str, tmp_path: Path, rows: pa.Table, name: str, open_file: Callable[[Path], pa.Table]
) -> None:
    reported = shell.json("scan", uri, "t", "--output", tmp_path / name)
    assert (reported["rows"], reported["continuation_key"]) == (5_000, None)
    assert open_file(tmp_path / name).sort_by("id").to_pylist() == rows.to_pylist()
    assert "5,000 rows" in shell.ok("scan", uri, "t", "-o", tmp_path / name)


def test_rows_go_to_an_arrow_file_in_two_parts(
    shell: Shell, uri: str, tmp_path: Path, rows: pa.Table
) -> None:
    words = ["--pages", 1, "--page-rows", 1_234]
    first = shell.json("scan", uri, "t", *words, "-o", tmp_path / "1.arrow")
    assert 0 < first["rows"] <= 1_234
    shell.json("scan", uri, "--key", first["continuation_key"], "-o", tmp_path / "2.arrow")
    parts = [pa.ipc.open_file(str(tmp_path / name)).read_all() for name in ("1.arrow", "2.arrow")]
    assert pa.concat_tables(parts).sort_by("id").to_pylist() == rows.to_pylist()


def test_a_failed_scan_leaves_no_file_and_keeps_an_older_one(shell: Shell, tmp_path: Path) -> None:
    uri, kept = str(tmp_path / "nested.store"), tmp_path / "o.csv"
    kept.write_text("older")
    with Store.create(uri, ["s1"]) as store:
        nested = pa.table({"id": [1], "tags": [["a"]]})
        store.create_table("t", nested.schema, ["id"])
        store.table("t").upsert(nested)
    code, reported = shell.fails("scan", uri, "t", "-o", kept)
    assert code == 2
    assert "cannot be written" in reported
    assert kept.read_text() == "older"
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


@pytest.mark.parametrize(
    ("store", "name", "reported"),
    [("made.store", "no/o.parquet", "cannot be written"), ("no.store", "o.xlsx", "use .csv")],
)
def test_an_output_that_cannot_be_written_is_refused(
    shell: Shell, uri: str, tmp_path: Path, store: str, name: str, reported: str
) -> None:
    """One of an unknown kind before anything is read."""
    code, message = shell.fails("scan", tmp_path / store, "t", "-o", tmp_path / name)
    assert code == 2
    assert reported in message


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["nope"], "[ES_TABLE_NOT_FOUND]"),
        (["t", "--columns", "nope"], "[ES_COLUMN_NOT_FOUND]"),
        (["t", "--filter", "id >"], "[ES_INVALID_FILTER]"),
        (["t", "--snapshot", "99"], "[ES_SNAPSHOT_NOT_FOUND]"),
        (["t", "--key", "nonsense"], "[ES_INVALID_CONTINUATION_KEY]"),
        (["t", "--page-rows", "0"], "[ES_INVALID_OPTION]"),
        ([], "[ES_INVALID_OPTION] name a TABLE"),
    ],
)
def test_a_scan_that_cannot_be_carried_out_says_why(
    shell: Shell, uri: str, words: list[str], reported: str
) -> None:
    code, message = shell.fails("scan", uri, *words)
    assert code == 2
    assert message.startswith(reported)


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["t", "--filter", "id = 1"], "--filter cannot change a scan that has begun"),
        (["other"], "goes on with table 't'"),
    ],
)
def test_what_a_scan_reads_cannot_change_half_way(
    shell: Shell, uri: str, words: list[str], reported: str
) -> None:
    key = json.loads(shell.run("scan", uri, "t", "--pages", 1, "--json")[2])["continuation_key"]
    code, message = shell.fails("scan", uri, *words, "--key", key)
    assert code == 2
    assert reported in message


def test_only_a_scan_that_can_go_on_keeps_its_lease(shell: Shell, uri: str) -> None:
    shell.ok("scan", uri, "t")
    shell.ok("scan", uri, "t", "--limit", 10)
    shell.ok("scan", uri, "t", "--json")
    shell.ok("explain", uri, "t")
    assert shell.json("status", uri)["leases"] == []
    shell.ok("scan", uri, "t", "--pages", 1, "--page-rows", 10)
    assert len(shell.json("status", uri)["leases"]) == 1


def test_values_that_json_lacks_have_a_form() -> None:
    moment = pa.scalar(0, pa.timestamp("us", "UTC")).as_py()
    assert [plain(value) for value in (b"\x00\xff", moment)] == ["AP8=", "1970-01-01T00:00:00+00:00"]


def test_rows_are_counted(shell: Shell, uri: str) -> None:
    assert shell.json("count", uri, "t") == {"table": "t", "rows": 5_000, "snapshot": 2}
    assert "5 rows of snapshot 2." in shell.ok("count", uri, "t", "--filter", "id < 5")
    assert shell.json("count", uri, "t", "--snapshot", "1")["rows"] == 0


def test_changes_are_shown_written_and_gone_on_with(shell: Shell, uri: str, tmp_path: Path) -> None:
    with Store.open(uri) as store:
        table = store.table("t")
        table.tag("before")
        table.update({"value": "9"}, where="id = 3")
        table.delete([4])
    changed = lines(shell.ok("changes", uri, "t", "--after", "before", "--json"))
    assert sorted((row["_commit_version"], row["_change_type"], row["id"]) for row in changed) == [
        (3, "update_postimage", 3),
        (3, "update_preimage", 3),
        (4, "delete", 4),
    ]
    shown = shell.ok("changes", uri, "t", "--after", "3")
    assert "delete" in shown
    assert "1 row of changes up to commit 4." in shown
    some = lines(shell.ok("changes", uri, "t", "--after", "2", "--upto", "3", "--columns", "value", "--json"))
    assert sorted(row["value"] for row in some if row["_change_type"] == "update_postimage") == [9.0]
    path = tmp_path / "feed.parquet"
    reported = shell.json("changes", uri, "t", "--output", path)
    assert reported["rows"] == pyarrow.parquet.read_table(path).num_rows == 5_003
    code, out, err = shell.run("changes", uri, "t", "--pages", "1", "--page-rows", "100", "--json")
    rest = shell.ok("scan", uri, "--key", json.loads(err)["continuation_key"], "--json")
    assert code == 0
    assert len(lines(out)) + len(lines(rest)) == 5_003
    code, message = shell.fails("changes", uri, "t", "--after", "99")
    assert (code, "still to come" in message) == (2, True)


def test_rows_are_printed_as_csv(shell: Shell, uri: str, rows: pa.Table, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(shell.ok("scan", uri, "t", "--format", "csv"))
    shell.ok("load", uri, "again", tmp_path / "r.csv", "--primary-key", "id")
    with Store.open(uri) as store:
        assert store.table("again").to_arrow().sort_by("id").to_pylist() == rows.to_pylist()
    assert len(shell.ok("scan", uri, "t", "--format", "json", "--limit", "3").splitlines()) == 3
    for words in (["--format", "xml"], ["--format", "csv", "--json"], ["--format", "csv", "-o", "r.csv"]):
        code, reported = shell.fails("scan", uri, "t", *words)
        assert (code, "--format" in reported) == (2, True)


def test_a_version_behind_a_name_is_reported_to_be_a_snapshot(shell: Shell, uri: str) -> None:
    for words in (["scan", uri, "t@v3"], ["count", uri, "t@3"], ["update", uri, "t@v3", "--set", "id=1"]):
        code, reported = shell.fails(*words)
        assert (code, "write t and, where a command takes it, --snapshot 3" in reported) == (2, True)
