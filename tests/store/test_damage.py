"""Random damage programs in child processes, and every bit of a file flipped: right rows or a typed error.

ELASTICSCAN_DAMAGE_SEEDS is one seed or a range such as 0-999: other programs. ELASTICSCAN_FLIPS is how
many bits of each file are flipped (100); `all` for every one.
"""

from __future__ import annotations

import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.errors import ElasticScanError, FragmentDamaged
from elasticscan.store import Store
from tests.seeds import ranges_of_seeds
from tests.store.copies_of_stores import copied_store
from tests.store.damage_model import NAMES, Row, Template, files_below, opened, rows_of
from tests.store.damage_programs import DamagePrograms

ROWS_IN_FILES = True

ROOT = Path(__file__).resolve().parents[2]
FLIPS = os.environ.get("ELASTICSCAN_FLIPS", "100")


def run_in_child(seeds: range, directory: Path) -> list[str]:
    """What failed; a child that died or did not end says so with the seed that it was at."""
    command = [sys.executable, "-m", "tests.store.damage_programs", str(directory), *map(str, seeds)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=290)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.endswith("}")]
    failed = [line["failed"] for line in lines if "failed" in line]
    if done.returncode:
        begun = [line["begun"] for line in lines if "begun" in line]
        failed.append(f"seed {begun[-1:]}: the process ended: {done.returncode}\n{done.stderr}")
    return failed


@pytest.mark.parametrize("seeds", ranges_of_seeds(22, 1, 1, "ELASTICSCAN_DAMAGE_SEEDS"), ids=str)
def test_a_damaged_store_answers_right_or_with_a_typed_error(seeds: range, tmp_path: Path) -> None:
    assert run_in_child(seeds, tmp_path) == []


# ------------------------------------------------------------------------------- single flipped bits


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return DamagePrograms(tmp_path_factory.mktemp("flips")).template(0)


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
    copied_store(template.place, place)
    path = file_of(place, table, index, large)
    content = path.read_bytes()
    assert (len(content) > 128 << 10) == large
    rng = random.Random(len(content))
    outcomes: Counter[str] = Counter()
    with opened(place) as store:
        for bit in bits_to_flip(len(content), rng):
            flip(path, bit)
            forget_files(store)
            outcomes[look(store, template, table, index)] += 1
            flip(path, bit)
        forget_files(store)
        assert look(store, template, table, index) == "right"
    # Every bit of a file is proven before a row of it is believed.
    assert set(outcomes) == {"damaged"}, outcomes


def flip(path: Path, bit: int) -> None:
    """Turn one bit of a file over, in its place."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def file_of(place: Path, table: str, index: str | None, large: bool) -> Path:
    """The largest or the smallest file of a table's fragments, or of an index's runs."""
    with opened(place) as store, store.context.catalog.reading() as tx:
        info = tx.state.table_named(table)
        fragments = [fragment.path for fragment in tx.state.fragments(table=info.id)]
        wanted = {known.id for known in tx.state.indexes(info.id) if known.name == index}
        runs = [run.path for run in tx.state.runs(info.id) if run.index in wanted]
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


def test_definitions_of_the_catalog_s_tables_are_checked(tmp_path: Path) -> None:
    """No row is wrong: a letter of a name is, in a text that SQLite reads when it opens the file."""
    with Store.create(tmp_path / "store", ["s1"], tablets=1, slots=16, upkeep="off") as store:
        store.create_table("t", pa.schema({"id": pa.int64()}), ["id"]).upsert(pa.table({"id": range(9)}))
        file = Path(store.uri) / "catalog.db"
    with closing(sqlite3.connect(file)) as sql:
        texts = dict(sql.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    flips = [(name, word) for name, text in texts.items() for word in re.findall(r"\w+", text)[-2:]]
    assert len(flips) > 10
    whole = file.read_bytes()
    for name, word in flips:
        text = texts[name].encode()
        assert whole.count(text) == 1
        _put(file, whole.replace(text, text.replace(word.encode(), word[:-1].encode() + b"q")))
        with suppress(ElasticScanError), Store.open(store.uri) as damaged:
            assert damaged.verify(), (name, word)
    _put(file, whole)
    with Store.open(store.uri) as mended:
        assert mended.verify() == []


def _put(file: Path, content: bytes) -> None:
    for there in file.parent.glob(f"{file.name}*"):
        there.unlink()
    file.write_bytes(content)
