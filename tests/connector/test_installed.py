"""The built wheel, installed: Spark finds the source by itself, in its workers too."""

from __future__ import annotations

import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from elasticscan.store import Store
from tests.cluster.processes import outcome

ROOT = Path(__file__).resolve().parents[2]

# What a user's script would do: no registration, nothing but the package on the path.
SCRIPT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession

import elasticscan.connector, pyspark_elasticscan
installed = Path(sys.argv[2])
assert installed in Path(elasticscan.connector.__file__).parents, elasticscan.connector.__file__
assert installed in Path(pyspark_elasticscan.__file__).parents, pyspark_elasticscan.__file__
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
frame = spark.read.format("elasticscan").load(sys.argv[1] + "/t")
print("rows", len(frame.collect()))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.spark
def test_spark_finds_the_installed_package_by_itself(store: Store, tmp_path: Path) -> None:
    sources, target = tmp_path / "sources", tmp_path / "installed"
    # A copy, since building leaves files behind.
    sources.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "pyspark_elasticscan.py"):
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, sources)
    (sources / "README.md").touch()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for part in project["tool"]["setuptools"]["package-dir"].values():
        shutil.copytree(ROOT / part, sources / part, ignore=shutil.ignore_patterns("__pycache__"))
    build = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    outcome([sys.executable, "-c", build, str(tmp_path)], sources)
    (wheel,) = tmp_path.glob("*.whl")
    # What `pip install --no-deps --target` does with a wheel of pure Python; not every environment has pip.
    zipfile.ZipFile(wheel).extractall(target)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    given = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(target)}
    out = outcome([sys.executable, str(script), store.uri, str(target)], tmp_path, **given)
    assert "rows 1000" in out
