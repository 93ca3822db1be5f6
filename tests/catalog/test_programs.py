"""Random programs over the log, and what single schedules show of it.

Set ELASTICSCAN_SEEDS to one seed, or to a range such as 0-5000, to run others.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from elasticscan.catalog import Catalog
from elasticscan.catalog.catalog import TAIL_RECORDS
from elasticscan.catalog.files import FileSet
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.metadata import Fragment, StagedFragment
from elasticscan.topology import SlotSet
from tests.base.postgres import Server
from tests.base.severed_line import SeveredLine
from tests.catalog.logs import append, begin
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


@pytest.mark.parametrize("seed", range(10))
def test_a_set_of_files_is_what_a_dict_of_them_is_however_often_it_is_merged(seed: int) -> None:
    draw, files, model = Random(seed), FileSet.empty(Fragment), dict[int, Fragment]()
    for step in range(120):
        new = [
            StagedFragment(draw.randrange(5), "p", SlotSet.span(0, 9), 1, 2, True, 0, True, 3, 4).entered(
                100 * step + ordinal, 7, 1
            )
            for ordinal in range(draw.randrange(9))
        ]
        files = files.with_added(new)
        model |= {fragment.id: fragment for fragment in new}
        gone = draw.sample(sorted(model), draw.randint(0, min(6, len(model))))
        files = files.with_removed(gone)
        model = {number: fragment for number, fragment in model.items() if number not in gone}
        served = {
            number: SlotSet.span(0, draw.randint(1, 8))
            for number in draw.sample(sorted(model), len(model) // 9)
        }
        changed = {number: replace(model[number], slots=slots) for number, slots in served.items()}
        files = files.with_added(changed.values())
        model |= changed
        assert files.merged().num_rows == len(model)
        if draw.random() < 0.5:  # what was made of the table is kept, or never asked for
            assert list(files.by_id().items()) == sorted(model.items())
        assert list(FileSet(Fragment, files.merged()).by_id().items()) == sorted(model.items())
        there = {fragment.id: fragment for fragment in files.where("shard", {2, 3})}
        assert there == {number: fragment for number, fragment in model.items() if fragment.shard in (2, 3)}


def test_a_tail_is_checkpointed_whenever_it_is_long_by_old_and_new_processes(tmp_path: Path) -> None:
    log = begin(SqliteHome(tmp_path / "log.db"))

    def lengthen() -> None:
        for _ in range(TAIL_RECORDS):
            append(log)

    for _ in range(3):
        assert not log.checkpoint_if_long()
        lengthen()
        assert log.checkpoint_if_long()
    for _ in range(3):  # which fold a tail that is long, and live shortly
        lengthen()
        new = Catalog(log.home)
        new.follow()
        assert new.checkpoint_if_long()
    assert not log.checkpoint_if_long(), "another process has written one"
