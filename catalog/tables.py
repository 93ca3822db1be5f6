"""The catalog's SQL tables, and the steps that bring an older catalog to this version."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    select,
    text,
    update,
)

FORMAT_VERSION = 3

metadata = MetaData()

# SQLite only numbers rows by itself when the type is plain INTEGER.
RowId = BigInteger().with_variant(Integer, "sqlite")

store_state = Table(
    "store_state",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("format_version", Integer, nullable=False),
    Column("store_id", String(32), nullable=False),
    Column("slots", Integer, nullable=False),
    Column("hash", String(16), nullable=False),
    Column("retention_seconds", Float, nullable=False),
    Column("created_at", Float, nullable=False),
    # Grows with every change of placement or of the fragments that serve a slot, except for
    # plain commits, which no earlier snapshot can see.
    Column("layout", BigInteger, nullable=False),
    Column("last_commit", BigInteger, nullable=False),
    Column("next_tablet", Integer, nullable=False),
    # Which of all copies of the catalog this is, and where it lay when that was settled.
    Column("incarnation", String(32), nullable=False),
    Column("home", Text),
)

seal_keys = Table(
    "seal_keys",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("secret", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False),
)

shards = Table(
    "shards",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String(64), nullable=False),
    Column("root", Text, nullable=False),
    Column("draining", Boolean, nullable=False),
    Column("removed_at", Float),
)

tablets = Table(
    "tablets",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("slot_start", Integer, nullable=False),
    Column("slot_end", Integer, nullable=False),
    Column("shard_id", Integer, ForeignKey("shards.id"), nullable=False),
    Column("epoch", BigInteger, nullable=False),
)

topologies = Table(
    "topology_history",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("created_at", Float, nullable=False),
    Column("reason", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

tables = Table(
    "tables",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("name", String(64), nullable=False),
    Column("schema", LargeBinary, nullable=False),
    Column("primary_key", Text, nullable=False),
    Column("shard_key", Text, nullable=False),
    Column("compression", String(8)),
    Column("created_commit", BigInteger, nullable=False),
    Column("oldest_snapshot", BigInteger, nullable=False),
    Column("dropped_at", Float),
    Column("retention_seconds", Float),  # the store's, where none is given
)

commits = Table(
    "commits",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("table_id", BigInteger, ForeignKey("tables.id"), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("app_id", Text),
    Column("app_version", BigInteger),
    Column("app_content", Text),
    UniqueConstraint("table_id", "app_id", "app_version"),
    Index("commits_by_time", "created_at"),
)

fragments = Table(
    "fragments",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("table_id", BigInteger, ForeignKey("tables.id"), nullable=False),
    Column("shard_id", Integer, ForeignKey("shards.id"), nullable=False),
    Column("path", Text, nullable=False),
    Column("slots", Text, nullable=False),
    Column("slots_written", Integer, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("is_unique", Boolean, nullable=False),
    Column("tombstones", BigInteger, nullable=False),
    Column("versioned", Boolean, nullable=False),
    Column("tail", BigInteger, nullable=False),
    Column("digest", BigInteger, nullable=False),
    Column("min_commit", BigInteger, nullable=False),
    Column("max_commit", BigInteger, nullable=False),
    Column("dropped_at", Float),
    Index("fragments_by_table", "table_id", "dropped_at"),
)

# What is known of a fragment's values; apart, since few readers of fragments want it.
statistics = Table(
    "fragment_statistics",
    metadata,
    Column("fragment_id", BigInteger, ForeignKey("fragments.id"), primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)

indexes = Table(
    "indexes",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("table_id", BigInteger, ForeignKey("tables.id"), nullable=False),
    Column("name", String(64), nullable=False),
    Column("kind", String(8), nullable=False),
    Column("columns", Text, nullable=False),
    Column("include", Text, nullable=False),
    Column("ready", Boolean, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("dropped_at", Float),
)

# A run lies at its fragment's shard and speaks for its fragment's slots.
index_runs = Table(
    "index_runs",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("index_id", BigInteger, ForeignKey("indexes.id"), nullable=False),
    Column("fragment_id", BigInteger, ForeignKey("fragments.id"), nullable=False),
    Column("path", Text, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("tail", BigInteger, nullable=False),
    Column("digest", BigInteger, nullable=False),
    Column("histogram", LargeBinary, nullable=False),
    Column("dropped_at", Float),
    Index("index_runs_by_fragment", "fragment_id", "index_id"),
)

# Commits [first, last] that were in a newer catalog, which was lost: their numbers are not used again.
lost_commits = Table(
    "lost_commits",
    metadata,
    Column("first", RowId, primary_key=True, autoincrement=False),
    Column("last", BigInteger, nullable=False),
)

# Files that garbage collection is about to take: no commit may refer to them any more.
condemned = Table(
    "condemned_files",
    metadata,
    Column("shard_id", Integer, primary_key=True, autoincrement=False),
    Column("path", String(255), primary_key=True),
)

moves = Table(
    "moves",
    metadata,
    Column("tablet_id", Integer, ForeignKey("tablets.id"), primary_key=True, autoincrement=False),
    Column("source", Integer, nullable=False),
    Column("target", Integer, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("owner", Text, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("heartbeat_at", Float, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("table_id", BigInteger, ForeignKey("tables.id"), nullable=False),
    Column("snapshot", BigInteger, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("expires_at", Float, nullable=False),
)


def _to_format_2(connection: Connection) -> None:
    """Format 2: secondary indexes, statistics of fragments (older ones have none), retention by table."""
    metadata.create_all(connection, tables=[statistics, indexes, index_runs])
    connection.execute(text("ALTER TABLE tables ADD COLUMN retention_seconds FLOAT"))


def _to_format_3(connection: Connection) -> None:
    """Format 3: what a stream's micro-batch stood for; commits are made at whole microseconds."""
    connection.execute(text("ALTER TABLE commits ADD COLUMN app_content TEXT"))
    found = connection.execute(select(commits.c.number, commits.c.created_at)).all()
    exact = [{"commit": row.number, "made": round(row.created_at, 6)} for row in found]
    if exact:
        step = update(commits).where(commits.c.number == bindparam("commit"))
        connection.execute(step.values(created_at=bindparam("made")), exact)


# Step N brings a catalog of format N to format N + 1, inside one transaction.
MIGRATIONS: Mapping[int, Callable[[Connection], None]] = {1: _to_format_2, 2: _to_format_3}
