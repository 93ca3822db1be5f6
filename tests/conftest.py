"""What tests of several folders share."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Beside other workers, one runs all tests that share a Spark session, and long tests come first."""
    if config.getoption("dist", "no") == "no":
        return
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small local session; starting one takes longer than most tests."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the other tests run without it, too

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "PYSPARK_PYTHON", sys.executable)
        patch.setitem(os.environ, "PYSPARK_DRIVER_PYTHON", sys.executable)
        with warnings.catch_warnings():
            # PySpark warns of a pandas that is newer than itself; nothing here uses pandas.
            warnings.simplefilter("ignore")
            session = (
                SparkSession.builder.master("local[2]")
                .appName("elasticscan-tests")
                .config("spark.ui.enabled", "false")
                .config("spark.sql.shuffle.partitions", "2")
                .config("spark.driver.memory", "2g")
                # What runs for some minutes does not earn back what thorough compilation costs.
                .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
                .config("spark.driver.bindAddress", "127.0.0.1")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.sql.session.timeZone", "UTC")
                .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
                .getOrCreate()
            )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()
