"""Measure how many mutants of the core are killed by the tests next to them.

    python -m venv /tmp/mutation && /tmp/mutation/bin/pip install cosmic-ray==8.7.0
    /tmp/mutation/bin/python scripts/mutation.py                    this tree, up to half an hour
    /tmp/mutation/bin/python scripts/mutation.py --tree ../other    another tree, by the list of this one

`scripts/mutants.json` is the list. A mutant is identified by its file, function and operator, the mutated
text, and its number among equal ones, so edits elsewhere do not affect it. If the text itself was edited, the
mutant is reported as gone, and `--draw` replaces it. `--keep` writes the results into the list, and later
runs are compared with them.

Mutants are written to a copy of the tree, where the tests run with `PYTHONPATH=typing`. Before the mutants of
a file, its tests must pass, and must fail when an error is added to the file: this proves that the copy is
loaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

LIST = Path(__file__).with_name("mutants.json")
STORE, WRITING = "tests/store", "tests/store/writing"
PROGRAMS = "tests/simulation/test_simulation.py::test_a_store_answers_as_the_oracle_whatever_is_done_to_it"
TARGET_GONE = "tests/store/test_shards_that_leave.py::test_a_mover_whose_target_has_gone_says_so"
STORY = "tests/transcripts/test_transcripts.py::test_a_store_answers_as_the_transcript_says"

# How many mutants of a folder or file are drawn, and the tests of its modules.
COUNTS = {
    "topology": 40,
    "protocol": 32,
    "reader": 28,
    "store/moves": 36,
    "store/writing": 60,
    "storage/merge.py": 22,
}
# A pattern `*.txt` means the transcripts of such names.
MOVES, WRITES = ("contract*.txt", "expand*.txt", "*move*.txt", "shard*.txt"), "write*.txt"
TESTS = {
    "topology": ["tests/topology"],
    "protocol/keys.py": ["tests/protocol"],
    "protocol/cursors.py": ["tests/reader/test_cursor.py", "tests/protocol", "tests/reader"],
    "protocol/requests.py": ["tests/storage/test_reading.py", "tests/optimizer"],
    "reader": ["tests/reader", "scan_*.txt", "keys*.txt", "rows*.txt"],
    "store/moves": [f"{STORE}/moves/test_mover.py", TARGET_GONE, *MOVES, PROGRAMS],
    "store/moves/balancing.py": [f"{STORE}/moves/test_balancing.py", "keeper*.txt"],
    "store/moves/elasticity.py": [f"{STORE}/moves/test_mover.py", *MOVES, "keeper*.txt", PROGRAMS],
    "store/moves/owners.py": [
        f"{STORE}/moves/test_mover.py",
        "tests/catalog/test_transactions.py",
        *MOVES,
        "keeper*.txt",
        PROGRAMS,
    ],
    "store/writing": [f"{WRITING}/test_publishing.py", f"{WRITING}/test_small_commits.py", WRITES],
    "store/writing/definitions.py": [
        f"{STORE}/test_column_changes.py",
        f"{STORE}/test_limits.py",
        f"{WRITING}/test_publishing.py",
        "columns*.txt",
        "compression.txt",
    ],
    "store/writing/indexing.py": [
        f"{STORE}/test_index_changes.py",
        f"{STORE}/test_limits.py",
        f"{WRITING}/test_small_commits.py",
        "*index*.txt",
        "write_by_tasks*.txt",
        PROGRAMS,
    ],
    "storage/merge.py": ["tests/storage/test_copying.py", "tests/storage/test_reading.py"],
    "store/writing/loading.py": [f"{WRITING}/test_loading.py"],
    **{
        f"store/writing/{name}.py": [f"{WRITING}/test_transactions.py", WRITES, "restore*.txt"]
        for name in ("merging", "preconditions", "transactions")
    },
}
PYTEST = "-m pytest -q -x -p no:cacheprovider -p pytest_timeout --timeout 90 -p unshrunk"
MARKS = ["-m", "not long and not spark"]
# Hypothesis need not search for the smallest failing example of a mutant.
UNSHRUNK = """
from hypothesis import Phase, settings
settings.register_profile("unshrunk", settings.default, phases=[Phase.explicit, Phase.generate])
settings.load_profile("unshrunk")
"""

_REPLACED = {
    "ComparisonOperator": "Eq_NotEq NotEq_Eq Lt_LtE Lt_Gt LtE_Lt Gt_GtE Gt_Lt GtE_Gt Is_IsNot IsNot_Is",
    "BinaryOperator": "Add_Sub Sub_Add Mul_Add FloorDiv_Mul Mod_Mul BitAnd_BitOr BitOr_BitAnd",
    "UnaryOperator": "Delete_Not Delete_USub Delete_Invert",
}
_SIMPLE = (
    "AddNot ReplaceTrueWithFalse ReplaceFalseWithTrue ReplaceAndWithOr ReplaceOrWithAnd NumberReplacer"
    " ReplaceBreakWithContinue ReplaceContinueWithBreak ZeroIterationForLoop"
)
OPERATORS = [f"core/Replace{name}_{pair}" for name, pairs in _REPLACED.items() for pair in pairs.split()]
OPERATORS += [f"core/{name}" for name in _SIMPLE.split(" ")]
# No mutants here: tests cannot detect types, and need not detect texts of errors and checks of invariants.
_LEFT_OUT = {"param", "parameters", "annassign", "raise_stmt", "assert_stmt", "decorator", "import_from"}
_LOADED = "this mutant is loaded"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one expression: the `number`-th of its text in its function."""

    file: str
    function: str
    operator: str
    text: str
    number: int


