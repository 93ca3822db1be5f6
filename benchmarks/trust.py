"""What checksums cost: the same work with them and without, by turns in one run.

"With" proves every segment each time that it is read, also what a reader has proven before: the most that it
can cost.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from data import make_store, parquet_reader
from measure import Results, by_turns

from elasticscan.storage.sealed_file import SEGMENT_BYTES, SealedFile, SealingSink
from elasticscan.store import Store

_PROVE, _CHECK = SealedFile._prove, SealingSink._check


def _never(self: SealedFile, data: memoryview, first: int) -> None:
    """Skip the check of bytes."""


def _count(self: SealingSink, view: memoryview) -> None:
    """Return an empty checksum for each segment: a reader wants as many as there are segments."""
    end = self._length + len(view)
    self._checksums += [0] * (end // SEGMENT_BYTES - self._length // SEGMENT_BYTES)


def read_with(checksums: bool) -> None:
    """From now on this process proves what it reads, or does not."""
    SealedFile._prove = _PROVE if checksums else _never  # type: ignore[method-assign]


@contextmanager
def writing_without() -> Iterator[None]:
    # A table is tried out when it is made, and what was tried is read back: unproven, too.
    read_with(False)
    SealingSink._check = _count  # type: ignore[method-assign]
    try:
        yield
    finally:
        SealingSink._check = _CHECK  # type: ignore[method-assign]
        SealedFile._prove = _PROVE  # type: ignore[method-assign]


def bench_trust(results: Results, source: Path, place: Path, work: Path, rounds: int) -> None:
    """Measure loading and Python scans, with checksums against without."""

    def load() -> None:
        make_store(work / "sealed", parquet_reader(source)).close()
        shutil.rmtree(work / "sealed")

    def load_without() -> None:
        with writing_without():
            load()

    def scan(checksums: bool) -> None:
        read_with(checksums)
        with Store.open(place) as store:
            for page in store.table("t").scan():
                pc.sum(page.rows.column("id"))
                pc.sum(page.rows.column("v"))
        read_with(True)

    took = by_turns(max(1, rounds - 1), load=load, without=load_without)
    results.at_least("loading with checksums / without", took["without"] / took["load"], 0.9)
    took = by_turns(2 * rounds, scan=lambda: scan(True), without=lambda: scan(False))
    results.at_least("Python scan that proves all / nothing", took["without"] / took["scan"], 0.6)
    with Store.open(place) as store:
        SealedFile._prove = _PROVE  # type: ignore[method-assign]

        def again(checksums: bool) -> None:
            SealedFile._prove = _PROVE if checksums else _never  # type: ignore[method-assign]
            for page in store.table("t").scan():
                pc.sum(page.rows.column("id"))

        took = by_turns(2 * rounds, scan=lambda: again(True), without=lambda: again(False))
        results.at_least("… of a table that was proven before / nothing", took["without"] / took["scan"], 0.9)
    SealedFile._prove = _PROVE  # type: ignore[method-assign]


def bench_spark_trust(results: Results, spark: Any, place: Path, rounds: int) -> None:
    """Measure a Spark scan that proves every byte, and one that proves none."""
    from spark_unproven import ProvenSource, UnprovenSource  # noqa: PLC0415 - needs Spark

    for kind in (ProvenSource, UnprovenSource):
        spark.dataSource.register(kind)

    def scan(kind: str) -> None:
        reader = spark.read.format(kind).options(store=str(place), table="t")
        reader.load().write.format("noop").mode("overwrite").save()

    took = by_turns(
        max(rounds, 9), warmups=3, proven=lambda: scan("proven"), unproven=lambda: scan("unproven")
    )
    results.at_least("Spark scan that proves all / nothing", took["unproven"] / took["proven"], 0.93)
