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


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


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


def test_importing_it_imports_nothing_large() -> None:
    large = ("pyarrow", "numpy", "apsw", "psycopg", "sqlglot", "pandas", "pyspark", "cryptography")
    loaded = fresh(f"import elasticscan, sys; print([name for name in {large} if name in sys.modules])")
    assert loaded == "[]"


def test_opening_a_store_imports_neither_pandas_nor_spark() -> None:
    code = "import elasticscan, sys; elasticscan.open; print({'pandas', 'pyspark'} & set(sys.modules))"
    assert fresh(code) == "set()"


def test_a_store_with_its_catalog_in_sqlite_loads_nothing_of_postgresql(tmp_path: Path) -> None:
    code = (
        f"import elasticscan, sys; store = elasticscan.create({str(tmp_path / 's')!r}, shards=['a'])\n"
        "store.create_table('t', {'id': [1]}, 'id'); store.status()\n"
        "print([name for name in sys.modules if name.startswith('psycopg')])"
    )
    assert fresh(code) == "[]"


def test_a_task_of_spark_loads_nothing_of_sql_over_tables() -> None:
    code = (
        "import elasticscan.connector, sys\n"
        "print([name for name in sys.modules if name.startswith('elasticscan.connector.sql')])\n"
        "print(elasticscan.connector.AttachedStore.__name__, elasticscan.connector.TableRead.__name__)"
    )
    assert fresh(code).split("\n") == ["[]", "AttachedStore TableRead"]


def test_errors_are_a_module_and_come_without_arrow() -> None:
    code = (
        "from elasticscan.errors import NotFound; import elasticscan, sys\n"
        "print(elasticscan.errors.NotFound is NotFound, 'pyarrow' in sys.modules)"
    )
    assert fresh(code) == "True False"


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
