"""Iceberg tables as sources of a load: at a snapshot, resumed, and with deletes alongside the data."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticscan.base.errors import InvalidOption, OutOfResources, TableNotFound
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


def test_a_table_that_is_not_there_is_reported(store: Store, tmp_path: Path) -> None:
    for place in (f"{tmp_path}/none", "nowhere.air.trips"):
        with pytest.raises(InvalidOption, match="cannot be read as an Iceberg table"):
            store.load("t", place, format="iceberg", primary_key="id")


def message(call: Callable[[], Any]) -> str:
    """All that a log would have of a refusal: its text, and those of its causes."""
    with pytest.raises(InvalidOption) as caught:
        call()
    lines = traceback.format_exception(caught.value)
    return "".join(line for line in lines if not line.startswith("  "))


@pytest.fixture
def catalog(table: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the table in its catalog; PyIceberg reads its settings again."""
    from pyiceberg import catalog as catalogs  # noqa: PLC0415 - skipped where it is not
    from pyiceberg.utils.config import Config  # noqa: PLC0415

    monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())
    return "local.air.trips"


def test_no_refusal_shows_a_secret_of_an_address_or_of_a_catalogs_settings(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg import catalog as catalogs  # noqa: PLC0415 - skipped where it is not
    from pyiceberg.table import StaticTable  # noqa: PLC0415
    from sqlalchemy.exc import OperationalError  # noqa: PLC0415

    def unreachable(place: str, *_: Any) -> Any:
        raise OSError(f"no bucket {place.removeprefix('s3://').partition('/')[0]} at {place}")

    def refused(_: str) -> Any:
        raise OperationalError(
            "SELECT hunter2", {}, OSError("no host 'ss@db', token 'Bearer hunter3', of db")
        )

    monkeypatch.setattr(StaticTable, "from_metadata", unreachable)
    place = "s3://AKIAX:sEcret99@bucket1/p/metadata/v1.metadata.json"
    text = message(lambda: store.load("t", place, format="iceberg", primary_key="id"))
    assert "sEcret99" not in text
    assert "bucket1" in text
    monkeypatch.setenv("PYICEBERG_CATALOG__FAR__URI", "postgresql+psycopg2://ann:ss@db@db/x")
    monkeypatch.setenv("PYICEBERG_CATALOG__FAR__TOKEN", "Bearer hunter3")
    monkeypatch.setattr(catalogs, "load_catalog", refused)
    text = message(lambda: store.load("t", "far.air.trips", format="iceberg", primary_key="id"))
    assert not any(secret in text for secret in ("hunter2", "hunter3", "SELECT", "ss@db"))
    assert "far.air.trips cannot be read as an Iceberg table: OSError: no host" in text


def test_a_catalog_that_cannot_be_opened_is_reported(
    store: Store, catalog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg import catalog as catalogs  # noqa: PLC0415 - skipped where it is not
    from pyiceberg.utils.config import Config  # noqa: PLC0415

    assert store.load("t", catalog, format="iceberg", primary_key="id").rows == 101
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__URI", f"sqlite:///{tmp_path}/none/iceberg.db")
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())
    text = message(lambda: store.load("t", catalog, format="iceberg"))
    assert f"{catalog} cannot be read as an Iceberg table: OperationalError: unable to open" in text


def test_damage_of_a_table_is_reported_whatever_its_library_raises(
    store: Store, table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.io.pyarrow import ArrowScan  # noqa: PLC0415 - skipped where it is not

    def load() -> Any:
        return store.load("t", table.metadata_location, format="iceberg", primary_key="id")

    def failing(error: Exception) -> Callable[..., Any]:
        def fail(*_: Any) -> Any:
            raise error

        return fail

    for error in (EOFError("cut"), AssertionError(), KeyError("field")):
        with monkeypatch.context() as patch:
            patch.setattr(ArrowScan, "to_record_batches", failing(error))
            assert f".parquet cannot be read: {type(error).__name__}" in message(load)
    for lack in (MemoryError(), OSError(errno.EMFILE, "Too many open files")):
        with monkeypatch.context() as patch:
            patch.setattr(ArrowScan, "to_record_batches", failing(lack))
            with pytest.raises(OutOfResources):
                load()
    manifests = {path: path.read_bytes() for path in tmp_path.rglob("*.avro")}
    for left in (0, 3, 40, 400, -5):
        for path, content in manifests.items():
            path.write_bytes(content[:left])
        assert "cannot be read as an Iceberg table: " in message(load)
    assert store.tables() == ()


def test_a_table_without_rows_gives_its_columns(store: Store, table: Any) -> None:
    empty = table.catalog.create_table("air.empty", schema=ROWS.schema).metadata_location
    with pytest.raises(TableNotFound, match=rf"the columns of {empty} \(id, name\)"):
        store.load("t", empty, format="iceberg")
    loaded = store.load("t", empty, format="iceberg", primary_key="id", job="j")
    assert (loaded.rows, loaded.created) == (0, True)
    assert [commit.number for commit in store.table("t").history()][-1] == loaded.commit
    assert store.table("t").scan().to_table().schema.names == ["id", "name"]
    again = store.load("t", empty, format="iceberg", job="j")
    assert (again.commit, again.created) == (None, False)


def test_a_directory_is_read_as_its_hint_says_and_without_one_the_newest_metadata_is_named(
    store: Store, table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a writer left that failed before it committed is newest, too."""
    monkeypatch.setenv("HOME", str(tmp_path))
    current = Path(table.metadata_location.removeprefix("file://"))
    home, place = f"~/{current.parent.parent.relative_to(tmp_path)}", current.parent.parent
    for directory, whole in (
        (home, place),
        (f"file:{place}", f"file://{place}"),
        (f"file://{place}/", f"file://{place}"),
    ):
        text = message(partial(store.load, "t", directory, format="iceberg", primary_key="id"))
        assert f"the newest is {whole}/metadata/{current.name}" in text
    (current.parent / "version-hint.text").write_text(current.name)
    for number, directory in enumerate((home, f"file:{place}")):
        assert store.load(f"t{number}", directory, format="iceberg", primary_key="id").rows == 101
