"""Random damage programs in child processes, and every bit of a file flipped: right rows or a typed error.

ELASTICSCAN_DAMAGE_SEEDS is one seed or a range such as 0-999: other programs. ELASTICSCAN_FLIPS is how
many bits of each file are flipped (100); `all` for every one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from elasticscan.base.errors import ElasticScanError, FragmentDamaged
from elasticscan.store import Store
from tests.seeds import ranges_of_seeds
from tests.store.damage_model import NAMES, Row, Template, files_below, opened, rows_of
from tests.store.damage_soup import DamageKitchen

ROOT = Path(__file__).resolve().parents[2]
FLIPS = os.environ.get("ELASTICSCAN_FLIPS", "100")


def run_in_child(seeds: range, directory: Path) -> list[str]:
    """What failed; a child that died or did not end says so with the seed that it was at."""
    failed, left = [], list(seeds)
    while left:
        lines, died = _child(left, directory)
        failed += [line["failed"] for line in lines if "failed" in line]
        ended = {line["seed"] for line in lines if "seed" in line}
        begun = [line["begun"] for line in lines if "begun" in line]
        lost = [seed for seed in begun if seed not in ended]
        if died is None and not lost:
            break
        if not begun:
            return [*failed, f"no program began: {died}"]
        failed += [f"seed {seed}: the process ended: {died}" for seed in lost]
        left = [seed for seed in left if seed not in begun]
        shutil.rmtree(directory)
        directory.mkdir()
    return failed


def _child(seeds: list[int], directory: Path) -> tuple[list[dict[str, Any]], str | None]:
    command = [sys.executable, "-m", "tests.store.damage_soup", str(directory), *map(str, seeds)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=290)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.endswith("}")]
    if done.returncode == 0:
        return lines, None
    how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit {done.returncode}"
    return lines, f"{how}\n{done.stderr}"


@pytest.mark.parametrize("seeds", ranges_of_seeds(6, 8, 1, "ELASTICSCAN_DAMAGE_SEEDS"), ids=str)
def test_a_damaged_store_answers_right_or_with_a_typed_error(seeds: range, tmp_path: Path) -> None:
    assert run_in_child(seeds, tmp_path) == []


def test_a_child_that_dies_is_told_with_its_seed_and_the_others_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [
        ([{"begun": 3}, {"seed": 3, "kind": "x"}, {"begun": 4}], "SIGSEGV\n…"),
        ([{"begun": 5}, {"seed": 5, "failed": "wrong rows"}], None),
    ]
    asked = []

    def child(seeds: list[int], directory: Path) -> tuple[list[dict[str, Any]], str | None]:
        asked.append(seeds)
        return said[len(asked) - 1]

    monkeypatch.setattr(sys.modules[__name__], "_child", child)
    assert run_in_child(range(3, 6), tmp_path) == ["seed 4: the process ended: SIGSEGV\n…", "wrong rows"]
    assert asked == [[3, 4, 5], [5]]


# ------------------------------------------------------------------------------- single flipped bits


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return DamageKitchen(tmp_path_factory.mktemp("flips")).template(0)


def bits_to_flip(size: int, rng: random.Random) -> list[int]:
    """Evenly over the whole file, so that every part of it has its share."""
    if FLIPS == "all":
        return list(range(8 * size))
    step = 8 * size / int(FLIPS)
    return [int((at + rng.random()) * step) for at in range(int(FLIPS))]


@pytest.mark.parametrize(
    ("table", "index", "large"),
    [
        ("small", None, False),
        pytest.param("small", "by_v", False, marks=pytest.mark.long),
        pytest.param("small", "by_b", False, marks=pytest.mark.long),
        pytest.param("big", None, True, marks=pytest.mark.long),
        pytest.param("big", "by_k", True, marks=pytest.mark.long),
    ],
)
def test_no_flipped_bit_gives_a_wrong_row(
    template: Template, tmp_path: Path, table: str, index: str | None, large: bool
) -> None:
    """One file, one bit at a time, read by a scan that needs every row or entry of it."""
    place = tmp_path / "store"
    shutil.copytree(template.place, place)
    path = file_of(place, table, index, large)
    content = path.read_bytes()
    assert (len(content) > 128 << 10) == large
    rng = random.Random(len(content))
    outcomes: Counter[str] = Counter()
    with opened(place) as store:
        for bit in bits_to_flip(len(content), rng):
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            forget_files(store)
            outcomes[look(store, template, table, index)] += 1
        path.write_bytes(content)
        forget_files(store)
        assert look(store, template, table, index) == "right"
    # Every bit of a file is proven before a row of it is believed.
    assert set(outcomes) == {"damaged"}, outcomes


def file_of(place: Path, table: str, index: str | None, large: bool) -> Path:
    """The largest or the smallest file of a table's fragments, or of an index's runs."""
    with opened(place) as store, store.context.catalog.reading() as tx:
        info = tx.table(table)
        fragments = [fragment.path for fragment in tx.fragments(table=info.id)]
        wanted = {known.id for known in tx.indexes(info.id) if known.name == index}
        runs = [run.path for run in tx.runs(info.id) if run.index in wanted]
    paths = {key[1]: path for key, path in files_below(place).items()}
    found = [paths[path] for path in (fragments if index is None else runs)]
    return (max if large else min)(found, key=lambda path: path.stat().st_size)


def forget_files(store: Store) -> None:
    """As in a new process, which would take several times as long."""
    context = store.context
    context.readers = type(context.readers)(context.disk_of)


def look(store: Store, template: Template, table: str, index: str | None) -> str:
    """What a scan gives: "right", "wrong", "damaged" or another error's code."""
    order = index.removeprefix("by_") if index in ("by_v", "by_k") else None
    names = list(NAMES[table])
    rows: list[Row] = []
    try:
        if index == "by_b":
            keys = sorted({row[1] for row in template.model.states[table][-1][1].values()})
            for key in keys:
                rows += rows_of(store.table(table).scan(names, f"b = '{key}'", index=index).to_table())
        else:
            rows = rows_of(
                store.table(table).scan(names, None, index=index or "none", order_by=order).to_table()
            )
    except FragmentDamaged:
        return "damaged"
    except ElasticScanError as error:
        return error.code
    wanted = Counter(template.model.states[table][-1][1].values())
    return "right" if Counter(rows) == wanted else "wrong"
