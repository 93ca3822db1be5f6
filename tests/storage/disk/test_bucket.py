"""Requests to a bucket of a real server, through a line that fails."""

from __future__ import annotations

import os
import resource
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from elasticscan.base.errors import (
    ElasticScanError,
    FragmentMissing,
    OutOfResources,
    ShardUnavailable,
    WriteConflict,
)
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


def test_an_object_reads_as_it_was_put_and_says_its_size(objects: Bucket) -> None:
    objects.put("a/b c%+ü", bytes(range(200)))
    data, size = objects.read("a/b c%+ü", "-50")
    assert (data.to_pybytes(), size) == (bytes(range(150, 200)), 200)
    assert objects.read("a/b c%+ü", "10-19")[0].to_pybytes() == bytes(range(10, 20))
    assert objects.size("a/b c%+ü") == 200
    assert [key for key, _ in objects.list("a/")] == ["a/b c%+ü"]


@pytest.mark.parametrize("fault", ["503", "500", "cut", "drop"])
def test_what_a_busy_server_or_a_broken_line_refuses_is_asked_again(
    objects: Bucket, s3_server: S3Server, fault: Fault
) -> None:
    objects.put("x", bytes(100_000))
    s3_server.line.fault = first([fault, fault])
    assert objects.read("x", "-100000")[0].size == 100_000
    s3_server.line.fault = first([fault])
    objects.put("y", b"again")
    s3_server.line.fault = first([fault])
    assert {key for key, _ in objects.list("")} == {"before", "x", "y"}
    s3_server.line.fault = first([fault])
    objects.delete("y")
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


def test_what_no_repetition_mends_is_asked_once(objects: Bucket, s3_server: S3Server) -> None:
    asked = list[Request]()

    def denied(request: Request) -> Fault:
        asked.append(request)
        return "denied"

    s3_server.line.fault = denied
    with pytest.raises(ShardUnavailable, match="AccessDenied"):
        objects.read("before", "-1")
    s3_server.line.fault = lambda _: None
    with pytest.raises(FragmentMissing):
        objects.read("none", "-1")
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"AWS_PROFILE": "nobody"}, "AWS_PROFILE"),
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "no credentials"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "127.0.0.1:1"),
        ({"AWS_ENDPOINT_URL": "127.0.0.1:9000"}, "write http://HOST:9000"),
        ({"AWS_REGION": "no region"}, "AWS_REGION"),
    ],
)
def test_an_environment_that_leads_nowhere_is_reported(
    objects: Bucket, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str | None], message: str
) -> None:
    for name, value in changed.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(ShardUnavailable, match=message) as caught:
        objects.read("before", "-1")
    assert SECRET not in str(caught.value)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "PART_BYTES", 1)


def parts(count: int) -> Iterator[bytes]:
    return (bytes([number]) * (5 << 20) for number in range(count))


@pytest.mark.usefixtures("small_parts")
def test_an_upload_in_parts_is_seen_when_it_is_whole(objects: Bucket) -> None:
    with objects.upload("large") as upload:
        for part in parts(2):
            upload.write(part)
        assert [key for key, _ in objects.list("large")] == []
        assert [key for key, _, _ in objects.uploads("la")] == ["large"]
    assert objects.size("large") == 10 << 20
    assert list(objects.uploads("")) == []


@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_fails_leaves_nothing(objects: Bucket) -> None:
    upload = objects.upload("large")
    upload.write(bytes(5 << 20))
    upload.__exit__(KeyError, KeyError())
    assert list(objects.uploads("")) == [] and [key for key, _ in objects.list("large")] == []


@pytest.mark.usefixtures("small_parts")
def test_an_answer_that_was_lost_is_no_failure_of_an_upload(objects: Bucket, s3_server: S3Server) -> None:
    with objects.upload("large") as upload:
        upload.write(b"x")
        s3_server.line.fault = first(["cut", "gone"])
    assert objects.size("large") == 1


@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_was_collected_meanwhile_is_reported_so(objects: Bucket, s3_server: S3Server) -> None:
    upload = objects.upload("large")
    upload.write(b"x")
    ((key, number, _),) = objects.uploads("")
    objects.abort(key, number)
    objects.abort(key, number)
    s3_server.line.fault = first(["gone"])
    with pytest.raises(WriteConflict, match="grace"):
        upload.finish()


def test_a_copy_of_a_large_object_is_made_in_parts(objects: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "_COPY_PART_BYTES", 5 << 20)
    content = b"".join(parts(2)) + b"end"
    objects.put("large", content)
    objects.copy("large", "copy")
    assert objects.read("copy", f"0-{len(content)}")[0].to_pybytes() == content


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


def test_errors_are_of_ours_alone(objects: Bucket, s3_server: S3Server) -> None:
    s3_server.line.fault = lambda _: "denied"
    for work in (
        lambda: objects.put("x", b""),
        lambda: objects.delete("x"),
        lambda: list(objects.list("")),
        lambda: list(objects.uploads("")),
        lambda: objects.copy("before", "x"),
        lambda: objects.upload("x").finish(),
    ):
        with pytest.raises(ElasticScanError, match="may not"):
            work()


def test_the_region_is_what_the_environment_says(objects: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")  # which botocore alone would not read
    assert bucket_module._client().meta.region_name == "eu-central-1"
    monkeypatch.delenv("AWS_REGION")
    assert bucket_module._client().meta.region_name == "eu-west-1"
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert objects.size("before") == 1  # a server of one's own needs none


def test_tls_where_there_is_none_is_reported(
    objects: Bucket, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint.replace("http:", "https:"))
    with pytest.raises(ShardUnavailable, match="AWS_CA_BUNDLE"):
        objects.size("before")


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


def test_too_many_open_files_are_reported_as_such(objects: Bucket) -> None:
    objects.put("x", b"x")
    bucket_module._client_of.cache_clear()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = list[int]()
    try:
        bucket_module._client()
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        with pytest.raises(OutOfResources, match="ulimit"):
            objects.read("x", "-1")
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert objects.read("x", "-1")[1] == 1


@pytest.mark.parametrize(
    "changed", [{"AWS_PROFILE": "nobody"}, {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, {}]
)
def test_no_frame_of_ours_has_a_secret_among_its_variables(
    objects: Bucket, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str]
) -> None:
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    s3_server.line.fault = lambda _: "denied"
    with pytest.raises(ShardUnavailable) as caught:
        objects.read("before", "-1")
    error: BaseException | None = caught.value
    message = repr(vars(bucket_module))
    while error is not None:
        frames = traceback.TracebackException.from_exception(error, capture_locals=True).stack
        message += repr([frame.locals for frame in frames if "elasticscan/storage" in frame.filename])
        error = error.__cause__ or error.__context__
    assert "writing" in message and SECRET not in message
