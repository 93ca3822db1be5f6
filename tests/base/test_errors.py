"""What errors carry, and which of them say where they were met."""

from __future__ import annotations

import os
import pickle
import pwd

import pytest

from elasticscan.base import errors
from elasticscan.base.errors import (
    CatalogUnavailable,
    DiskFull,
    ElasticScanError,
    FragmentMissing,
    InvalidOption,
    NotFound,
    OutOfResources,
    ReadOnlyStore,
    ShardUnavailable,
    StoreNotFound,
    WrongRoot,
)

OF_A_MACHINE = [
    CatalogUnavailable,
    DiskFull,
    FragmentMissing,
    OutOfResources,
    ReadOnlyStore,
    ShardUnavailable,
    StoreNotFound,
    WrongRoot,
]


@pytest.mark.parametrize("kind", OF_A_MACHINE)
def test_an_error_that_another_machine_may_not_meet_names_user_and_host(kind: type[ElasticScanError]) -> None:
    host, user = os.uname().nodename, pwd.getpwuid(os.geteuid()).pw_name
    error = kind("no luck", root="/mnt/a")
    assert error.fields == {"root": "/mnt/a", "host": host, "user": user}
    assert str(error) == f"[{kind.code}] no luck (user {user} at {host})"
    assert error.message == "no luck"


def test_an_error_that_was_sent_elsewhere_names_the_host_that_met_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = pickle.dumps(ShardUnavailable("no luck", root="/mnt/a"))
    before = str(pickle.loads(sent))
    there = os.uname_result(("Linux", "elsewhere", "6", "1", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: there)
    assert str(pickle.loads(sent)) == before
    assert str(ShardUnavailable("no luck")).endswith(" at elsewhere)")


def test_a_user_without_a_name_is_named_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> pwd.struct_passwd:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert errors.ShardUnavailable("no luck").fields["user"] == str(os.geteuid())


def test_other_errors_name_none() -> None:
    error = InvalidOption("no luck", option="x")
    assert str(error) == "[ES_INVALID_OPTION] no luck"
    assert error.fields == {"option": "x"}


def test_an_error_that_quotes_something_long_stays_short_and_tells_what_to_do() -> None:
    error = NotFound(
        f"no table {'x' * 100_000}; list them with `elasticscan tables`", table="x" * 100_000, kind="table"
    )
    sent = pickle.loads(pickle.dumps(error))
    for message in (error, sent):
        assert len(str(message)) < 4_100
        assert str(message).startswith("[ES_NOT_FOUND] no table xxx")
        assert str(message).endswith("list them with `elasticscan tables`")
        assert "96,0" in str(message)
        assert message.fields["table"] == "x" * 100_000


def test_an_error_about_a_text_that_cannot_be_encoded_can_be_printed_and_logged() -> None:
    error = InvalidOption("'a\ud800' is no text", option="a\ud800", more={"\udfff": ["\ud800", ("\ud800",)]})
    for each in (error, pickle.loads(pickle.dumps(error))):
        f"{each} {each!r} {each.args} {each.fields['option']} {each.fields['more']}".encode()
        assert "\\ud800" in str(each)
        assert each.fields["more"]["\\udfff"][0] == "\\ud800"
