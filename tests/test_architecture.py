"""The rules that keep the code readable, each walked over the syntax trees of the sources.

Import-linter finds an import that points up; ruff finds relative and late imports, pickles and prints.
Nothing here imports the code it judges, so a rule that is broken is reported as such even where the broken
module could not be imported.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Each process reads all sources: `make check` walks over them, `make test` does not.
walk = pytest.mark.long

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]

# The one list of folders; `api` is `elasticscan` itself and may import from every other.
DIRECTORIES: dict[str, str] = PROJECT["setuptools"]["package-dir"]
DOOR = DIRECTORIES["elasticscan"]
FOLDERS = sorted(set(DIRECTORIES.values()) - {DOOR})
# Every folder with code.
CODE = (*FOLDERS, DOOR)

# Packages that one folder alone may import.
OWNERS: dict[str, str] = {
    "pyspark": "connector",
    "py4j": "connector",
    "apsw": "catalog",
    "sqlite3": "catalog",  # by none: apsw has a newer SQLite
    "psycopg": "catalog",
    "botocore": "storage",
    "typer": "cli",
    "rich": "cli",
}
# Their statements of SQL: all in one module, and those of each database.
STATEMENT_OWNERS = {f"catalog/{name}.py" for name in ("tables", "sqlite", "sqlite_files", "postgres")}
STATEMENT = re.compile(r"\s*(?:SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|CREATE INDEX|WITH) ")

FUNCTION_LINES = 70
MODULE_LINES = 500
# What users hold: one hop from a public method to the function that does the work, and no decorator between.
PUBLIC_CLASSES = {
    "store/store.py": "Store",
    "store/table.py": "Table",
    "store/reading/scan.py": "Scan",
    "store/reading/paged_scan.py": "PagedScan",
}
PLAIN_DECORATORS = {"property", "classmethod", "staticmethod", "abstractmethod"}

# Files that decide and never act: no clock, randomness, threads or I/O, so that a seed replays them.
PURE = (
    "topology/*.py",
    "filters/*.py",
    "metadata/*.py",
    "protocol/*.py",
    "optimizer/*.py",
    "reader/*.py",
    "backends/redis/cluster_map.py",
    "backends/redis/names.py",
    "store/repair/plan.py",
    "store/moves/balancing.py",
    "store/upkeep/garbage.py",
    "store/upkeep/planning.py",
)
NOT_PURE = ("protocol/keys.py",)  # every sealed key takes a random nonce

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


def sources() -> list[str]:
    found = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    found.append(ROOT / "pyspark_elasticscan.py")
    return sorted(str(path.relative_to(ROOT)) for path in found)


def pure_sources() -> list[str]:
    found = {str(path.relative_to(ROOT)) for pattern in PURE for path in ROOT.glob(pattern)}
    return sorted(found - set(NOT_PURE))


@cache
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


def belongs_to(module: str, packages: frozenset[str]) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:depth]) in packages for depth in range(1, len(parts) + 1))


def behind_front_pages(folder: str, tree: ast.AST) -> Iterator[str]:
    """Imports from inside of another folder. `base` has no front page: its modules stand for themselves."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("elasticscan."):
            _, other, *inner = (node.module or "").split(".")
            if inner and other not in (folder, "base"):
                yield f"line {node.lineno}: {node.module}"


def in_folders() -> list[str]:
    return [source for source in sources() if "/" in source]


def effects(tree: ast.AST) -> list[str]:
    found = [f"line {line}: imports {name}" for line, name in imports_of(tree) if belongs_to(name, EFFECTS)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in EFFECTFUL_ATTRIBUTES:
            found.append(f"line {node.lineno}: .{node.attr}")
        elif isinstance(node, ast.Name) and node.id in EFFECTFUL_BUILTINS:
            found.append(f"line {node.lineno}: {node.id}")
    return found


def test_the_files_named_as_pure_or_not_pure_exist() -> None:
    assert [pattern for pattern in PURE if not list(ROOT.glob(pattern))] == []
    assert [name for name in NOT_PURE if not (ROOT / name).is_file()] == []
    assert {"reader/cursor.py", "filters/value_sets.py", "topology/values.py"} <= set(pure_sources())


def offenders(judge: Callable[[str, ast.Module], Iterable[object]], among: Iterable[str]) -> list[str]:
    """What a rule has to say, over all the sources that it is for."""
    return [f"{source}: {found}" for source in among for found in judge(source, tree_of(source))]


def test_every_folder_with_code_is_packaged_and_checked() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "typing" / "elasticscan").iterdir()}
    door = {path.name: path.resolve() for path in (ROOT / DOOR).iterdir() if path.suffix != ".pyc"}
    checked = {folder: ROOT / folder for folder in FOLDERS} | door
    assert links | {"__pycache__": None} == checked | {"__pycache__": None}
    packages = {
        path.parent.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.py")
    }
    named = {"elasticscan." + ".".join(path.parts) for path in packages}
    assert named | {"elasticscan"} == set(PROJECT["setuptools"]["packages"])


