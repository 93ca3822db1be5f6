"""The catalog's SQL tables.

Every table but `group_digests` is *sealed*: each row ends in `row_digest`, and `info["groups"]` says to
which groups its rows belong. `elasticscan.catalog.sealed` keeps both, and nothing else may change a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    func,
    literal_column,
)

FORMAT_VERSION = 1

metadata = MetaData()
of_servers = MetaData()  # what a database server has besides


@dataclass(frozen=True, slots=True)
class Grouping:
    """A partition of a table's rows into groups whose count and sum of digests are kept.

    Attributes:
        kind: the groups' name.
        by: at most two columns; rows that are equal in them are one group.
        live: rows with `dropped_at` are in groups of their own, since most readers leave them out.
        only: (column, value); other rows are in none of these groups.
    """

    kind: str
    by: tuple[str, ...] = ()
    live: bool = False
    only: tuple[str, Any] | None = None


def dropped_kind(kind: str) -> str:
    return f"dropped {kind}"


def kinds_of(grouping: Grouping) -> tuple[str, ...]:
    return (grouping.kind, dropped_kind(grouping.kind)) if grouping.live else (grouping.kind,)


def _sealed_table(name: str, *parts: Any, groups: tuple[Grouping, ...], saves_work: bool = False) -> Table:
    """Define a table whose rows are sealed; one that only `saves_work` may lack any of them."""
    # SQL wants columns before the constraints and indexes that name them.
    columns = [part for part in parts if isinstance(part, Column)]
    constraints = [part for part in parts if not isinstance(part, Column)]
    digest = Column("row_digest", BigInteger, nullable=False)
    return Table(
        name, metadata, *columns, digest, *constraints, info={"groups": groups, "saves_work": saves_work}
    )


# A plain INTEGER key is the row's place itself in SQLite, so there is no second tree to go wrong.
RowId = BigInteger().with_variant(Integer, "sqlite")

COMMITS = Grouping("commits", by=("table_id",))
FRAGMENTS = Grouping("fragments", by=("table_id", "shard_id"), live=True)
OVERWRITES = Grouping("overwrites", by=("table_id",), only=("is_floor", 1))

# Most commits have no key of an application, and need no entry in the index of those; nor do those that
# are no overwrite need one.
_APP_ID, _IS_FLOOR = Column("app_id", Text), Column("is_floor", SmallInteger, nullable=False)
# Catalogs that were made before have no such index, and find the same without it.
_ONE: ColumnElement[int] = literal_column("1")
FLOORS = Index("commits_floors", "table_id", "number", sqlite_where=_IS_FLOOR == _ONE)

# How many rows each group has, and the sum of their digests modulo 2^64, as a signed number.
group_digests = Table(
    "group_digests",
    metadata,
    Column("kind", String(32), primary_key=True),
    Column("part", BigInteger, primary_key=True, autoincrement=False),
    Column("shard", BigInteger, primary_key=True, autoincrement=False),
    Column("rows", BigInteger, nullable=False),
    Column("total", BigInteger, nullable=False),
)

store_state = _sealed_table(
    "store_state",
    Column("id", Integer, primary_key=True),
    Column("format_version", Integer, nullable=False),
    Column("store_id", String(32), nullable=False),
    Column("slots", Integer, nullable=False),
    Column("hash", String(16), nullable=False),
    Column("retention_seconds", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    # Grows with every change of placement or of the fragments that serve a slot, except for
    # plain commits, which no earlier snapshot can see.
    Column("layout", BigInteger, nullable=False),
    Column("last_commit", BigInteger, nullable=False),
    # Since this layout tables, indexes, shards and placement are what they were.
    Column("stable_since", BigInteger, nullable=False),
    # A small digest of these three columns alone, which are read with every page.
    Column("versions_digest", BigInteger, nullable=False),
    # Ids are never used twice.
    Column("next_tablet", BigInteger, nullable=False),
    Column("next_table", BigInteger, nullable=False),
    Column("next_fragment", BigInteger, nullable=False),
    Column("next_index", BigInteger, nullable=False),
    Column("next_run", BigInteger, nullable=False),
    Column("newest_topology", BigInteger, nullable=False),
    # When the newest commit was made, and the trusted time (`believed_time.py`).
    Column("newest_commit_at", Double, nullable=False),
    Column("believed_at", Double, nullable=False),
    Column("claimed_at", Double),
    # The sum of the digests of all rows of group_digests.
    Column("groups_total", BigInteger, nullable=False),
    # The id of this copy of the catalog, and the place of its file when the id was given.
    Column("incarnation", String(32), nullable=False),
    Column("home", Text),
    groups=(),
)

seal_keys = _sealed_table(
    "seal_keys",
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("purpose", String(8), nullable=False),  # keys, offsets
    Column("secret", LargeBinary, nullable=False),
    Column("created_at", Double, nullable=False),
    groups=(Grouping("seal_keys"),),
)

shards = _sealed_table(
    "shards",
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String(64), nullable=False),
    Column("root", Text, nullable=False),
    Column("draining", SmallInteger, nullable=False),
    Column("removed_at", Double),
    groups=(Grouping("shards"),),
)

tablets = _sealed_table(
    "tablets",
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("slot_start", Integer, nullable=False),
    Column("slot_end", Integer, nullable=False),
    Column("shard_id", Integer, ForeignKey("shards.id"), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    groups=(Grouping("tablets"),),
)

topologies = _sealed_table(
    "topology_history",
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("created_at", Double, nullable=False),
    Column("reason", Text, nullable=False),
    # False only for the newest topology, while the plan that moves its tablets goes on.
    Column("published", SmallInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    groups=(Grouping("topologies"),),
)

tables = _sealed_table(
    "tables",
    Column("id", RowId, primary_key=True, autoincrement=False),
    Column("name", String(64), nullable=False),
    Column("schema", LargeBinary, nullable=False),
    # Of a definition that is not the first: its number, and what became of the columns.
    Column("past", Text),
    Column("primary_key", Text, nullable=False),
    Column("shard_key", Text, nullable=False),
    Column("compression", String(8)),
    Column("created_commit", BigInteger, nullable=False),
    Column("oldest_snapshot", BigInteger, nullable=False),
    Column("dropped_at", Double),
    Column("retention_seconds", Double),  # the store's, where none is given
    groups=(Grouping("tables"),),
)

commits = _sealed_table(
    "commits",
    Column("number", RowId, primary_key=True, autoincrement=False),
    Column("table_id", BigInteger, ForeignKey("tables.id"), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("rows", BigInteger, nullable=False),
    # Which commit of its table this is, from 1 on, and the rows of all up to it: so a part of a history
    # can be proved to have no gap, and measured, without reading all of it.
    Column("ordinal", BigInteger, nullable=False),
    Column("rows_upto", BigInteger, nullable=False),
    # The same of bytes, as files hold them, with index runs.
    Column("bytes", BigInteger, nullable=False),
    Column("bytes_upto", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("user_metadata", Text),
    _APP_ID,
    Column("app_version", BigInteger),
    Column("app_content", Text),
    # 1 for an overwrite that a snapshot which is kept may begin with.
    _IS_FLOOR,
    Index(
        "commits_by_application",
        *("table_id", "app_id", "app_version"),
        unique=True,
        sqlite_where=_APP_ID.is_not(None),
    ),
    Index("commits_by_table", "table_id", "number"),
    Index("commits_by_time", "created_at"),
    FLOORS,
    groups=(COMMITS, OVERWRITES),
)

fragments = _sealed_table(
    "fragments",
    Column("id", RowId, primary_key=True, autoincrement=False),
    Column("table_id", BigInteger, ForeignKey("tables.id"), nullable=False),
    Column("shard_id", Integer, ForeignKey("shards.id"), nullable=False),
    Column("path", Text, nullable=False),
    Column("slots", Text, nullable=False),
    Column("slots_written", Integer, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("is_unique", SmallInteger, nullable=False),
    Column("tombstones", BigInteger, nullable=False),
    Column("versioned", SmallInteger, nullable=False),
    Column("tail", BigInteger, nullable=False),
    Column("digest", BigInteger, nullable=False),
    Column("min_commit", BigInteger, nullable=False),
    Column("max_commit", BigInteger, nullable=False),
    Column("superseded_at", BigInteger),
    Column("dropped_at", Double),
    Index("fragments_by_table", "table_id", "dropped_at"),
    groups=(FRAGMENTS,),
)

# What is known of a fragment's values; apart, since few readers of fragments want it.
statistics = _sealed_table(
    "fragment_statistics",
    Column("fragment_id", RowId, ForeignKey("fragments.id"), primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
    groups=(Grouping("statistics"),),
    saves_work=True,
)

indexes = _sealed_table(
    "indexes",
    Column("id", RowId, primary_key=True, autoincrement=False),
    Column("table_id", BigInteger, ForeignKey("tables.id"), nullable=False),
    Column("name", String(64), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("columns", Text, nullable=False),
    Column("include", Text, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("dropped_at", Double),
    groups=(Grouping("indexes", by=("table_id",)),),
)

# A run lies at its fragment's shard, serves its fragment's slots, and is dropped with it.
index_runs = _sealed_table(
    "index_runs",
    Column("id", RowId, primary_key=True, autoincrement=False),
    Column("table_id", BigInteger, ForeignKey("tables.id"), nullable=False),
    Column("index_id", BigInteger, ForeignKey("indexes.id"), nullable=False),
    Column("fragment_id", BigInteger, ForeignKey("fragments.id"), nullable=False),
    Column("shard_id", Integer, nullable=False),
    Column("path", Text, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("tail", BigInteger, nullable=False),
    Column("digest", BigInteger, nullable=False),
    Column("dropped_at", Double),
    Index("index_runs_by_fragment", "fragment_id", "index_id"),
    Index("index_runs_by_table", "table_id", "dropped_at"),
    groups=(Grouping("index_runs", by=("table_id",), live=True),),
)

# Apart, as statistics of fragments are.
histograms = _sealed_table(
    "run_histograms",
    Column("run_id", RowId, ForeignKey("index_runs.id"), primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
    groups=(Grouping("histograms"),),
    saves_work=True,
)

# Commits [first, last] that were in a newer catalog, which was lost: their numbers are not used again.
lost_commits = _sealed_table(
    "lost_commits",
    Column("first", RowId, primary_key=True, autoincrement=False),
    Column("last", BigInteger, nullable=False),
    groups=(Grouping("lost_commits"),),
)

# Files that garbage collection is about to take: no commit may refer to them any more.
condemned = _sealed_table(
    "condemned_files",
    Column("file", String(300), primary_key=True),  # shard/path
    groups=(Grouping("condemned"),),
)

moves = _sealed_table(
    "moves",
    Column("tablet_id", Integer, ForeignKey("tablets.id"), primary_key=True, autoincrement=False),
    Column("source", Integer, nullable=False),
    Column("target", Integer, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("owner", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("heartbeat_at", Double, nullable=False),
    groups=(Grouping("moves"),),
)

# Steps of upkeep under way, each by one owner.
upkeep_steps = _sealed_table(
    "upkeep_steps",
    Column("target", String(64), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("heartbeat_at", Double, nullable=False),
    groups=(Grouping("upkeep_steps"),),
)

# What upkeep has done since the store was made.
upkeep_done = _sealed_table(
    "upkeep_done",
    Column("target", String(64), primary_key=True),
    Column("steps", BigInteger, nullable=False),
    Column("pieces", BigInteger, nullable=False),
    Column("bytes_read", BigInteger, nullable=False),
    Column("bytes_written", BigInteger, nullable=False),
    Column("newest_at", Double, nullable=False),
    groups=(Grouping("upkeep_done"),),
)

# Leases, and reports of scans, which keep nothing: `reports`.
REPORT = "report:"  # how the purpose of a report begins
leases = _sealed_table(
    "leases",
    Column("id", String(32), primary_key=True),
    Column("table_id", BigInteger, ForeignKey("tables.id"), nullable=False),
    Column("snapshot", BigInteger, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    groups=(Grouping("leases", by=("table_id",)),),
)

# A lease without an end, by a name.
tags = _sealed_table(
    "tags",
    Column("id", String(90), primary_key=True),  # table/name
    Column("table_id", BigInteger, ForeignKey("tables.id"), nullable=False),
    Column("name", String(64), nullable=False),
    Column("snapshot", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    groups=(Grouping("tags", by=("table_id",)),),
)

# Changes of these rows alone move no version, so shards do not know of them. What begins or ends to serve
# moves one by itself; that a file is gone is seen in its place; leases, moves and steps end by themselves,
# and its holder gets an error if a catalog lacks it. All others are numbered: `StateTx.number_changes`.
PASSING = frozenset(
    table.name
    for table in (
        *(fragments, statistics, index_runs, histograms, condemned, topologies),
        *(leases, moves, upkeep_steps, upkeep_done),
    )
)

# The transactions that were committed of late, by ids of their own (`server.py`): no facts, so no digest.
outcomes = Table(
    "outcomes",
    of_servers,
    Column("id", String(32), primary_key=True),
    Column("made_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)


def index_same_rows_at_servers() -> None:
    """Let PostgreSQL index the same rows; others need not load what SQLAlchemy has for it."""
    for index in (index for table in metadata.tables.values() for index in table.indexes):
        index.kwargs["postgresql_where"] = index.dialect_options["sqlite"]["where"]
