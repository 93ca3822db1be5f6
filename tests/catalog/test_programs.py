"""Random programs over the log, and single schedules.

Set ELASTICSCAN_SEEDS to one seed, or to a range such as 0-5000, to run others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticscan.catalog import Catalog
from elasticscan.catalog.catalog import TAIL_RECORDS
from elasticscan.catalog.sqlite import SqliteHome
from tests.base.postgres import Server
from tests.base.severed_line import SeveredLine
from tests.catalog.logs import TIME, begin
from tests.catalog.programs import DEFINITIONS, GARBAGE, INDEXES, TAGS, LogPrograms
from tests.seeds import ranges_of_seeds


@pytest.mark.parametrize("seeds", ranges_of_seeds(15, 4, short=2), ids=str)
def test_a_random_program_gives_the_state_and_the_rows_of_its_model(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        LogPrograms(tmp_path).run(seed)


@pytest.mark.parametrize("seeds", ranges_of_seeds(3, 2, short=0), ids=str)
@pytest.mark.parametrize("style", [INDEXES, TAGS, GARBAGE, DEFINITIONS, None])
def test_a_random_program_of_a_style_or_of_more_steps_does_the_same(
    tmp_path: Path, style: str | None, seeds: range
) -> None:
    programs = LogPrograms(tmp_path, 200 if style is None else 75)
    for seed in seeds:
        programs.run(seed + (10_000 if style is None else 0), style)


@pytest.mark.parametrize("seeds", ranges_of_seeds(6, 2, short=1), ids=str)
def test_a_random_program_at_a_server_does_the_same(
    postgres: Server, line: SeveredLine, seeds: range
) -> None:
    for seed in seeds:
        with postgres.database() as name:
            address = f"host=127.0.0.1 port={line.port} user=elasticscan dbname={name}"
            LogPrograms(address, line=line).run(seed + 20_000)


def test_who_appends_the_last_of_a_hundred_records_writes_a_checkpoint(tmp_path: Path) -> None:
    home = SqliteHome(tmp_path / "log.db")
    begin(home)
    numbers = []
    for number in range(1, 3 * TAIL_RECORDS + 1):
        with (Catalog(home) if number % 3 else Catalog(SqliteHome(home.path))).writing() as tx:
            tx.append(TIME)
        ((newest,),) = home.execute("SELECT max(number) FROM checkpoint")
        numbers.append(newest)
    assert numbers == [n // TAIL_RECORDS * TAIL_RECORDS or None for n in range(1, 3 * TAIL_RECORDS + 1)]
