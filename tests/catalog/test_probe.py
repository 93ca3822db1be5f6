"""Catalogs whose disk fails: SQLite takes that for damage, and the user is reported of the disk."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import event

from elasticscan.base import resources
from elasticscan.base.errors import CatalogUnavailable, OutOfResources, StoreDamaged
from elasticscan.catalog import probe
from elasticscan.catalog.failures import decoding
from elasticscan.catalog.probe import is_sound, why_unreadable
from elasticscan.store import Store
from tests.catalog.test_opening import create, opened, use

SCHEMA = pa.schema([("k", pa.int64())])
FILE = "catalog.db"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    place = tmp_path / "store"
    with Store.create(place, ["a", "b"], tablets=4, slots=16, upkeep="off") as made:
        made.create_table("t", SCHEMA, ["k"]).upsert(pa.table({"k": range(50)}, schema=SCHEMA))
    return place


def deface(file: Path) -> None:
    """Overwrite every page but the first."""
    content = bytearray(file.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    file.write_bytes(content)


def fail_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(probe.os, "pread", fails)


USES: dict[str, Callable[[Store, Path], Any]] = {
    "scan": lambda store, _: store.table("t").scan().to_table(),
    "write": lambda store, _: store.table("t").upsert(pa.table({"k": [1]}, schema=SCHEMA)),
    "verify": lambda store, _: [each.problem for each in store.verify()],
    "gc": lambda store, _: store.collect_garbage(),
    "backup": lambda store, place: store.backup(place / "backup"),
    "status": lambda store, _: store.status(),
}


@pytest.mark.parametrize("use_it", USES.values(), ids=USES)
def test_a_disk_that_fails_is_reported_and_no_damage(
    use_it: Callable[[Store, Path], Any], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(store, upkeep="off") as it:
        it.context.catalog.look_afresh()
        deface(store / FILE)  # what SQLite makes of it is what it makes of a read that fails
        fail_reads(monkeypatch)
        with pytest.raises(CatalogUnavailable, match="its disk, mount or network fails") as raised:
            use_it(it, tmp_path)
        assert raised.value.fields["errno"] == errno.EIO


def test_a_catalog_whose_disk_fails_is_not_opened_as_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path / FILE)
    deface(tmp_path / FILE)
    with pytest.raises(StoreDamaged):
        use(tmp_path / FILE)
    fail_reads(monkeypatch)
    with pytest.raises(CatalogUnavailable, match="Input/output error"):
        use(tmp_path / FILE)


def test_a_failure_of_a_moment_is_no_damage(tmp_path: Path) -> None:
    create(tmp_path / FILE)
    with opened(tmp_path / FILE) as catalog:
        failures = [sqlite3.DatabaseError("database disk image is malformed")]
        failures[0].sqlite_errorcode = sqlite3.SQLITE_CORRUPT  # type: ignore[misc]

        @event.listens_for(catalog._engine, "do_execute")
        def fail(*_: Any) -> None:
            if failures:
                raise failures.pop()

        with (
            pytest.raises(CatalogUnavailable, match="for a moment: its disk"),
            catalog.writing() as tx,
        ):
            tx.bump_layout()
        assert not failures
        with catalog.writing() as tx:
            tx.bump_layout()


def test_a_process_without_memory_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreDamaged), decoding("something"):  # bytes that ask for too much
        raise MemoryError
    monkeypatch.setattr(resources, "_SOME_BYTES", 1 << 60)
    with pytest.raises(OutOfResources), decoding("something"):
        raise MemoryError


def test_a_look_at_files_reads_them_whole_and_leaves_locks_alone(tmp_path: Path) -> None:
    file = tmp_path / FILE
    create(file)
    with opened(file) as catalog, catalog.writing() as tx:
        tx.bump_layout()
        assert why_unreadable(file) is None and is_sound(file)
        other = sqlite3.connect(file, timeout=0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.close()
    deface(file)
    assert why_unreadable(file) is None and not is_sound(file)
    assert why_unreadable(tmp_path / "none") is None
