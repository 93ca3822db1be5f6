"""A process without free files or memory is an error of its own, and says nothing about the store."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from elasticscan.base.resources import lack_in
from elasticscan.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(tmp_path / "s.store", ["s1", "s2"], tablets=4, slots=16) as made:
        made.create_table("t", pa.schema([("id", pa.int64()), ("s", pa.string())]), ["id"])
        made.table("t").upsert(pa.table({"id": range(100), "s": ["x"] * 100}))
        yield made


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


def test_a_process_without_free_files_is_reported_so_by_the_catalog(store: Store) -> None:
    child = """if True:
        import os, resource, sys, elasticscan
        from elasticscan.errors import OutOfResources
        store = elasticscan.open(sys.argv[1])
        tables = [table.name for table in store.tables()]
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        for free in (0, 1):
            held = []
            try:
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                pass
            for number in held[:free]:
                os.close(number)
            try:
                elasticscan.open(sys.argv[1])
            except OutOfResources as error:
                print(error.fields["what"])
            for number in held[free:]:
                os.close(number)
        print(elasticscan.open(sys.argv[1]).table("t").scan().count())
    """
    ended = subprocess.run(
        [sys.executable, "-c", child, store.uri], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stdout.split() == ["files", "files", "100"], ended.stderr
