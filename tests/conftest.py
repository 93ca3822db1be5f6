"""What tests of several folders share."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from elasticscan.base import limits
from tests.base.at_server import begin
from tests.base.postgres import Server, start_server
from tests.base.s3 import S3Server, start_s3
from tests.base.severed_line import SeveredLine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


AT_SERVER = os.environ.get("ELASTICSCAN_TESTS_CATALOG") == "postgresql"


@pytest.fixture(scope="session", autouse=AT_SERVER)
def stores_at_server(postgres: Server) -> None:
    """All stores of the tests have their catalogs at a server: `tests/base/at_server`."""
    begin(str(postgres.directory))


@pytest.fixture
def rows_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commits of this process write files, however small they are."""
    monkeypatch.setattr(limits, "INLINE_BYTES", 0)


@pytest.fixture(scope="module", autouse=True)
def rows_in_files_of_modules(request: pytest.FixtureRequest) -> Iterator[None]:
    """As `rows_in_files`, for all tests of modules about files, which have `ROWS_IN_FILES`."""
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request.module, "ROWS_IN_FILES", False):
            patch.setattr(limits, "INLINE_BYTES", 0)
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Alongside other workers, long tests come first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker runs all files whose tests share a Spark session, so that one is started, one all that share
    a cluster, and one each file whose tests share what is made once; other tests go to any free worker."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - not all who run tests have it

    shared = dict[str, str]()
    for path in Path(__file__).parent.rglob("test_*.py"):
        name, text = path.relative_to(config.rootpath).as_posix(), path.read_text(encoding="utf-8")
        if name.startswith("tests/cluster/"):
            shared[name] = "cluster"
        elif "spark: SparkSession" in text:
            shared[name] = "spark"
        elif 'scope="module"' in text and not name.startswith(("tests/faults/", "tests/simulation/")):
            shared[name] = name

    class OneScope(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return shared.get(nodeid.partition("::")[0], nodeid)

    return OneScope(config, log)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small local session; starting one takes longer than most tests."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the other tests run without it, too

    from tests.base.quick_java import QUICK_JAVA  # noqa: PLC0415 - likewise

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "PYSPARK_PYTHON", sys.executable)
        patch.setitem(os.environ, "PYSPARK_DRIVER_PYTHON", sys.executable)
        daemons = str(Path(__file__).parent / "base" / "daemons")
        patch.setenv("PYTHONPATH", daemons, prepend=os.pathsep)
        with warnings.catch_warnings():
            # PySpark warns of a pandas that is newer than itself; nothing here uses pandas.
            warnings.simplefilter("ignore")
            session = (
                SparkSession.builder.master("local[2]")
                .appName("elasticscan-tests")
                .config("spark.ui.enabled", "false")
                .config("spark.sql.shuffle.partitions", "2")
                .config("spark.driver.memory", "2g")
                .config("spark.driver.extraJavaOptions", QUICK_JAVA)
                .config("spark.driver.bindAddress", "127.0.0.1")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.sql.session.timeZone", "UTC")
                .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
                .getOrCreate()
            )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


def views_of(session: SparkSession) -> set[str]:
    """The temporary views of a session, asked of its JVM: `listTables` takes a third of a second."""
    views = session._jsparkSession.sessionState().catalog().listLocalTempViews("*")
    return {views.apply(at).table() for at in range(views.size())}


@pytest.fixture(autouse=True)
def no_views_are_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Temporary views that a test makes go with it: one session serves many tests, in any order."""
    if "spark" not in request.fixturenames:
        yield
        return
    session = request.getfixturevalue("spark")
    before = views_of(session)
    yield
    for view in views_of(session) - before:
        session.catalog.dropTempView(view)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A server of this session's own: `tests/base/postgres.py`."""
    with start_server() as server:
        yield server


@pytest.fixture(scope="module")
def line(postgres: Server) -> Iterator[SeveredLine]:
    """A line to that server which breaks where a test says."""
    with SeveredLine(postgres.socket) as line:
        yield line


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def catalog_url(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """The place of a new catalog: on both databases, for tests of what holds on each."""
    return tmp_path / "catalog.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def postgres_url(postgres: Server) -> Iterator[str]:
    """The URL of an empty database."""
    with postgres.database() as name:
        yield postgres.url(name)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server of this session's own: `tests/base/s3.py`."""
    with start_s3() as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server) -> Iterator[str]:
    """An empty bucket, to which the environment leads."""
    with s3_server.bucket() as name:
        yield name


@pytest.fixture
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is flushed to the disk: a machine does not lose power during a test."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
