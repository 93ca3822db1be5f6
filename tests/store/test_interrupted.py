"""Operations of tables whose catalog is interrupted: each begins again what was lost, and does it once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasticscan.catalog import Catalog, Interrupted
from elasticscan.store import Store, Table

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def rows(ids: range, v: int = 0) -> pa.Table:
    return pa.table({"id": ids, "v": [v] * len(ids)}, schema=SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "s", ["s1", "s2"], tablets=4, slots=16, retention_seconds=0) as made:
        made.create_table("t", SCHEMA, ["id"]).upsert(rows(range(20)))
        made.table("t").tag("first")
        made.table("t").upsert(rows(range(10), 1))
        yield made


# Each of them leaves the store as it was, or as it would after one that was done before.
WORKS: dict[str, Callable[[Store, Table], Any]] = {
    "unchanged": lambda _, t: t.upsert(rows(range(2), 2), if_unchanged_since=t.history()[-1].number).rows,
    "insert": lambda _, t: (t.insert(rows(range(50, 52))).rows, t.delete([50, 51]).rows),
    "update": lambda _, t: t.update({"v": "v + 1"}, "id < 3").rows,
    "merge": lambda _, t: t.merge(rows(range(3)), when_not_matched="ignore").rows,
    "overwrite": lambda _, t: t.overwrite(rows(range(3), 2), where="id < 3").rows,
    "delete": lambda _, t: t.delete(where="id = 999").rows,
    "restore": lambda _, t: t.restore("first") > 0,
    "scan": lambda _, t: t.scan(filter="v = 0", page_rows=3).count(),
    "changes": lambda _, t: t.changes("first", page_rows=3).count() > 0,
    "get": lambda _, t: t.get(rows(range(5)).select(["id"]).to_reader(), snapshot="first").num_rows,
    "aggregate": lambda _, t: t.aggregate("sum(id)").to_pylist(),
    "index": lambda _, t: (t.create_index("by_v", ["v"]).ready, t.drop_index("by_v")),
    "columns": lambda _, t: t.add_columns({"more": "int8"}).names,
    "compact": lambda _, t: t.compact() >= 0,
    "move": lambda s, _: s.move(1, "s2" if s.status()["tablets"][0]["shard"] == "s1" else "s1") and 0,
    "keep": lambda s, _: s.keep() and 0,
    "verify": lambda s, _: s.verify(),
    "backup": lambda s, _: s.backup(f"{s.uri}-{time.monotonic_ns()}") and 0,
    "garbage": lambda s, _: s.collect_garbage(grace_seconds=0, trash_seconds=0).skipped,
}


@pytest.mark.parametrize("work", WORKS)
def test_an_operation_goes_on_wherever_its_catalog_is_interrupted(
    store: Store, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    table, left = store.table("t"), [-1]

    def interrupting(begin: Callable[..., Any]) -> Callable[..., Any]:
        def begun(catalog: Catalog, *asked: Any, **how: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Interrupted("the connection was lost")
            return begin(catalog, *asked, **how)

        return begun

    for name in ("reading", "writing", "leasing", "_state"):
        monkeypatch.setattr(Catalog, name, interrupting(getattr(Catalog, name)))
    WORKS[work](store, table)
    expected, count = WORKS[work](store, table), 0
    while left[0] <= 0:
        count += 1
        left[0] = count
        assert WORKS[work](store, table) == expected
    left[0] = -1
    assert count > 1
    assert store.verify() == []
