"""Secondary indexes as values: what is indexed, and the files that hold the entries."""

from __future__ import annotations

from dataclasses import dataclass

from elasticscan.metadata.manifest import Seal
from elasticscan.metadata.statistics import Packed

SORTED, HASH = "sorted", "hash"
INDEX_KINDS = (SORTED, HASH)

# What a scan is told in place of an index's name, and how the path without an index is called: no index
# may have one of these names.
AUTO, NONE, DIRECT = "auto", "none", "direct"


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """A secondary index of a table.

    Attributes:
        kind: "sorted" (by the columns' values) or "hash" (by a hash of them; equality only).
        columns: the indexed columns, the most significant first.
        include: more columns that its entries carry, so that queries need not fetch rows.
        ready: whether every fragment of the table has its runs, so that scans may use it.
    """

    id: int
    table: int
    name: str
    kind: str
    columns: tuple[str, ...]
    include: tuple[str, ...]
    ready: bool


@dataclass(frozen=True, slots=True)
class StagedRun:
    """An index run that is written and flushed: entries of some rows of one fragment, sorted.

    A run belongs to a fragment, lies at its shard, and speaks for the slots that the fragment
    speaks for: where a tablet leaves, its rows and its entries go in the same step.

    Attributes:
        index: the index's id.
        path: its path below the shard's root.
        rows: how many entries it has (tombstones have none).
        bytes, tail, digest: of the file, see `Seal`.
        histogram: packed `KeyHistogram` of the entries' index keys.
    """

    index: int
    path: str
    rows: int
    bytes: int
    tail: int
    digest: int
    histogram: Packed

    @property
    def seal(self) -> Seal:
        return Seal(self.bytes, self.tail, self.digest)


@dataclass(frozen=True, slots=True)
class IndexRun:
    """An index run that the catalog knows."""

    id: int
    index: int
    fragment: int
    path: str
    rows: int
    bytes: int
    tail: int
    digest: int

    @property
    def seal(self) -> Seal:
        return Seal(self.bytes, self.tail, self.digest)
