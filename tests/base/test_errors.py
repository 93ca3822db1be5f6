"""What errors carry, which say where they were met, and those of a process without files or memory."""

from __future__ import annotations

import errno
import os
import pickle
import pwd
import resource
from pathlib import Path

import pyarrow as pa
import pytest

import elasticscan
from elasticscan.base import errors
from elasticscan.base.errors import (
    ElasticScanError,
    InvalidOption,
    NotFound,
    OutOfResources,
    ShardUnavailable,
)
from elasticscan.base.resources import lack_in


def kinds_of(kind: type[ElasticScanError]) -> list[type[ElasticScanError]]:
    return [kind, *(each for direct in kind.__subclasses__() for each in kinds_of(direct))]


def test_an_error_of_any_module_has_a_code_that_is_documented() -> None:
    assert elasticscan.Store, "it imports the modules that have errors of their own"
    documented = {each.code for each in vars(errors).values() if hasattr(each, "code")}
    internal = [each for each in kinds_of(ElasticScanError) if each.__module__.startswith("elasticscan.")]
    assert len(internal) > len(documented)
    assert {each.code for each in internal} == documented


@pytest.mark.parametrize(
    "kind", [each for each in vars(errors).values() if getattr(each, "names_its_host", False)]
)
def test_an_error_that_another_machine_may_not_meet_names_user_and_host(kind: type[ElasticScanError]) -> None:
    host, user = os.uname().nodename, pwd.getpwuid(os.geteuid()).pw_name
    error = kind("no luck", root="/mnt/a")
    assert error.fields == {"root": "/mnt/a", "host": host, "user": user}
    assert str(error) == f"[{kind.code}] no luck (user {user} at {host})"
    assert error.message == "no luck"
    assert str(InvalidOption("no luck", option="x")) == "[ES_INVALID_OPTION] no luck"
    assert str(NotFound("no luck", kind="store")) == f"[ES_NOT_FOUND] no luck (user {user} at {host})"
    assert str(NotFound("no luck", kind="table")) == "[ES_NOT_FOUND] no luck"


def test_an_error_that_was_sent_elsewhere_names_who_met_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = pickle.dumps(ShardUnavailable("no luck", root="/mnt/a"))
    before = str(pickle.loads(sent))

    def unknown(user: int) -> pwd.struct_passwd:
        raise KeyError(user)

    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "elsewhere", "6", "1", "x86_64")))
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert str(pickle.loads(sent)) == before
    assert str(ShardUnavailable("no luck")).endswith(f"(user {os.geteuid()} at elsewhere)")


def test_an_error_that_quotes_something_long_stays_short_and_tells_what_to_do() -> None:
    error = NotFound(
        f"no table {'x' * 100_000}; list them with `elasticscan tables`", table="x" * 100_000, kind="table"
    )
    sent = pickle.loads(pickle.dumps(error))
    for message in (error, sent):
        assert len(str(message)) < 4_100
        assert str(message).startswith("[ES_NOT_FOUND] no table xxx")
        assert str(message).endswith("list them with `elasticscan tables`")
        assert "96,1" in str(message)
        assert message.fields["table"] == "x" * 100_000


def test_an_error_about_a_text_that_cannot_be_encoded_can_be_printed_and_logged() -> None:
    error = InvalidOption("'a\ud800' is no text", option="a\ud800", more={"\udfff": ["\ud800", ("\ud800",)]})
    for each in (error, pickle.loads(pickle.dumps(error))):
        f"{each} {each!r} {each.args} {each.fields['option']} {each.fields['more']}".encode()
        assert "\\ud800" in str(each)
        assert each.fields["more"]["\\udfff"][0] == "\\ud800"


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (MemoryError(), "memory"),
        (pa.lib.ArrowMemoryError("malloc of size 9 failed"), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (OSError(errno.EMFILE, "Too many open files", "a_module.py"), "files"),
        (OSError(errno.ENFILE, "Too many open files in system"), "files"),
        (OSError(errno.EIO, "Input/output error"), None),
        (ValueError("no"), None),
    ],
)
def test_errors_of_the_system_are_told_apart(error: Exception, what: str | None) -> None:
    lack = lack_in(error)
    assert (None if lack is None else lack.fields["what"]) == what


@pytest.mark.parametrize("free", [0, 1])
def test_a_process_without_free_files_is_reported_so_by_the_catalog(tmp_path: Path, free: int) -> None:
    with elasticscan.create(tmp_path / "s.store", shards=["s1", "s2"]) as store:
        store.create_table("t", {"id": range(100)}, "id")
    elasticscan.open(store.uri).close()  # whose modules are there from now on
    os.close(lowest := os.dup(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + free, hard))
    try:
        with pytest.raises(OutOfResources) as lack:
            elasticscan.open(store.uri)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert lack.value.fields["what"] == "files"
    with elasticscan.open(store.uri) as again:
        assert again.table("t").scan().count() == 100