def mutants_of(tree: Path, file: str, operator: str) -> dict[Mutant, int]:
    """List all mutants of a file by one operator, each with its number in cosmic-ray."""
    found, numbers, occurrence = dict[Mutant, int](), Counter[tuple[str, str]](), 0
    for node in _nodes((tree / file).read_text(encoding="utf-8")):
        for _ in get_operator(operator)().mutation_positions(node):
            if (function := _function_of(node)) is not None:
                text = _text_of(node)
                found[Mutant(file, function, operator, text, numbers[function, text])] = occurrence
                numbers[function, text] += 1
            occurrence += 1
    return found


@lru_cache
def _nodes(source: str) -> list[Any]:
    return list(ast_nodes(get_ast(source)))


def _function_of(node: Any) -> str | None:
    """Return the function around a node; None outside of functions, and in code without mutants."""
    names = list[str]()
    while (parent := node.parent) is not None:
        if parent.type in _LEFT_OUT or node.type in _LEFT_OUT:
            return None
        if parent.type in ("funcdef", "classdef"):
            if node is not parent.children[-1]:
                return None  # the annotation of the result, or a base class
            if parent.type == "funcdef" or names:
                names.append(parent.name.value)
        node = parent
    return ".".join(reversed(names)) or None


def _text_of(node: Any) -> str:
    parts = [node] if hasattr(node, "children") or node.value in ("break", "continue") else [node.parent]
    if node.type in ("if_stmt", "while_stmt", "for_stmt"):
        parts = node.children[: 4 if node.type == "for_stmt" else 2]
    return " ".join(" ".join(part.get_code(include_prefix=False) for part in parts).split())[:160]