@walk
def test_a_module_has_at_most_500_lines_and_a_function_70() -> None:
    def long(source: str, tree: ast.Module) -> Iterator[str]:
        lines = len((ROOT / source).read_text(encoding="utf-8").splitlines())
        if lines > MODULE_LINES:
            yield f"{lines} lines: split it"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    yield f"{node.name} has {length} lines"

    assert offenders(long, sources()) == []


def test_public_methods_have_no_decorator_of_ours() -> None:
    def decorated(source: str, tree: ast.Module) -> Iterator[str]:
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        for node in classes[PUBLIC_CLASSES[source]].body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                for found in {ast.unparse(each) for each in node.decorator_list} - PLAIN_DECORATORS:
                    yield f"{node.name} has the decorator {found}"

    assert offenders(decorated, PUBLIC_CLASSES) == []


@walk
def test_spark_databases_and_the_terminal_each_stay_in_their_folder() -> None:
    def foreign(source: str, tree: ast.Module) -> Iterator[str]:
        for line, module in imports_of(tree):
            owner = OWNERS.get(module.split(".")[0], folder_of(source))
            if owner != folder_of(source):
                yield f"line {line}: {module} belongs in {owner}/"

    assert offenders(foreign, sources()) == []


@walk
def test_statements_lie_where_all_of_them_are_seen() -> None:
    def statements(_: str, tree: ast.Module) -> list[str]:
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        return [text[:40] for text in texts if isinstance(text, str) and STATEMENT.match(text)]

    catalog = [s for s in sources() if folder_of(s) == "catalog" and s not in STATEMENT_OWNERS]
    assert offenders(statements, catalog) == []


@walk
def test_the_catalog_is_asked_by_the_store_alone() -> None:
    def asking(_: str, tree: ast.Module) -> Iterator[str]:
        for line, module in imports_of(tree):
            if belongs_to(module, frozenset({"elasticscan.catalog"})):
                yield f"line {line}: imports {module}"
        for node in ast.walk(tree):  # Spark has a catalog of its own
            if isinstance(node, ast.Attribute) and ast.unparse(node).endswith("context.catalog"):
                yield f"line {node.lineno}: {ast.unparse(node)}"

    above = [source for source in sources() if folder_of(source) in ("connector", "cli", "ui")]
    examples = [str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.py")]
    assert offenders(asking, [*above, *examples]) == []


@walk
def test_other_folders_are_reached_through_their_front_page() -> None:
    assert offenders(lambda source, tree: behind_front_pages(folder_of(source), tree), in_folders()) == []


@walk
def test_a_pure_file_has_no_effects() -> None:
    assert offenders(lambda _, tree: effects(tree), pure_sources()) == []


def test_the_walk_notices_an_effect() -> None:
    for code in (
        "from os import path",
        "np.random.default_rng()",
        "at = datetime.now(UTC)",
        "open(name).read()",
    ):
        assert effects(ast.parse(code))


def entry_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("entry_under_test", ROOT / "pyspark_elasticscan.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_module_that_spark_looks_up_offers_the_source_and_keeps_quiet_when_it_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert entry_module().DefaultSource.name() == "elasticscan"
    monkeypatch.setitem(sys.modules, "elasticscan.connector", None)
    assert not hasattr(entry_module(), "DefaultSource")


def test_arrow_reads_footers_from_memory_of_its_own() -> None:
    """Its threads may release that last; a process that ends would abort if it were Python's."""
    paths = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    opened = [path for path in paths if "ipc.open_file(" in path.read_text(encoding="utf-8")]
    assert sorted(str(path.relative_to(ROOT)) for path in opened) == [
        "storage/batches/reader.py",  # kept for as long as the file
        "storage/sealed_file.py",
    ]
