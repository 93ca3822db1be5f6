"""Blocks of shell commands in the README and in docs/ run as they stand, in a scratch directory.

One that cannot has a remark above it, `<!-- not run: why -->`, or `<!-- run by tests/… -->`.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import elasticscan
from examples.demo import KEY, flights
from tests.base.s3 import KEY as S3_KEY
from tests.base.s3 import SECRET, S3Server
from tests.pages import ROOT, fenced, stripped

_COMMAND = re.compile(
    r"(\$ )?(\w+=\S+ )*(elasticscan|pip|make|python3?|install|mc|echo|export|spark-\w+|pyspark|docker|\.) "
)
# Places of a machine, which are in the scratch directory here.
_PLACES = re.compile(r"(?<![\w/.])/(?=(?:data|backups|disk1|srv)/)")
_VARIES = re.compile(r"^seconds .*$|\d+\.\d+ s$", re.MULTILINE)


class Commands(NamedTuple):
    """Commands of a page, the remark above them, and what the page says that they print."""

    page: str
    remark: str
    commands: str
    output: str

    def __str__(self) -> str:
        return f"{self.page}: {self.commands.splitlines()[0]}"


def commands_of(page: str, text: str) -> list[Commands]:
    """The blocks of a page that begin with a command; where `$` stands before it, other lines are output."""
    found = []
    for block in fenced(text):
        if block.language not in ("", "sh") or not _COMMAND.match(block.code):
            continue
        lines = block.code.splitlines()
        typed = [line for line in lines if line.startswith("$ ")] or lines
        output = "\n".join(line for line in lines if line not in typed)
        commands = "".join(f"{line.removeprefix('$ ')}\n" for line in typed)
        found.append(Commands(page, block.remark, commands, output))
    return found


PAGES = [ROOT / "README.md", ROOT / "spark-conf" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    block
    for path in PAGES
    for block in commands_of(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
]
RUN = [block for block in BLOCKS if not block.remark]


def make_trips(place: Path) -> None:
    """A store of trips, with what the commands of several pages ask of it."""
    with elasticscan.create(place, shards=["s1", "s2"], tablets=8) as store:
        rows = {"id": range(100), "city": ["Oslo", "Lima"] * 50, "km": [i / 10 for i in range(100)]}
        table = store.create_table("trips", rows | {"tags": ["a"] * 100}, primary_key="id")
        table.tag("yesterday")


def make_bank(here: Path) -> None:
    with elasticscan.create(here / "bank.store", shards=["s1"]) as store:
        rows = {"id": range(10), "owner": ["Ada"] * 10, "balance": [5] * 10}
        accounts = store.create_table("accounts", rows, primary_key="id")
        while accounts.history()[-1].number < 17:
            accounts.update({"balance": 5}, where="id = 1")
    for name, first in (("new", 20), ("changed", 2), ("gone", 3)):
        rows = pa.table({"id": [first], "owner": ["Bob"], "balance": [1]})
        pyarrow.csv.write_csv(rows.select(["id"]) if name == "gone" else rows, here / f"{name}.csv")


def make_flights(here: Path) -> None:
    rows = flights()
    with elasticscan.create(here / "flights.store", shards=["s1", "s2"]) as store:
        store.create_table("flights", rows.schema, KEY).upsert(rows)


def make_files(here: Path) -> None:
    make_trips(here / "trips.store")
    (here / "in").mkdir()
    rows = {"id": [100], "city": ["Pune"], "km": [2.0], "tags": ["b"]}
    pq.write_table(pa.table(rows), here / "in" / "more.parquet")


# What stands in the scratch directory before a page's first block.
PREPARED: dict[str, Callable[[Path], object]] = {
    "docs/command-line.md": lambda here: make_trips(here / "trips.store"),
    "docs/indexes.md": make_flights,
    "docs/moving-data.md": make_files,
    "docs/object-storage.md": lambda here: (here / "srv").mkdir(),
    "docs/schema-changes.md": lambda here: make_trips(here / "tour.store"),
    "docs/security.md": lambda here: (here / "data").mkdir(),
    "docs/streaming.md": lambda here: make_trips(here / "data" / "tour.store"),
    "docs/upkeep.md": lambda here: [make_trips(here / name) for name in ("STORE", "tour.store")],
    "docs/writes.md": make_bank,
}


def run(commands: str, here: Path) -> str:
    """Run commands as bash does, each of which has to end well; what they print."""
    commands = _PLACES.sub(f"{here}/", commands).replace("-g analysts", '-g "$(id -gn)"')
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        check=False,
        cwd=here,
        env=os.environ | {"PATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, f"{commands}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def test_each_block_of_commands_is_run_or_says_why_not() -> None:
    assert len(BLOCKS) > 25
    wrong = [str(block) for block in RUN if block.page not in PREPARED]
    wrong += [str(block) for block in BLOCKS if block.remark and not _says_why(block.remark)]
    assert wrong == []


def _says_why(remark: str) -> bool:
    kind, _, why = remark.partition(" ")
    if kind == "run":
        return (ROOT / why.removeprefix("by ")).is_file()
    return remark.startswith("not run: ") and len(remark) > len("not run: ") + 10


@pytest.mark.long
@pytest.mark.parametrize("page", sorted({block.page for block in RUN}))
def test_the_commands_of_a_page_run(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    PREPARED[page](tmp_path)
    for block in [block for block in RUN if block.page == page]:
        commands = block.commands
        if page == "docs/object-storage.md":
            server: S3Server = request.getfixturevalue("s3_server")
            bucket = request.getfixturevalue("bucket")
            for there, here in (
                ("//flights/", f"//{bucket}/"),
                ("http://minio:9000", server.endpoint),
                ("ACCESS_KEY_ID=…", f"ACCESS_KEY_ID={S3_KEY}"),
                ("SECRET_ACCESS_KEY=…", f"SECRET_ACCESS_KEY={SECRET}"),
            ):
                commands = commands.replace(there, here)
        printed = run(commands, tmp_path)
        if block.output and page == "docs/indexes.md":
            assert stripped(_VARIES.sub("", printed)) == stripped(_VARIES.sub("", block.output))
    if page == "docs/security.md":
        place = tmp_path / "data" / "flights.store"
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (place, place / "catalog.db")]
        assert modes == [0o2750, 0o640], "what the page says of them"
