"""Places, times, periods, numbers and keys in all their forms; test_invalid_arguments.py has the rest."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from elasticscan.base.errors import InvalidOption
from elasticscan.store import Store

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.float64())])
ROWS = pa.table({"id": [1, 2], "v": [0.5, 0.25]})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "store", ["s1", "s2"], tablets=4, slots=16) as made:
        made.create_table("t", SCHEMA, ["id"])
        made.table("t").upsert(ROWS)
        yield made


@pytest.mark.parametrize("value", [datetime(2026, 3, 1, 12), "2026-03-01T12:00"])  # noqa: DTZ001
def test_a_time_without_a_zone_is_refused_with_both_ways_to_write_it(store: Store, value: Any) -> None:
    table = store.table("t")
    for call, option in (
        (table.scan, "snapshot"),
        (table.to_arrow, "snapshot"),
        (partial(table.get, [1]), "snapshot"),
        (partial(table.aggregate, "count(*)"), "snapshot"),
        (partial(table.tag, "then"), "snapshot"),
        (table.changes, "after"),
        (partial(table.changes, 0), "upto"),
        (table.restore, "to"),
    ):
        with pytest.raises(InvalidOption, match=rf"^\[\w+\] {option}=.*'2026-03-01T12:00:00Z'.*:00\+02:00'"):
            call(**{option: value})


def test_a_retention_period_has_a_unit(store: Store) -> None:
    table = store.table("t")
    for period, seconds in (
        ("7d", 604_800.0),
        ("1.5m", 90.0),
        (timedelta(days=7), 604_800.0),
        (timedelta(0), 0.0),
        ("0s", 0.0),
        (None, None),
    ):
        table.set_retention(period)
        assert table.definition.retention_seconds == seconds


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    with Store.create(
        tmp_path / "store",
        {"s1": str(tmp_path / "a"), "s2": str(tmp_path / "b")},
        tablets=np.int64(4),  # type: ignore[arg-type]
        slots=np.uint16(16),  # type: ignore[arg-type]
        retention_seconds=np.float32(60),  # type: ignore[arg-type]
    ) as store:
        store.create_table("t", SCHEMA, "id")
        number: Any = np.int32(7)
        assert store.table("t").upsert(ROWS, txn=("app", number)) == store.table("t").upsert(
            ROWS, txn=("app", 7)
        )
        one: Any = np.int64(1)
        newest: Any = np.int64(2)
        rows: Any = np.int16(1)
        pages = list(store.table("t").scan(columns=["id"], snapshot=newest, page_rows=rows, page_bytes=rows))
        assert store.resume(pages[0].key).to_table().num_rows + pages[0].rows.num_rows == 2
        store.move(one, "s2")
        store.split(one, np.int64(2))  # type: ignore[arg-type]
        assert store.collect_garbage(grace_seconds=np.float64(0)).removed >= 0
        assert store.table("t").scan().to_table().num_rows == 2
