"""Secondary indexes as values: what is indexed, how far its build is, and the files that hold the entries.

The phases of an index are a table, each named by what is true in it:

    phase       commits bring their runs    older fragments have theirs    scans use it
    building    yes                         some, or none                  no
    ready       yes                         all                            yes
    dropped     no                          garbage, to be collected       no; final

    building ──completed──> ready ──dropped──> dropped
     │  │ ^                                      ^
     │  └─┘ runs_missing                         │
     └───────────── dropped, refused ────────────┘

A build that was killed leaves an index in `building`; the next build continues there, since
the missing runs alone say what remains to be done. `refused` means that some rows cannot be indexed; of two
builders, one may still meet such rows when the other has completed the index without them: it stays ready.

The table drives, as that of moves does: every change of an index goes through `IndexInfo.after`, and the one
writer of what is kept of indexes (`transition_index` in `store/writing/indexing.py`) calls that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from elasticscan.metadata.manifest import Seal

SORTED, HASH = "sorted", "hash"
INDEX_KINDS = (SORTED, HASH)

# The words that a scan takes in place of an index's name, and the names of the paths without an index: no
# index may have one of these names.
AUTO, NONE, DIRECT, KEY = "auto", "none", "direct", "key"


class IndexPhase(StrEnum):
    """The phases of an index, each named by the fact that holds in it."""

    BUILDING = "building"
    READY = "ready"
    DROPPED = "dropped"


class IndexEvent(StrEnum):
    """The events of an index.

    `RUNS_MISSING`: a builder found fragments without a run. `COMPLETED`: every fragment has its run, or had
    it before. `REFUSED`: existing rows cannot be indexed. `DROPPED`: the index or its table was dropped.
    """

    RUNS_MISSING = "runs_missing"
    COMPLETED = "completed"
    REFUSED = "refused"
    DROPPED = "dropped"


INDEX_TRANSITIONS: Final[Mapping[tuple[IndexPhase, IndexEvent], IndexPhase]] = MappingProxyType(
    {
        (IndexPhase.BUILDING, IndexEvent.RUNS_MISSING): IndexPhase.BUILDING,
        (IndexPhase.BUILDING, IndexEvent.COMPLETED): IndexPhase.READY,
        (IndexPhase.BUILDING, IndexEvent.REFUSED): IndexPhase.DROPPED,
        (IndexPhase.BUILDING, IndexEvent.DROPPED): IndexPhase.DROPPED,
        (IndexPhase.READY, IndexEvent.COMPLETED): IndexPhase.READY,
        (IndexPhase.READY, IndexEvent.REFUSED): IndexPhase.READY,  # those rows went meanwhile
        (IndexPhase.READY, IndexEvent.DROPPED): IndexPhase.DROPPED,
    }
)


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

    def after(self, event: IndexEvent) -> IndexInfo:
        """Return the index after an event. That the event can happen in its phase is up to us alone."""
        phase = INDEX_TRANSITIONS.get((self.phase, event))
        assert phase is not None, f"index {self.name!r} in phase {self.phase} cannot take {event}"
        return replace(self, phase=phase)


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