def draw(tree: Path, listed: set[Mutant]) -> list[Mutant]:
    """Draw mutants of a folder; each function gets a share that depends on its number of possible mutants.

    Mutants of `listed` that still exist come first, in their functions and in the result.
    """
    drawn = []
    for folder, count in COUNTS.items():
        of_function = defaultdict[tuple[str, str], list[Mutant]](list)
        for path in [tree / folder] if folder.endswith(".py") else sorted((tree / folder).glob("*.py")):
            file = path.relative_to(tree).as_posix()
            for operator in OPERATORS:
                for mutant in mutants_of(tree, file, operator):
                    skipped = operator.endswith("NumberReplacer") and int(_hash(mutant), 16) % 2
                    if mutant in listed or (not skipped and mutant.text != "strict=True"):
                        of_function[file, mutant.function].append(mutant)
        turns = [
            (mutant not in listed, (turn + 0.5) / len(mutants), _hash(mutant), mutant)
            for mutants in of_function.values()
            for turn, mutant in enumerate(sorted(mutants, key=lambda one: (one not in listed, _hash(one))))
        ]
        drawn += sorted((one for *_, one in sorted(turns)[:count]), key=lambda one: (one.file, one.function))
    return drawn


def _hash(mutant: Mutant) -> str:
    return hashlib.sha256(repr(mutant).encode()).hexdigest()


def find(tree: Path, wanted: Mutant) -> str | None:
    """Return the mutated source of a file; None if the mutant is gone."""
    file = tree / wanted.file
    at = mutants_of(tree, wanted.file, wanted.operator).get(wanted) if file.exists() else None
    if at is None:
        return None
    mutated: str = mutate_code(file.read_text(encoding="utf-8"), get_operator(wanted.operator)(), at)
    return mutated


