"""A share of the random programs with their catalogs at a database server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticscan.store import Store
from tests.base.manual_clock import ManualClock
from tests.base.postgres import Server
from tests.seeds import ranges_of_seeds
from tests.store.random_programs import START, Programs
from tests.store.random_tables import CHECKING, TABLES


class ServerPrograms(Programs):
    """Programs whose stores are in one database, each in the place of the one before."""

    uri = ""

    def make(self, place: Path, retention: int) -> str:
        roots = {name: str(place / name) for name in ("s1", "s2", "s3")}
        with Store.create(
            self.uri, roots, tablets=8, slots=64, retention_seconds=retention, clock=ManualClock(START)
        ) as store:
            for name, (schema, primary_key, shard_key) in TABLES.items():
                store.create_table(name, schema, primary_key, shard_key)
        return self.uri


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPrograms]:
    with ServerPrograms(tmp_path_factory.mktemp("programs")) as programs:
        yield programs


@pytest.mark.parametrize("style", [None, CHECKING])
@pytest.mark.parametrize("seeds", ranges_of_seeds(2, 1, short=0), ids=str)
def test_programs_are_exact_with_a_catalog_at_a_server(
    programs: ServerPrograms, postgres: Server, style: str | None, seeds: range
) -> None:
    for seed in seeds:
        with postgres.database() as database:
            programs.uri = postgres.url(database)
            programs.run(seed, style)
