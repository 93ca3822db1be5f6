"""A catalog at a database server, shards in object storage and a cluster, all at once: what all is for."""

from __future__ import annotations

import base64
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from elasticscan.catalog import offset_keys, seal_keys
from elasticscan.store import Store
from tests.base.processes import ROOT, kill
from tests.base.s3 import SECRET, Fault, Request
from tests.cluster.conftest import ROWS, SCHEMA, FarPlace, contents, moving, tidy
from tests.cluster.standalone import Driver, JobFailed

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(900)]

ROUNDS = int(os.environ.get("ELASTICSCAN_FAR_ROUNDS", "1"))
PATIENT = {"spark.task.maxFailures": "50"}
LOGGED = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.logStageExecutorMetrics": "true",
}


def kill_an_executor(far: FarPlace) -> None:
    for process in far.cluster.executors()[:1]:
        kill(process)


def restart_the_database(far: FarPlace) -> None:
    far.postgres.restart()


def stop_the_database(far: FarPlace) -> None:
    with far.postgres.paused():
        time.sleep(1.0)


def lose_the_bucket(far: FarPlace) -> None:
    """It hangs up on everybody, and then refuses some."""
    chance = random.Random(1)

    def refuse_some(_: Request) -> Fault | None:
        return "503" if chance.random() < 0.2 else None

    far.s3.line.fault = lambda _: "drop"
    time.sleep(0.8)
    far.s3.line.fault = refuse_some
    time.sleep(0.8)
    far.s3.line.fault = lambda _: None


def test_all_stays_exact_where_executors_the_database_and_the_bucket_go_away_and_come_back(
    far: FarPlace, tmp_path: Path
) -> None:
    chance, rows = random.Random(2), dict.fromkeys(range(ROWS), 1)
    with far.store() as (store, roots), Driver(far.cluster.master, tmp_path, PATIENT) as driver:
        store.create_table("copy", SCHEMA, ["id"])
        table = f"{store.uri}/t"
        copying = {"source": table, "target": f"{store.uri}/copy", "checkpoint": str(tmp_path / "checkpoint")}

        def during(trouble: Callable[[FarPlace], None], job: str, **given: Any) -> Any:
            number = driver.begin(job, **given)
            time.sleep(chance.uniform(0.2, 1.0))
            trouble(far)
            return driver.answer(number)

        with moving(store, roots=roots):
            for number in range(2, 2 + ROUNDS):
                one, two, three, four = chance.sample(TROUBLES, 4)
                first = chance.randrange(ROWS)
                during(one, "write", path=table, ids=[first, first + 3_000], v=number)
                rows |= dict.fromkeys(range(first, first + 3_000), number)
                assert during(two, "read", path=table)["rows"] == listed(rows)
                query = f"SELECT v, count(*), sum(id) FROM t WHERE v = {number} GROUP BY v"
                counted = during(three, "sql", store=store.uri, query=query)["rows"]
                assert counted == [[number, 3_000, sum(range(first, first + 3_000))]]
                during(four, "stream", **copying, rows=10_000)
        assert contents(store) == contents(store, "copy") == listed(rows)
        writes = [commit.kind for commit in store.table("t").history()].count("write")
        assert writes == 1 + ROUNDS, "each write is one commit"
        tidy(store)
        assert contents(store) == listed(rows)
        assert store.verify() == []


def listed(rows: dict[int, int]) -> list[list[int]]:
    return [list(row) for row in sorted(rows.items())]


TROUBLES = [kill_an_executor, restart_the_database, stop_the_database, lose_the_bucket]


@pytest.mark.parametrize("settings", ["Spark's own", "ours"])
def test_no_file_log_plan_or_key_has_a_secret_in_it(
    far: FarPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    """Spark hides the option `url` by itself; whatever else has a password in it where spark-conf says so."""
    with far.store() as (store, _):
        uri = store.uri.replace("@", f":{quote(far.password, safe='')}@", 1)
        monkeypatch.setenv("SHOP", uri)
        store.create_table("copy", SCHEMA, ["id"])
        (events := tmp_path / "events").mkdir()
        given = LOGGED | {"spark.eventLog.dir": events.as_uri()}
        given |= advised_redaction() if settings == "ours" else {}
        with Driver(far.cluster.master, tmp_path, given) as driver:
            shown = driver.ask("shown", uri=uri, by_url=settings != "ours")
            shown += driver.ask("shown", uri="env:SHOP", by_url=False)
            if settings == "ours":
                driver.ask("write", path=f"{uri}/t", ids=[0, 30_000], v=2)
                copying = {"source": f"{uri}/t", "target": f"{uri}/copy"}
                driver.ask("stream", **copying, checkpoint=str(tmp_path / "checkpoint"), rows=50_000)
            with pytest.raises(JobFailed) as failed:
                driver.ask("read", path=f"{uri}/no_such_table")
            driver.ask("stop")
        assert contents(store, "copy") == (contents(store) if settings == "ours" else [])
        (tmp_path / "shown").write_text("\n".join([*shown, str(failed.value)]))
        (tmp_path / "status").write_text(
            json.dumps(store.status()) + repr(store) + repr(store.table("t").scan())
        )
        (tmp_path / "key").write_text(str(next(store.table("t").scan(page_rows=10)).key))
        secrets = forms_of(far.password, SECRET, *sealing_secrets(store))
        found = {
            (str(path), form)
            for path in [*files(tmp_path), *files(far.cluster.directory)]
            for form in forms_in(path, secrets)
        }
        found |= {(name, form) for name, body in objects(far) for form in secrets if form in body}
    assert found == set()
    assert any(path.stat().st_size for path in files(events)), "Spark wrote its events"
    assert {"stdout", "stderr"} <= {path.name for path in files(far.cluster.directory)}


def advised_redaction() -> dict[str, str]:
    """The setting of spark-conf that hides every address with a password in it."""
    name = "spark.sql.redaction.options.regex"
    lines = (ROOT / "spark-conf" / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    (value,) = [line.removeprefix(name).strip() for line in lines if line.startswith(name)]
    return {name: value}


def sealing_secrets(store: Store) -> list[bytes]:
    tx = store.context.catalog.newest()
    secrets = [*seal_keys(tx.state, tx.now).values(), *offset_keys(tx.state).values()]
    assert secrets
    return secrets


def forms_of(*secrets: str | bytes) -> list[bytes]:
    """Secrets in the forms in which they may be met."""
    forms = set[bytes]()
    for secret in secrets:
        raw = secret.encode() if isinstance(secret, str) else secret
        forms |= {raw, raw.hex().encode(), base64.b64encode(raw), base64.urlsafe_b64encode(raw)}
        forms |= {repr(secret)[2:-1].encode(), quote(raw, safe="").encode(), quote(raw).encode()}
        forms.add(json.dumps(raw.decode("latin-1"))[1:-1].encode())
    return sorted(forms)


def files(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file() and path.suffix != ".jar"]


def forms_in(path: Path, forms: list[bytes]) -> list[bytes]:
    with suppress(FileNotFoundError):
        body = path.read_bytes()
        return [form for form in forms if form in body]
    return []


def objects(far: FarPlace) -> Iterator[tuple[str, bytes]]:
    """All objects of the bucket, with what is in them."""
    listed = far.s3.client.list_objects_v2(Bucket=far.bucket)
    assert not listed["IsTruncated"]
    for found in listed["Contents"]:
        yield found["Key"], far.s3.client.get_object(Bucket=far.bucket, Key=found["Key"])["Body"].read()
