"""Questions that go straight to the driver of SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import bindparam, select

from elasticscan.base.errors import StoreDamaged
from elasticscan.catalog.engine import make_engine, reading
from elasticscan.catalog.near import NearTransaction
from elasticscan.catalog.pipeline import kept
from elasticscan.catalog.sealed import RowQuery, SealedRows
from elasticscan.catalog.tables import shards
from tests.base.manual_clock import ManualClock
from tests.catalog.test_transactions import make

_NAMED = kept(select(shards.c.id, shards.c.name).where(shards.c.name == bindparam("name")))
_SOME = kept(select(shards.c.name).where(shards.c.id.in_(bindparam("some", expanding=True))).limit(1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "catalog.db"
    make(path, ManualClock(1_000.0)).close()
    return path


def test_answers_are_those_that_sqlalchemy_gives(path: Path) -> None:
    engine = make_engine(path)
    with reading(engine) as near, engine.connect() as far:
        assert isinstance(near, NearTransaction)
        names = [row.name for row in far.execute(select(shards.c.name))]
        for statement, values in (
            *((_NAMED, {"name": name}) for name in (*names, "nobody", "it's", None)),
            (_SOME, {"some": [1, 2]}),
            (_SOME, {"some": []}),
        ):
            answer = near.execute(statement, values)
            assert [tuple(row) for row in answer] == [tuple(row) for row in far.execute(statement, values)]
        assert near.execute(_NAMED, {"name": names[0]}).rows[0].name == names[0]
    engine.dispose()


def test_rows_that_somebody_altered_are_damage_on_this_way_too(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE shards SET draining = 1 - draining WHERE id = 1")
    engine = make_engine(path)
    with reading(engine) as near, pytest.raises(StoreDamaged):
        SealedRows(near).ask(RowQuery(shards))
    engine.dispose()


def test_what_the_driver_raises_is_reported_as_any_error_of_a_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("ALTER TABLE shards RENAME TO others")
    engine = make_engine(path)
    with pytest.raises(StoreDamaged, match="no such table"), reading(engine) as near:
        near.execute(_NAMED, {"name": "a"})
    engine.dispose()
