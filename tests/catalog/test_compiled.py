"""Statements are compiled once, and keep nothing alive that has to end."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy.sql.compiler import Compiled

from elasticscan.catalog.engine import make_engine
from elasticscan.store import Store


def use_store(place: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    with Store.create(place, shards=["a", "b"], slots=64) as store:
        table = store.create_table("t", schema, primary_key=["id"])
        table.upsert(pa.table([[1, 2, 3], ["a", "b", "c"]], schema=schema))
        tablet = next(tablet for tablet in store.topology.placement.tablets if tablet.shard == 1)
        store.move(tablet.id, "b")
    with Store.open(place) as store:
        assert store.table("t").scan(filter="id > 1").to_table()["v"].to_pylist() == ["b", "c"]


def test_a_second_store_compiles_nothing_that_was_compiled_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    init = Compiled.__init__

    def note(self: Compiled, dialect: object, statement: object, *args: object, **named: object) -> None:
        compiled.append(type(statement).__name__)
        init(self, dialect, statement, *args, **named)  # type: ignore[arg-type]

    use_store(tmp_path / "one")
    monkeypatch.setattr(Compiled, "__init__", note)
    use_store(tmp_path / "two")
    assert compiled == []


@pytest.mark.parametrize("read_only", [False, True])
def test_no_engine_outlives_who_had_it_by_what_it_compiled(tmp_path: Path, read_only: bool) -> None:
    place = tmp_path / "store"
    use_store(place)
    engine = make_engine(place / "catalog.db", read_only)
    with engine.connect() as sql:
        assert sql.exec_driver_sql("SELECT 1").scalar() == 1
    engine.dispose()
    left = weakref.ref(engine)
    del engine, sql
    gc.collect()
    assert left() is None
