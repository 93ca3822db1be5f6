"""Requests to a bucket of a real server, through a line that fails."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from elasticscan.base.errors import ElasticScanError, FragmentMissing, ShardUnavailable, WriteConflict
from tests.base.s3 import SECRET, Fault, Request, S3Server

pytest.importorskip("botocore", reason="pip install 'elasticscan[s3]'")

from elasticscan.storage.disk import bucket as bucket_module
from elasticscan.storage.disk.bucket import Bucket


@pytest.fixture
def objects(bucket: str) -> Bucket:
    objects = Bucket(bucket, f"s3://{bucket}")
    objects.put("before", b"x")
    return objects


def first(faults: Iterable[Fault | None]) -> Callable[[Request], Fault | None]:
    """The first requests fail so, all others pass."""
    ahead = iter(faults)
    return lambda request: next(ahead, None)


@pytest.mark.parametrize("fault", ["503", "cut"])
def test_what_a_busy_server_or_a_broken_line_refuses_is_asked_again(
    objects: Bucket, s3_server: S3Server, fault: Fault
) -> None:
    objects.put("x", bytes(range(200)) * 500)
    s3_server.line.fault = first([fault, fault])
    data, size = objects.read("x", "-50")
    assert (data.to_pybytes(), size) == (bytes(range(150, 200)), 100_000)
    assert objects.read("x", "10-19")[0].to_pybytes() == bytes(range(10, 20))
    s3_server.line.fault = first([fault])
    assert {key for key, _ in objects.list("")} == {"before", "x"}


def test_a_line_that_breaks_is_tried_again_when_the_client_does_not(
    objects: Bucket, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After very many failures in a process botocore sends nothing twice, which one attempt stands for."""
    monkeypatch.setattr(bucket_module, "ATTEMPTS", 1)
    monkeypatch.setattr(bucket_module, "_PAUSE_SECONDS", 0.01)
    bucket_module._client_of.cache_clear()
    s3_server.line.fault = first(["drop", "drop"])
    assert objects.read("before", "-1")[1] == 1
    monkeypatch.setattr(bucket_module, "_DROPPED_SECONDS", 0.0)
    s3_server.line.fault = first(["drop"])
    with pytest.raises(ShardUnavailable):
        objects.read("before", "-1")
    bucket_module._client_of.cache_clear()


def test_what_no_repetition_mends_is_asked_once_and_an_error_of_ours(
    objects: Bucket, s3_server: S3Server
) -> None:
    with pytest.raises(FragmentMissing):
        objects.read("none", "-1")
    asked = list[Request]()

    def denied(request: Request) -> Fault:
        asked.append(request)
        return "denied"

    s3_server.line.fault = denied
    for work in (
        lambda: objects.read("before", "-1"),
        lambda: objects.put("x", b""),
        lambda: objects.delete("x"),
        lambda: list(objects.list("")),
        lambda: list(objects.uploads("")),
        lambda: objects.copy("before", "x"),
        lambda: objects.upload("x").finish(),
    ):
        asked.clear()
        with pytest.raises(ElasticScanError, match="may not"):
            work()
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"AWS_PROFILE": "nobody"}, "AWS_PROFILE"),
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "no credentials"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "127.0.0.1:1"),
        ({"AWS_ENDPOINT_URL": "127.0.0.1:9000"}, "write http://HOST:9000"),
        ({"AWS_ENDPOINT_URL": "TLS"}, "AWS_CA_BUNDLE"),
        ({"AWS_REGION": "no region"}, "AWS_REGION"),
        ({}, "may not"),
    ],
)
def test_an_environment_that_leads_nowhere_is_reported_without_a_secret(
    objects: Bucket,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str | None],
    message: str,
) -> None:
    for name, value in changed.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            tls = s3_server.endpoint.replace("http:", "https:")
            monkeypatch.setenv(name, tls if value == "TLS" else value)
    s3_server.line.fault = lambda _: "denied"
    with pytest.raises(ShardUnavailable, match=message) as caught:
        objects.read("before", "-1")
    assert SECRET not in str(caught.value)
    # No frame of ours has a secret among its variables, either.
    error: BaseException | None = caught.value
    seen = repr(vars(bucket_module))
    while error is not None:
        frames = traceback.TracebackException.from_exception(error, capture_locals=True).stack
        seen += repr([frame.locals for frame in frames if "elasticscan/storage" in frame.filename])
        error = error.__cause__ or error.__context__
    assert "writing" in seen and SECRET not in seen


def test_the_region_is_what_the_environment_says(objects: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")  # which botocore alone would not read
    assert bucket_module._client().meta.region_name == "eu-central-1"
    monkeypatch.delenv("AWS_REGION")
    assert bucket_module._client().meta.region_name == "eu-west-1"
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert objects.size("before") == 1  # a server of one's own needs none


def test_credentials_that_were_renewed_in_their_file_are_read_again(
    objects: Bucket, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"

    def write(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n")

    write("AKIAOLDOLDOLDOLDOLD")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    assert objects.size("before") == 1
    asked = list[str]()

    def old_ones_expired(request: Request) -> Fault | None:
        asked.append(request.signed_by)
        return "key" if request.signed_by == "AKIAOLDOLDOLDOLDOLD" else None

    s3_server.line.fault = old_ones_expired
    with pytest.raises(ShardUnavailable, match="does not know the access key") as refused:
        objects.read("before", "-1")
    assert len(asked) == 2 and SECRET not in str(refused.value)
    write("AKIANEWNEWNEWNEWNEW")
    assert objects.read("before", "-1")[1] == 1
    assert asked[-2:] == ["AKIAOLDOLDOLDOLDOLD", "AKIANEWNEWNEWNEWNEW"]


def test_a_forked_child_asks_on_a_line_of_its_own(objects: Bucket) -> None:
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if objects.read("before", "-1")[0].to_pybytes() == b"x" else 2
        finally:
            os._exit(code)
    for _ in range(20):
        assert objects.read("before", "-1")[0].to_pybytes() == b"x"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_answer_that_was_lost_is_no_failure_of_an_upload_and_a_collection_is(
    objects: Bucket, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "PART_BYTES", 1)
    with objects.upload("large") as upload:
        upload.write(b"x")
        s3_server.line.fault = first(["cut", "gone"])
    assert objects.size("large") == 1
    upload = objects.upload("collected")
    upload.write(b"x")
    ((key, number, _),) = objects.uploads("")
    objects.abort(key, number)
    objects.abort(key, number)
    s3_server.line.fault = first(["gone"])
    with pytest.raises(WriteConflict, match="grace"):
        upload.finish()
