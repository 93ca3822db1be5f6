"""Logs that are kept aside, alongside disks that do not tell what is there."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from elasticscan.base.errors import CatalogUnavailable
from elasticscan.catalog import kept_logs, readonly
from elasticscan.catalog.home import check_one_name, home_of
from elasticscan.catalog.kept_logs import holds_anything, keep_log, log_of
from tests.base.manual_clock import ManualClock
from tests.catalog.test_opening import create, opened
from tests.catalog.test_transactions import make

NUMBERS = (errno.EIO, errno.EACCES, errno.ESTALE)
FILE = "catalog.db"


def refuse(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(owner, name, refused)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_log_that_cannot_be_looked_at_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    create(tmp_path / FILE)
    with opened(tmp_path / FILE) as catalog:
        refuse(monkeypatch, kept_logs.Path, "stat", number)
        with pytest.raises(CatalogUnavailable, match="could not be looked at") as raised:
            assert not catalog.has_log
        assert raised.value.fields["errno"] == number
        keep_log(tmp_path / FILE, "unread")  # during another error, which is the one to tell
        refuse(monkeypatch, kept_logs.Path, "glob", number)
        assert kept_logs.kept_logs(tmp_path / FILE) == []


def test_a_log_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert not holds_anything(log_of(tmp_path / FILE))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CatalogUnavailable):
        holds_anything(log_of(tmp_path / "file" / FILE))


@pytest.mark.parametrize("number", NUMBERS)
def test_a_mount_that_cannot_be_asked_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    create(tmp_path / FILE)
    monkeypatch.setattr(readonly.os, "access", lambda *_, **__: False)
    refuse(monkeypatch, readonly.os, "statvfs", number)
    with pytest.raises(CatalogUnavailable, match="could not be looked at"):
        readonly.why_not_writable(tmp_path / FILE)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_catalog_whose_home_cannot_be_looked_at_is_not_taken_for_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with closing(make(tmp_path / FILE, ManualClock(1_000.0))) as catalog:
        engine = catalog._engine
        with monkeypatch.context() as patched:
            refuse(patched, kept_logs.Path, "stat", number)
            with pytest.raises(CatalogUnavailable):
                home_of(engine)
        with monkeypatch.context() as patched:
            refuse(patched, os, "lstat", number)
            with pytest.raises(CatalogUnavailable):
                check_one_name(engine)
