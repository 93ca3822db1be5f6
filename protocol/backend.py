"""The interface to stores: the methods that Spark and the command line need, whatever system holds the rows.

The embedded store (`elasticscan.store`) is one back end, a Redis or Valkey cluster (`elasticscan.backends`)
another. The cursor rule, the proof of coverage, and the division of a scan into partitions are the same for
all of them. Each back end defines what a row is, and which guarantee a scan has.
"""

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
        columns, filter: the columns to return, None for all; the filter as SQL text.
        page_rows, page_bytes: limits of a page.
        index: the access path; only for the embedded store.
        snapshot: the snapshot to read, None for the newest; only for the embedded store.
        feed: add the type, commit and time of each change to its row; only for the embedded store.
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
        """Return a sealed key of this scan for each set of slots, to divide the scan among tasks."""

    def batches(self) -> Iterator[pa.RecordBatch]: ...

    def count(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ScanStart:
    """A scan that has begun, and the data to divide it into partitions.

    Attributes:
        placement, base: the current placement, and that of the newest published topology.
        weights: the estimated bytes of each slot.
        entries: the estimated number of index entries to read; None if the scan uses no index.
    """

    scan: PartScan
    placement: Placement
    base: Placement
    weights: Weights
    entries: float | None = None


class NamedColumns(Protocol):
    """The name and columns of a table, or of one of its definitions."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema: ...


class ReadableTable(NamedColumns, Protocol):
    """A table that can be read."""

    @property
    def primary_key(self) -> tuple[str, ...]: ...

    def begin(self, read: ReadRequest) -> ScanStart: ...


class Backend(Protocol):
    """A store that Spark can read."""

    @property
    def identity(self) -> str:
        """The store's id; empty if the sealed keys themselves identify the store."""

    def table(self, name: str, schema: pa.Schema | None = None) -> ReadableTable:
        """Return a table. `schema` are the columns that the user gave, for stores that have no schema."""

    def resume(self, key: str, table: str, filter: str | None) -> PartScan:  # noqa: A002
        """Return the scan of a sealed key; `ContinuationKeyError` if it read another table or filter."""


def of_another_read() -> ContinuationKeyError:
    return ContinuationKeyError("the partition belongs to another read; load the DataFrame again")
