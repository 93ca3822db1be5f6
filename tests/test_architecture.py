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
from fnmatch import fnmatch
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
    "sqlite3": "catalog",
    "psycopg": "catalog",
    "botocore": "storage",
    "sqlglot": "filters",
    "typer": "cli",
    "click": "cli",
    "rich": "cli",
    "difflib": "base",
}

# Besides conditions, whole queries are read where they are handed to Spark.
QUERY_READERS = "connector/sql/*.py"

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

FUNCTION_LINES = 70
MODULE_LINES = 600

Function = ast.FunctionDef | ast.AsyncFunctionDef


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


def functions_of(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


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


# Folders whose modules have nothing to do with each other, by intention.
TOOLBOXES = frozenset({"base"})


def in_folders() -> list[str]:
    return [source for source in sources() if "/" in source]


def rooms() -> list[str]:
    """Every folder that holds modules, also those within others."""
    return sorted({str(Path(source).parent) for source in in_folders()})


def modules_of(room: str) -> set[str]:
    return {path.stem for path in (ROOT / room).glob("*.py")} - {"__init__", "__main__"}


def parts_of(room: str) -> list[set[str]]:
    """The modules of a folder as groups that imports connect; a folder within it counts as a module."""
    inner = {str(Path(other).name) for other in rooms() if str(Path(other).parent) == room}
    links = {name: set[str]() for name in modules_of(room) | inner}
    prefix = f"elasticscan.{room.replace('/', '.')}."
    for source in in_folders():
        if not source.startswith(f"{room}/") or source.endswith("__init__.py"):
            continue
        name = Path(source).relative_to(room).parts[0].removesuffix(".py")
        for _, module in imports_of(tree_of(source)):
            other = module.removeprefix(prefix).split(".")[0]
            if module.startswith(prefix) and name in links and other in links:
                links[name].add(other)
                links[other].add(name)
    found: list[set[str]] = []
    while links:
        part, edge = set[str](), {min(links)}
        while edge:
            part |= edge
            edge = {other for name in edge for other in links.pop(name)} & links.keys()
        found.append(part)
    return found


def prefixed(room: str) -> Iterator[str]:
    """Modules that begin with their folder's name, or several with one word: they want a folder."""
    names = modules_of(room)
    for name in sorted(names):
        word = name.partition("_")[0]
        if "_" in name and (word == Path(room).name or sum(n.startswith(f"{word}_") for n in names) > 1):
            yield f"{room}/{name}.py"


def effects(tree: ast.AST) -> list[str]:
    found = [f"line {line}: imports {name}" for line, name in imports_of(tree) if belongs_to(name, EFFECTS)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in EFFECTFUL_ATTRIBUTES:
            found.append(f"line {node.lineno}: .{node.attr}")
        elif isinstance(node, ast.Name) and node.id in EFFECTFUL_BUILTINS:
            found.append(f"line {node.lineno}: {node.id}")
    return found


def test_every_folder_of_the_package_holds_code() -> None:
    empty = [folder for folder in CODE if not (ROOT / folder / "__init__.py").is_file()]
    assert not empty, f"folders without an __init__.py: {empty}"


def test_the_files_named_as_pure_or_not_pure_exist() -> None:
    assert [pattern for pattern in PURE if not list(ROOT.glob(pattern))] == []
    assert [name for name in NOT_PURE if not (ROOT / name).is_file()] == []
    assert {"reader/cursor.py", "filters/value_sets.py", "topology/values.py"} <= set(pure_sources())


def offenders(judge: Callable[[str, ast.Module], Iterable[object]], among: Iterable[str]) -> list[str]:
    """What a rule has to say, over all the sources that it is for."""
    return [f"{source}: {found}" for source in among for found in judge(source, tree_of(source))]


def test_every_list_of_folders_is_the_one_in_package_dir() -> None:
    layers = PROJECT["importlinter"]["contracts"][0]["layers"]
    assert sorted(name.strip() for layer in layers for name in layer.split("|")) == FOLDERS
    links = {path.name: path.resolve() for path in (ROOT / "typing" / "elasticscan").iterdir()}
    links.pop("__pycache__", None)
    door = {path.name: path.resolve() for path in (ROOT / DOOR).iterdir() if path.suffix != ".pyc"}
    door.pop("__pycache__", None)
    assert links == {folder: ROOT / folder for folder in FOLDERS} | door
    packages = {
        path.parent.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.py")
    }
    named = {"elasticscan." + ".".join(path.parts) for path in packages}
    assert named | {"elasticscan"} == set(PROJECT["setuptools"]["packages"])


@walk
def test_a_module_has_at_most_600_lines_and_a_function_70() -> None:
    def long(source: str, tree: ast.Module) -> Iterator[str]:
        lines = len((ROOT / source).read_text(encoding="utf-8").splitlines())
        if lines > MODULE_LINES:
            yield f"{lines} lines: split it"
        for function in functions_of(tree):
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            if length > FUNCTION_LINES:
                yield f"{function.name} has {length} lines"

    assert offenders(long, sources()) == []


def transactions(source: str, tree: ast.AST) -> Iterator[str]:
    """Where something above `store` opens the catalog itself."""
    for line, module in imports_of(tree):
        if belongs_to(module, frozenset({"elasticscan.catalog"})):
            yield f"line {line}: imports {module}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr != "catalog":
            continue
        if not ast.unparse(node.value).endswith("spark"):  # which has one of its own
            yield f"line {node.lineno}: .catalog"


@walk
def test_the_catalog_is_asked_by_the_store_alone() -> None:
    above = [source for source in sources() if folder_of(source) in ("connector", "cli", "ui")]
    examples = [str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.py")]
    assert offenders(transactions, [*above, *examples]) == []


@walk
def test_other_folders_are_reached_through_their_front_page() -> None:
    assert offenders(lambda source, tree: behind_front_pages(folder_of(source), tree), in_folders()) == []


@walk
def test_a_room_holds_one_thing() -> None:
    """The modules of a folder hang together, and none wants a folder of its own by its name."""
    assert [room for room in rooms() if len(parts_of(room)) > 1 and room not in TOOLBOXES] == []
    assert [found for room in rooms() for found in prefixed(room)] == []


@walk
def test_spark_sql_and_the_terminal_each_stay_in_their_folder() -> None:
    def foreign(source: str, tree: ast.Module) -> Iterator[str]:
        for line, module in imports_of(tree):
            package = module.split(".")[0]
            if package == "sqlglot" and fnmatch(source, QUERY_READERS):
                continue
            if OWNERS.get(package, folder_of(source)) != folder_of(source):
                yield f"line {line}: {module} belongs in {OWNERS[package]}/"

    assert offenders(foreign, sources()) == []


@walk
def test_a_pure_file_has_no_effects() -> None:
    assert offenders(lambda _, tree: effects(tree), pure_sources()) == []


# The module of all statements, the modules of each database, and the one of the topology history.
STATEMENT_OWNERS = {
    f"catalog/{name}.py" for name in ("tables", "sqlite", "sqlite_files", "postgres", "topology_history")
}
STATEMENT = re.compile(r"\s*(?:SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|CREATE INDEX|WITH) ")


def statements(tree: ast.AST) -> list[str]:
    """The statements of SQL among the texts of a module."""
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return sorted(text.split()[0] for text in texts if isinstance(text, str) and STATEMENT.match(text))


@walk
def test_statements_lie_where_all_of_them_are_seen() -> None:
    catalog = [s for s in sources() if folder_of(s) == "catalog" and s not in STATEMENT_OWNERS]
    assert offenders(lambda _, tree: statements(tree), catalog) == []


def test_the_walk_notices_a_statement() -> None:
    code = "sql.execute(f'DELETE FROM {table}')\nsay('DELETE it')\nsql.execute('SELECT 1')"
    assert statements(ast.parse(code)) == ["DELETE", "SELECT"]


# The folders whose pages have no `__all__`, so that each name stands there once.
(FRONT_PAGES,) = (
    tuple(name.removeprefix("elasticscan.").replace(".", "/") for name in each["module"])
    for each in PROJECT["mypy"]["overrides"]
    if each.get("implicit_reexport")
)

# What changes a state that a table of transitions has, and the functions that may call it: each enters it in
# its first phase, asks the table, or writes down that an owner is alive.
STATE_WRITERS = {
    "_put_move": {("store/moves/under_way.py", name) for name in ("enter_moves", "transition")},
    "IndexDefined": {("store/writing/indexing.py", name) for name in ("create_index", "transition_index")},
    "MoveSwitched": {("store/moves/mover.py", "_switch")},
}
# Moves are leases; these end by themselves, or are ended by the module that enters them.
LEASE_WRITERS = frozenset(
    f"store/{name}.py"
    for name in ("context/leases", "moves/owners", "moves/under_way", "reading/progress", "upkeep/steps")
)


def state_changes(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(function, change) of every place that changes a state which a table of transitions has."""
    for function in functions_of(tree):
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
                if called in STATE_WRITERS:
                    yield function.name, called


@walk
def test_a_front_page_offers_nothing_that_nobody_imports_from_it() -> None:
    """Ruff takes every import of these pages for an offer."""
    taken = dict[str, set[str]]()
    for path in ROOT.rglob("*.py"):
        if not path.relative_to(ROOT).parts[0].startswith((".", "typing")):
            for module, name in _imports_of(ast.parse(path.read_text(encoding="utf-8"))):
                taken.setdefault(module, set()).add(name)
    for page in FRONT_PAGES:
        assert "__all__" not in (ROOT / page / "__init__.py").read_text(encoding="utf-8")
        offered = {name for _, name in _imports_of(tree_of(f"{page}/__init__.py"))}
        assert offered - taken[f"elasticscan.{page.replace('/', '.')}"] - {"annotations"} == set(), page


def _imports_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) of each import of a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


@walk
def test_states_are_changed_through_their_tables_of_transitions_only() -> None:
    def around(source: str, tree: ast.Module) -> Iterator[str]:
        for function, change in state_changes(tree):
            if (source, function) not in STATE_WRITERS[change]:
                yield f"{function} calls {change}: let the table of transitions do it"

    assert offenders(around, sources()) == []
    written = {
        (change, source, name) for source in sources() for name, change in state_changes(tree_of(source))
    }
    assert written == {(change, *writer) for change, writers in STATE_WRITERS.items() for writer in writers}
    writers = {source for source in sources() if ".put_lease(" in ast.unparse(tree_of(source))}
    assert writers == LEASE_WRITERS | {"catalog/log.py"}  # which writes checkpoints under one


@pytest.mark.parametrize(
    "code",
    [
        "def _undo(tx, move):\n    tx._put_move(move)",
        "def adopt(self, move):\n    self._put_move(replace(move, owner='me'))",
        "def finish(self, index):\n    self.append(IndexDefined(replace(index, phase='ready')))",
    ],
)
def test_the_walk_notices_a_state_that_is_changed_around_its_table(code: str) -> None:
    ((function, change),) = state_changes(ast.parse(code))
    assert function not in {name for _, name in STATE_WRITERS[change]}


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