class Runner:
    """A copy of a tree in which tests run, one process at a time."""

    def __init__(self, tree: Path, copy: Path) -> None:
        ignored = shutil.ignore_patterns(".git", ".venv*", ".peers", ".site", ".hypothesis", "*_cache")
        shutil.copytree(tree, copy, symlinks=True, ignore=ignored)
        (copy / "unshrunk.py").write_text(UNSHRUNK, encoding="utf-8")
        python = str(tree / ".venv/bin/python")
        self._copy, self._command = copy, [python, *PYTEST.split(), *MARKS]
        # `CI` makes Hypothesis draw the same examples in each run; plugins take half of a second to load.
        fixed = {"PYTHONPATH": str(copy / "typing"), "CI": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        self._environment = {**os.environ, **fixed}
        self._seconds = dict[str, float]()  # that tests take without a mutant
        # Bytecode is checked by a hash of its source: a mutant may have the original's time and length.
        bytecode = [python, "-m", "compileall", "-q", "-f", "--invalidation-mode", "checked-hash", str(copy)]
        subprocess.run(bytecode, check=False)

    def prove(self, file: str) -> None:
        """Exit unless the tests of a file pass without a mutant, and fail with an added error."""
        tests, began = self._tests_of(file), time.monotonic()
        if " ".join(tests) not in self._seconds:
            result, output = self._run(tests, 600)
            self._seconds[" ".join(tests)] = time.monotonic() - began
            if result != "survived":
                raise SystemExit(f"tests fail without a mutant: {tests}\n{output}")
        source = (self._copy / file).read_text(encoding="utf-8")
        result, output = self._run_mutated(file, f"{source}\nraise RuntimeError({_LOADED!r})\n")
        if result != "killed" or _LOADED not in output:
            raise SystemExit(f"mutants of {file} are not loaded by {tests}: {result}\n{output}")

    def kill(self, mutant: Mutant) -> str:
        """Run the tests on a mutant; return "killed", "timeout", "survived" or "gone"."""
        mutated = find(self._copy, mutant)
        return "gone" if mutated is None else self._run_mutated(mutant.file, mutated)[0]

    def _tests_of(self, file: str) -> list[str]:
        nearest = max((name for name in TESTS if f"{file}/".startswith(f"{name}/")), key=len)
        return [test for name in TESTS[nearest] for test in self._named(name)]

    def _named(self, tests: str) -> list[str]:
        if tests.endswith(".txt"):
            stories = (self._copy / "tests/transcripts").glob(tests)
            return [f"{STORY}[{story.stem}]" for story in sorted(stories)]
        return [tests] if (self._copy / tests.partition("::")[0]).exists() else []

    def _run_mutated(self, file: str, source: str) -> tuple[str, str]:
        path, tests = self._copy / file, self._tests_of(file)
        original = path.read_bytes()
        path.write_text(source, encoding="utf-8")
        try:
            return self._run(tests, 30 + 4 * self._seconds[" ".join(tests)])
        finally:
            path.write_bytes(original)

    def _run(self, tests: list[str], seconds: float) -> tuple[str, str]:
        command = [*self._command, *tests]
        process = subprocess.Popen(
            command,
            cwd=self._copy,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return "timeout", ""
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if "from pytest-timeout" in output:
            return "timeout", output[-3000:]
        return "killed" if process.returncode else "survived", output[-3000:]


def report(mutants: list[dict[str, Any]], results: list[str]) -> None:
    """Print the killed mutants by folder, and compare the rates of mutants that have an earlier result."""
    print(f"{'':17} killed timeout survived gone    rate | of those kept: now, then")  # noqa: T201
    for folder in [*COUNTS, ""]:
        pairs = zip(mutants, results, strict=True)
        ours = [(now, one.get("kept")) for one, now in pairs if one["file"].startswith(folder)]
        both = [(now, then) for now, then in ours if now != "gone" and then]
        counts = Counter(now for now, _ in ours)
        numbers = f"{counts['killed']:6} {counts['timeout']:7} {counts['survived']:8} {counts['gone']:4}"
        rates = [_rate([pair[at] for pair in some]) for some, at in ((ours, 0), (both, 0), (both, 1))]
        print(f"{folder or 'all':17} {numbers} {rates[0]:>7} | {len(both)}: {rates[1]}, {rates[2]}")  # noqa: T201


def _rate(results: list[Any]) -> str:
    counts = Counter(results)
    dead, there = counts["killed"] + counts["timeout"], len(results) - counts["gone"]
    return f"{100 * dead / there:.1f} %" if there else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how many mutants the nearest tests kill.")
    parser.add_argument("--tree", type=Path, default=Path(), help="the tree to mutate a copy of")
    parser.add_argument("--only", default="", help="only mutants of files whose path begins so")
    parser.add_argument("--keep", action="store_true", help="write the results into the list")
    parser.add_argument("--draw", action="store_true", help="fill up the list, and run nothing")
    options = parser.parse_args()
    tree = options.tree.resolve()
    everything: list[dict[str, Any]] = json.loads(LIST.read_text(encoding="utf-8"))
    if options.draw:
        listed = {_mutant_of(entry): entry for entry in everything}
        everything = [listed.get(one, asdict(one)) for one in draw(tree, set(listed))]
    mutants = [one for one in everything if one["file"].startswith(options.only)]
    results, proven = list[str](), set[str]()
    os.nice(19)
    with tempfile.TemporaryDirectory() as directory:
        runner = Runner(tree, Path(directory) / "tree")
        for entry in [] if options.draw else mutants:
            file, began = entry["file"], time.monotonic()
            if file not in proven and (tree / file).exists():
                runner.prove(file)
                proven.add(file)
            results.append(runner.kill(_mutant_of(entry)))
            what = f"{file} {entry['function']} {entry['operator'][5:]}: {entry['text']}"
            print(f"{results[-1]:8} {time.monotonic() - began:5.1f} s  {what[:150]}", flush=True)  # noqa: T201
            if options.keep:
                entry["kept"] = results[-1]
                _write(everything)
    if options.draw:
        _write(everything)
    else:
        report(mutants, results)


def _mutant_of(entry: dict[str, Any]) -> Mutant:
    return Mutant(**{name: entry[name] for name in Mutant.__slots__})


def _write(everything: list[dict[str, Any]]) -> None:
    LIST.write_text("[\n" + ",\n".join(map(json.dumps, everything)) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
