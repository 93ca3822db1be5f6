"""A catalog at a database server, shards in object storage and a cluster, all at once: what all is for."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from elasticscan.store import Store
from tests.base.s3 import SECRET
from tests.cluster.conftest import SCHEMA, FarPlace, contents, moving
from tests.cluster.standalone import Driver, JobFailed
from tests.soak.processes import ROOT

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(900)]

LOGGED = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.logStageExecutorMetrics": "true",
}


def test_batches_sql_and_a_stream_are_exact_far_away_while_tablets_move(
    far: FarPlace, tmp_path: Path
) -> None:
    with far.store() as (store, roots), Driver(far.cluster.master, tmp_path) as driver:
        before = contents(store)
        store.create_table("copy", SCHEMA, ["id"])
        with moving(store, roots=roots):
            assert driver.ask("read", path=f"{store.uri}/t")["rows"] == before
            driver.ask("write", path=f"{store.uri}/t", ids=[10_000, 30_000], v=2)
            query = "SELECT id, v + 1 AS w FROM t WHERE id % 7 = 3 AND id < 9000"
            asked = driver.ask("sql", store=store.uri, query=query)
            assert asked["rows"] == [[key, 2] for key in range(3, 9_000, 7)]
            copying = {"source": f"{store.uri}/t", "target": f"{store.uri}/copy"}
            driver.ask("stream", **copying, checkpoint=str(tmp_path / "checkpoint"), rows=20_000)
        assert contents(store) == before[:10_000] + [[key, 2] for key in range(10_000, 30_000)]
        assert contents(store, "copy") == contents(store)


@pytest.mark.parametrize("named", ["env", "url", "store"])
def test_no_file_log_plan_or_key_has_a_secret_in_it(
    far: FarPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    with far.store() as (store, _):
        whole = store.uri.replace("@", f":{quote(far.password, safe='')}@", 1)
        uri = "env:SHOP" if named == "env" else whole
        monkeypatch.setenv("SHOP", whole)
        store.create_table("copy", SCHEMA, ["id"])
        (events := tmp_path / "events").mkdir()
        settings = LOGGED | {"spark.eventLog.dir": events.as_uri()}
        settings |= advised_redaction() if named == "store" else {}
        with Driver(far.cluster.master, tmp_path, settings) as driver:
            shown = driver.ask("shown", uri=uri, by_url=named == "url")
            driver.ask("write", path=f"{uri}/t", ids=[0, 30_000], v=2)
            given = {
                "source": f"{uri}/t",
                "target": f"{uri}/copy",
                "checkpoint": str(tmp_path / "checkpoint"),
            }
            driver.ask("stream", **given, rows=20_000)
            with pytest.raises(JobFailed) as failed:
                driver.ask("read", path=f"{uri}/no_such_table")
            driver.ask("stop")
        assert contents(store, "copy") == contents(store)
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
    with store.context.catalog.reading() as tx:
        secrets = [*tx.seal_keys().values(), *tx.offset_keys().values()]
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
