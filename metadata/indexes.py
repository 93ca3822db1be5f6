"""Secondary indexes as values: the definition, the phase of the build, and the files of entries.

After the transaction that adds an index, each commit brings the runs of its own fragments. The build adds the
runs of older fragments. The index is ready when no fragment lacks a run; the log checks this, and keeps it
true until the index is dropped. A build that was killed leaves an index that is not ready. The next
build continues it: the fragments without a run are the work that is left.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

from elasticscan.metadata.manifest import Seal

SORTED, HASH = "sorted", "hash"
INDEX_KINDS = (SORTED, HASH)

# Reserved names, which no index may have: a scan accepts them in place of the name of an index, or
# `explain` shows them for access paths without an index.
AUTO, NONE, DIRECT, KEY = "auto", "none", "direct", "key"


class IndexPhase(StrEnum):
    """The phases of an index."""

    BUILDING = "building"
    READY = "ready"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """A secondary index of a table.

    Attributes:
        kind: "sorted" (by the values of the columns) or "hash" (by their hash, for equality only).
        columns: the indexed columns, the most significant first.
        include: more columns that its entries contain, so that queries need not fetch rows.
        phase: the phase of its build.
    """

    id: int
    table: int
    name: str
    kind: str
    columns: tuple[str, ...]
    include: tuple[str, ...]
    phase: IndexPhase = IndexPhase.BUILDING

    @property
    def ready(self) -> bool:
        """True if every fragment of the table has its runs, so that scans may use it."""
        return self.phase is IndexPhase.READY

    @property
    def is_over(self) -> bool:
        return self.phase is IndexPhase.DROPPED


@dataclass(frozen=True, slots=True)
class StagedRun:
    """The file of an index run: sorted entries for rows of one fragment.

    It is written and flushed, but no commit refers to it yet.

    A run belongs to a fragment, lies at the same shard and serves the same slots. So when a tablet leaves,
    its rows and its entries leave in the same step.

    `path` is below the shard's root. `rows` is the number of entries; tombstones have none.
    """

    index: int
    path: str
    rows: int
    bytes: int
    tail: int
    digest: int

    @property
    def seal(self) -> Seal:
        return Seal(self.bytes, self.tail, self.digest)

    def entered(self, id: int, fragment: int) -> IndexRun:  # noqa: A002
        """Return the run as the catalog has it after its commit."""
        return IndexRun(id=id, fragment=fragment, **asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRun(StagedRun):
    """An index run that the catalog knows."""

    id: int
    fragment: int
