"""`import elasticscan`: what there is, and what is reported of what there is not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import elasticscan
from elasticscan.base import errors as base_errors

ROOT = Path(__file__).resolve().parents[1]


def test_the_door_has_these_names_and_no_others() -> None:
    names = ["Page", "Scan", "Store", "Table", "__version__", "create", "errors", "open"]
    assert elasticscan.__all__ == names
    assert dir(elasticscan) == names
    assert all(getattr(elasticscan, name) is not None for name in names)
    assert elasticscan.create == elasticscan.Store.create


def test_open_opens_a_store_by_its_path_and_a_cluster_by_its_scheme(tmp_path: Path) -> None:
    elasticscan.create(tmp_path / "s", shards=["a"]).close()
    with elasticscan.open(tmp_path / "s", read_only=True) as store:
        assert isinstance(store, elasticscan.Store) and store.read_only
    with pytest.raises(base_errors.ShardUnavailable, match="no node of the cluster"):
        elasticscan.open("redis://127.0.0.1:1")


OPENED = "store = elasticscan.create(sys.argv[1], shards=['a']); store.create_table('t', {'id': [1]}, 'id')"


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("elasticscan.errors.NotFound", "pyarrow numpy apsw psycopg sqlglot pandas pyspark cryptography"),
        ("elasticscan.open", "pandas pyspark"),
        (f"{OPENED}; store.status()", "psycopg"),
        ("import elasticscan.connector", "elasticscan.connector.sql"),
        ("from elasticscan.connector import AttachedStore, TableRead", ""),
    ],
)
def test_what_is_used_imports_nothing_large_beyond_it(code: str, modules: str, tmp_path: Path) -> None:
    asked = f"import elasticscan, sys; {code}; print(set({modules.split()}) & set(sys.modules))"
    command = [sys.executable, "-c", asked, str(tmp_path / "s")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.stdout.strip(), run.returncode) == ("set()", 0), run.stderr


def test_every_error_is_exported() -> None:
    classes = {
        name
        for name, value in vars(base_errors).items()
        if isinstance(value, type) and value.__module__ == base_errors.__name__
    }
    assert set(base_errors.__all__) == classes
    assert classes <= set(vars(elasticscan.errors))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'elasticscan' has no attribute 'Stroe'"):
        elasticscan.Stroe  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_that_of_the_changelog() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changes, re.MULTILINE)[0] == elasticscan.__version__
