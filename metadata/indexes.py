"""Secondary indexes as values: what is indexed, how far its build is, and the files that hold the entries.

From the transaction that enters an index on, commits bring their runs of it; its build gives older fragments
theirs. It is ready once none lacks them, which the log checks, and so it stays until it is dropped. A build
that was killed leaves an index that is not ready; the next build continues there, since the missing runs
alone say what remains to be done.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

from elasticscan.metadata.manifest import Seal

SORTED, HASH = "sorted", "hash"
INDEX_KINDS = (SORTED, HASH)

# The words that a scan takes in place of an index's name, and the names of the paths without an index: no
# index may have one of these names.
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
        kind: "sorted" (by the columns' values) or "hash" (by a hash of them; equality only).
        columns: the indexed columns, the most significant first.
        include: more columns that its entries carry, so that queries need not fetch rows.
        phase: how far its build is.
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
    """The file of an index run: entries of some rows of one fragment, sorted.

    It is written and flushed; no commit refers to it yet, unless it is an `IndexRun`.

    A run belongs to a fragment, lies at its shard, and serves the slots that the fragment
    serves: where a tablet leaves, its rows and its entries go in the same step.

    Attributes:
        index: the index's id.
        path: its path below the shard's root.
        rows: how many entries it has (tombstones have none).
        bytes, tail, digest: of the file, see `Seal`.
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
        """Return the run, once a catalog knows it."""
        return IndexRun(id=id, fragment=fragment, **asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRun(StagedRun):
    """An index run that the catalog knows."""

    id: int
    fragment: int
