"""`import elasticscan`: what there is, and what is reported of what there is not."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import elasticscan
from elasticscan.base import errors as base_errors
from elasticscan.store.names import INSTEAD

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
    assert elasticscan.open == elasticscan.Store.open


def test_importing_it_imports_nothing_large() -> None:
    large = ("pyarrow", "numpy", "sqlalchemy", "sqlglot", "pandas", "pyspark", "cryptography")
    loaded = fresh(f"import elasticscan, sys; print([name for name in {large} if name in sys.modules])")
    assert loaded == "[]"


def test_opening_a_store_imports_neither_pandas_nor_spark() -> None:
    code = "import elasticscan, sys; elasticscan.open; print({'pandas', 'pyspark'} & set(sys.modules))"
    assert fresh(code) == "set()"


def test_a_store_with_its_catalog_in_sqlite_loads_nothing_of_postgresql(tmp_path: Path) -> None:
    code = (
        f"import elasticscan, sys; store = elasticscan.create({str(tmp_path / 's')!r}, shards=['a'])\n"
        "store.create_table('t', {'id': [1]}, 'id'); store.status()\n"
        "print([name for name in sys.modules if name.startswith('sqlalchemy.dialects.postgresql')])"
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
        "from elasticscan.errors import TableNotFound; import elasticscan, sys\n"
        "print(elasticscan.errors.TableNotFound is TableNotFound, 'pyarrow' in sys.modules)"
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


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("Stroe", "did you mean 'Store'"),
        ("xyz", "it has Page, Scan"),
        ("connect", r"write elasticscan.open\(uri\)"),
        ("KafkaConsumer", r"write elasticscan.open\(uri\).table\(name\).changes"),
        ("MongoClient", r"write elasticscan.open\(uri\)"),
        ("attach", r"write elasticscan.connector.attach\(spark, uri\)"),
        ("from_backup", r"write elasticscan.Store.from_backup\("),
        ("read", r"write elasticscan.open\(uri\).table\(name\).to_arrow"),
        ("read_table", r"write elasticscan.open\(uri\).table\(name\)"),
        ("ElasticScanError", "write elasticscan.errors.ElasticScanError"),
        ("TableNotFound", "write elasticscan.errors.TableNotFound"),
        ("__nothing__", "has no attribute '__nothing__'$"),
    ],
)
def test_another_name_is_reported_with_the_nearest(typed: str, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        getattr(elasticscan, typed)


def test_the_version_is_that_of_the_changelog() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changes, re.MULTILINE)[0] == elasticscan.__version__


def test_the_tour_of_the_readme_gives_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tour = text[text.index("## A tour in Python") : text.index("## A tour in Spark")]
    code = "\n".join(re.findall(r"```python\n(.*?)```", tour, re.DOTALL))
    names: dict[str, object] = {}
    message = 0
    for node in ast.parse(code).body:
        line, _, comment = code.splitlines()[(node.end_lineno or 0) - 1].partition("  # ")
        if isinstance(node, ast.Expr) and not line.startswith("store."):
            assert comment.startswith(repr(eval(ast.unparse(node), names))), line  # noqa: S307
            message += 1
        else:
            exec(compile(ast.Module([node], []), "README.md", "exec"), names)
    assert message == 8


def test_what_is_written_instead_exists() -> None:
    """Every name that is reported of is missing, and what is reported in its place is there."""
    kinds = {"store": elasticscan.Store, "table": elasticscan.Table, "scan": elasticscan.Scan}
    assert set(INSTEAD) == {"Store", "Table", "Scan"}
    for kind, hints in INSTEAD.items():
        for name, instead in hints.items():
            assert not hasattr(kinds[kind.lower()], name), (kind, name)
            methods = re.findall(r"\b(store|table|scan)(?:\([^()]*\))?\.(\w+)", instead)
            assert methods or "DataFrame(scan)" in instead, instead
            assert all(hasattr(kinds[of], method) for of, method in methods), instead
