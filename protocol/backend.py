"""The door to stores: what Spark and the terminal need of one, whatever it is that holds its rows.

The embedded store is one back end (`elasticscan.store`), a Redis or Valkey cluster another (`elasticscan.backends`).
The cursor rule, the proof of coverage, the cutting of a scan into partitions and the reading of one are the
same for all of them. What is rows, and what is promised of them, a back end says itself.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from elasticscan.base.errors import ContinuationKeyError
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS
from elasticscan.topology import Placement, SlotSet

Weights = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A read of a table, as its user asked for it.

    Attributes:
        columns, filter: what it returns, None for all columns; the filter as SQL text.
        page_rows, page_bytes: limits of a page.
        index: the access path, in the embedded store alone.
        snapshot: what to read at, in the embedded store alone; None for the newest.
        feed: rows say what changed, in which commit, and when; likewise.
    """

    columns: Sequence[str] | None
    filter: str | None = None
    page_rows: int = DEFAULT_PAGE_ROWS
    page_bytes: int = DEFAULT_PAGE_BYTES
    index: str = "auto"
    snapshot: int | str | datetime | None = None
    feed: bool = False


class PartScan(Protocol):
    """A scan, or a part of one."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def slots(self) -> SlotSet:
        """All slots of the scan, read or not."""

    def parts(self, slots: Sequence[SlotSet]) -> list[str]:
        """Return sealed keys of this scan over some of its slots each: how it is divided among tasks."""

    def batches(self) -> Iterator[pa.RecordBatch]: ...

    def count(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ScanStart:
    """A scan that has begun, and what it is divided by.

    Attributes:
        placement, base: where slots are now, and where the newest topology has them.
        weights: about how many bytes each slot holds.
        entries: how many entries of an index the scan looks at; None where it reads rows alone.
    """

    scan: PartScan
    placement: Placement
    base: Placement
    weights: Weights
    entries: float | None = None


class NamedColumns(Protocol):
    """The columns of a table, or of a definition of it."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema: ...


class ReadableTable(NamedColumns, Protocol):
    """A table as reads know it."""

    @property
    def primary_key(self) -> tuple[str, ...]: ...

    def begin(self, read: ReadRequest) -> ScanStart: ...


class Backend(Protocol):
    """A store that Spark can read."""

    @property
    def identity(self) -> str:
        """The store's id; empty where the keys of scans say themselves which store they belong to."""

    def table(self, name: str, schema: pa.Schema | None = None) -> ReadableTable:
        """Return a table. `schema` is what a user says its columns are, where the store does not know."""

    def resume(self, key: str, table: str, filter: str | None) -> PartScan:  # noqa: A002
        """Return the scan that a sealed key stands for.

        Raises:
            ContinuationKeyError: it is not one of a read of this table with this filter.
        """


def of_another_read() -> ContinuationKeyError:
    return ContinuationKeyError("the partition belongs to another read; load the DataFrame again")
