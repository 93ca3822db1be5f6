"""Blocks of Python in the README and in docs/, and notebooks, run in their order: what they promise is so."""

from __future__ import annotations

import collections.abc
import inspect
import json
import re
import shlex
import typing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import elasticscan
from elasticscan.base.errors import ElasticScanError, FilterError
from elasticscan.cli.app import app
from elasticscan.filters import Predicate
from scripts import errors_page
from scripts.notebooks import differences
from tests.pages import ROOT, blocks, promised, run, statements, steps, stripped

SPARK = ("spark.", "SparkSession", "shop.sql", "frame.", "attach(")  # blocks that need a session
SHELLS = ("cookbook.md",)  # pages whose commands are run, too


@pytest.mark.parametrize(
    ("page", "remarks"),
    [
        ("../README.md", 8),
        ("tour.md", 13),
        ("writes.md", 0),
        ("filters.md", 5),
        ("history.md", 2),
        ("moving-data.md", 3),
        ("indexes.md", 2),
        ("schema-changes.md", 2),
        ("errors.md", 0),
        ("cookbook.md", 15),
        ("operations.md", 4),
    ],
)
def test_the_blocks_of_a_page_do_what_it_says(
    page: str,
    remarks: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for package in ("duckdb", "pandas", "polars"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    if page == "moving-data.md":  # its first block is of a shell, and takes files that a user has
        (tmp_path / "in").mkdir()
        pq.write_table(pa.table({"id": range(100_000)}), tmp_path / "in" / "trips.parquet")
        elasticscan.create("trips.store", shards=["s1"]).close()
    names: dict[str, Any] = {}
    wrong, message = [], []
    for kind, typed, output in steps((ROOT / "docs" / page).read_text(encoding="utf-8")):
        if any(word in typed for word in SPARK) or (kind == "shell" and page not in SHELLS):
            continue
        capsys.readouterr()
        if kind == "shell":
            printed = CliRunner().invoke(app, shlex.split(typed)[1:]).output
        else:
            wrong += run(typed, names)
            message += [remark for _, remark in statements(typed) if remark]
            printed = capsys.readouterr().out
        if printed and output:
            assert stripped(printed) == stripped(output)
    names["store"].close()
    assert wrong == []
    assert sum(not promised(remark, object()) for remark in message) >= remarks


def test_the_block_of_object_storage_makes_a_store_in_a_bucket(postgres_url: str, bucket: str) -> None:
    page = (ROOT / "docs" / "object-storage.md").read_text(encoding="utf-8")
    ((code, _),) = blocks(page)
    here = code.replace("postgresql+psycopg://…", postgres_url).replace("s3://flights/", f"s3://{bucket}/")
    assert here.count(bucket) == 2 and postgres_url in here
    names: dict[str, Any] = {"elasticscan": elasticscan}
    assert run(here, names) == []
    with names["store"] as store:
        roots = [shard["root"] for shard in store.status()["shards"]]
    assert roots == [f"s3://{bucket}/s1", f"s3://{bucket}/s2"]


def test_the_notebook_without_spark_gives_what_it_says() -> None:
    """Where this fails, `python scripts/notebooks.py docs/notebooks/*.ipynb`."""
    pytest.importorskip("duckdb")
    pytest.importorskip("polars")
    notebook = (ROOT / "docs" / "notebooks" / "python.ipynb").read_text(encoding="utf-8")
    assert differences(json.loads(notebook)) == []


def test_the_page_of_errors_is_made_of_their_classes() -> None:
    """Where this fails, `python scripts/errors_page.py > docs/errors.md`."""
    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == errors_page.page()
    kinds = [kind for kind in errors_page.below(ElasticScanError) if kind not in errors_page.HEADINGS]
    assert [kind.__name__ for kind in kinds if len((kind.__doc__ or "").splitlines()) < 2] == []


def test_the_functions_on_the_page_of_conditions_are_those_of_filters() -> None:
    page = (ROOT / "docs" / "filters.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\| functions \| (.*) \|$", page, re.MULTILINE)
    schema = pa.schema({"n": pa.int32(), "x": pa.float64(), "s": pa.string(), "d": pa.date32()})

    def is_known(call: str) -> bool:
        try:
            return Predicate.parse(f"{call} IS NULL", schema) is not None
        except FilterError:
            return False

    for name in [name.strip("`") for name in line.split(", ")]:
        assert any(is_known(f"{name}({given})") for given in ("n", "x", "s", "d", "s, 'x'", "s, 1")), name


def test_a_remark_that_promises_something_else_is_found() -> None:
    assert run("1 + 1  # 2\n[3]  # [3]\n", {}) == []
    assert run("1 + 1  # 3\n", {}) == ["1 + 1 is 2, not 3"]


# For the layers above alone.
INSIDE = {"Choice", "Context", "ContinuationKey", "EmbeddedBackend", "SlotSet"}


def test_the_page_of_the_api_has_all_that_methods_return() -> None:
    page = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\.\. autoclass:: elasticscan\.(?:\w+\.)*(\w+)$", page, re.MULTILINE))
    returned = set()
    for each in (elasticscan.Store, elasticscan.Table, elasticscan.Scan):
        for name, member in inspect.getmembers(each):
            if name.startswith("_"):
                continue
            function = getattr(member, "fget", getattr(member, "func", member))
            message = inspect.get_annotations(inspect.unwrap(function)).get("return", "")
            returned |= set(re.findall(r"[A-Z]\w+", message.replace("pa.", "").replace("typing.", "")))
    assert len(returned) > 15
    known = {name for name in returned if hasattr(collections.abc, name) or hasattr(typing, name)}
    arrow = {name for name in returned if hasattr(pa, name) and name != "Table"}
    assert returned - known - arrow - INSIDE - listed - {"None"} == set()
    assert {"AttachedStore", "TableRead"} < listed
