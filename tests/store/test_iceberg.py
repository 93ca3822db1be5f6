"""Iceberg tables as sources of a load: at a snapshot, resumed, and with deletes beside the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticscan.base.errors import InvalidOption
from elasticscan.store import Store

pytest.importorskip("pyiceberg", reason="pip install 'elasticscan[iceberg]'")

ROWS = pa.table({"id": range(100), "name": [f"n{i % 7}" for i in range(100)]})
MORE = pa.table({"id": [500], "name": ["new"]})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "t.store", ["s1", "s2"], tablets=4, slots=64)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A table `air.trips` of the catalog `local`: two snapshots, of 100 rows and of one more."""
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - skipped where it is not

    for name, value in {"URI": f"sqlite:///{tmp_path}/iceberg.db", "WAREHOUSE": f"file://{tmp_path}"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LOCAL__{name}", value)
    catalog = load_catalog(
        "local", type="sql", uri=f"sqlite:///{tmp_path}/iceberg.db", warehouse=f"file://{tmp_path}"
    )
    catalog.create_namespace("air")
    made = catalog.create_table("air.trips", schema=ROWS.schema)
    made.append(ROWS)
    made.append(MORE)
    yield made
    catalog.engine.dispose()


def read(store: Store, name: str) -> list[dict[str, Any]]:
    return sorted(store.table(name).scan().to_table().to_pylist(), key=lambda row: row["id"])


def test_an_iceberg_table_is_loaded_at_a_snapshot_and_resumed(store: Store, table: Any) -> None:
    first = table.history()[0].snapshot_id
    place = table.metadata_location
    assert store.load("t", place, format="iceberg", version=first, primary_key="id").rows == 100
    assert read(store, "t") == ROWS.to_pylist()
    store.load("t", place, format="iceberg", job="j")
    assert read(store, "t") == ROWS.to_pylist() + MORE.to_pylist()
    assert store.load("t", place, format="iceberg", job="j").rows == 0
    table.append(pa.table({"id": [501], "name": ["later"]}))
    assert store.load("t", table.metadata_location, format="iceberg", job="j").rows == 1
    with pytest.raises(InvalidOption, match="cannot be read as an Iceberg table"):
        store.load("t", place, format="iceberg", version=77)


def test_columns_that_came_later_are_null_in_older_files(store: Store, table: Any) -> None:
    with table.update_schema() as change:
        from pyiceberg.types import DoubleType  # noqa: PLC0415 - skipped where it is not

        change.add_column("km", DoubleType())
    table.append(pa.table({"id": [7_000], "name": ["x"], "km": [0.5]}))
    store.load("t", table.metadata_location, format="iceberg", primary_key="id")
    rows = read(store, "t")
    assert (rows[0]["km"], rows[-1]["km"], len(rows)) == (None, 0.5, 102)


def test_deletes_beside_the_data_are_honoured(
    store: Store, table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of positions, as writers that merge on read leave it: PyIceberg writes none, but reads them."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat  # noqa: PLC0415 - as above
    from pyiceberg.table import DataScan  # noqa: PLC0415

    def planned(scan: Any) -> list[Any]:
        tasks = list(plan(scan))
        (hit,) = [task for task in tasks if task.file.record_count == 100]
        path = f"{tmp_path}/deletes.parquet"
        pq.write_table(pa.table({"file_path": [hit.file.file_path] * 2, "pos": [0, 1]}), path)
        kinds = {"content": DataFileContent.POSITION_DELETES, "file_format": FileFormat.PARQUET}
        hit.delete_files.add(DataFile.from_args(file_path=path, **kinds))
        return tasks

    plan = DataScan.plan_files
    monkeypatch.setattr(DataScan, "plan_files", planned)
    store.load("t", table.metadata_location, format="iceberg", primary_key="id", job="j")
    assert read(store, "t") == ROWS.slice(2).to_pylist() + MORE.to_pylist()


def test_a_table_that_is_not_there_is_told(store: Store, tmp_path: Path) -> None:
    for place in (f"{tmp_path}/none", "nowhere.air.trips"):
        with pytest.raises(InvalidOption, match="cannot be read as an Iceberg table"):
            store.load("t", place, format="iceberg", primary_key="id")
