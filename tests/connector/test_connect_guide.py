"""docs/spark-connect.md: a session of Spark Connect and a pipeline, each in a process of its own."""

from __future__ import annotations

import fcntl
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from elasticscan.store import Store
from tests import pages
from tests.base.processes import outcome

pytest.importorskip("grpc", reason="Spark Connect needs grpcio (pip install 'pyspark[connect]')")

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string())])


@pytest.fixture(autouse=True)
def _one_server_at_a_time() -> Iterator[None]:
    """PySpark starts each server at the same port, and tests may run side by side."""
    with (Path(tempfile.gettempdir()) / "elasticscan-connect-server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def blocks(section: str, language: str = "python") -> list[tuple[str, str | None]]:
    """The blocks under a heading of the second level."""
    text = (pages.ROOT / "docs" / "spark-connect.md").read_text(encoding="utf-8")
    parts = {part.partition("\n")[0]: part for part in re.split(r"^## ", text, flags=re.MULTILINE)}
    return pages.blocks(parts[section], language)


def run(command: list[str], where: Path) -> str:
    path = os.pathsep.join(path for path in sys.path if path)
    return outcome(command, where, PYSPARK_PYTHON=sys.executable, PYTHONPATH=path)


@pytest.mark.long
@pytest.mark.spark
def test_the_examples_work_in_a_session_of_spark_connect(tmp_path: Path) -> None:
    code = "\n".join(code for code, _ in blocks("Spark Connect")).replace('"/data/', f'"{tmp_path}/')
    program = "import sys; from tests import pages; sys.exit('\\n'.join(pages.run(sys.argv[1], {})) or None)"
    run([sys.executable, "-c", program, code], tmp_path)
    store = Store.open(tmp_path / "remote.store")
    assert [table.name for table in store.tables()] == ["visits", "visits_copy"]
    assert _contents(store, "visits_copy").equals(_contents(store, "visits"))


@pytest.mark.long
@pytest.mark.spark
def test_a_pipeline_reads_a_table_and_copies_its_changes_to_another(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="pipelines need PyYAML (pip install 'pyspark[pipelines]')")
    place = tmp_path / "pipeline"
    (place / "transformations").mkdir(parents=True)
    ((spec, _),) = blocks("Declarative Pipelines", "yaml")
    ((code, _),) = blocks("Declarative Pipelines")
    (place / "spark-pipeline.yml").write_text(spec.replace("///data", f"//{tmp_path}"))
    (place / "transformations" / "visits.py").write_text(code.replace('"/data', f'"{tmp_path}'))
    source = Store.create(place / "tour.store", ["s1", "s2"], tablets=8)
    source.create_table("visits", SCHEMA, ["id"])
    source.table("visits").upsert(_visits(1_000))
    source.table("visits").delete(pa.table({"id": [1, 2]}))
    target = Store.create(place / "copy.store", ["t1"])
    program = Path(sys.executable).with_name("spark-pipelines")
    printed = run([str(program), "run", "--spec", "spark-pipeline.yml"], place)
    assert "Run is COMPLETED" in printed
    made = place / "spark-warehouse"
    assert ds.dataset(made / "new_visits").count_rows() == 998
    assert sum(ds.dataset(made / "by_city").to_table()["count"].to_pylist()) == 998
    assert _contents(target, "visits").equals(_contents(source, "visits"))


def _visits(count: int) -> pa.Table:
    return pa.table({"id": range(count), "city": ["Oslo", "Lima"] * (count // 2)}, schema=SCHEMA)


def _contents(store: Store, table: str) -> pa.Table:
    return store.table(table).scan().to_table().sort_by("id")
