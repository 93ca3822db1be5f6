"""The six tables of a store's log, and every statement about them.

    head               number, digest and time of the newest entry, and the layout number
    log                the entries; none is ever changed or removed
    payload            the parts of records: values, rows, statistics
    checkpoint         packed states of the store
    topology_history   placements; `record` names the entry that seals a row
    lease              leases of scans, moves and steps of upkeep

The statements are valid in both SQLite and PostgreSQL; parameters are written as `:name`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

# `LogHome.types` replaces the names in braces.
CREATE: Final = (
    """CREATE TABLE IF NOT EXISTS head (
        id {NUMBER} PRIMARY KEY CHECK (id = 1), number {NUMBER} NOT NULL, digest {BYTES} NOT NULL,
        time {NUMBER} NOT NULL, layout {NUMBER} NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS log (
        number {NUMBER} PRIMARY KEY, time {NUMBER} NOT NULL, id {BYTES} NOT NULL, kind TEXT NOT NULL,
        format {NUMBER} NOT NULL, operation TEXT, clock {NUMBER} NOT NULL,
        table_id {NUMBER} NOT NULL, rows {NUMBER} NOT NULL, size {NUMBER} NOT NULL,
        app_id TEXT, app_version {NUMBER}, metadata TEXT, hashes {BYTES} NOT NULL,
        digest {BYTES} NOT NULL)""",
    """CREATE UNIQUE INDEX IF NOT EXISTS log_by_app
        ON log (table_id, app_id, app_version) WHERE app_id IS NOT NULL""",
    "CREATE INDEX IF NOT EXISTS log_by_time ON log (time)",
    """CREATE TABLE IF NOT EXISTS payload (
        number {NUMBER} NOT NULL, part TEXT NOT NULL, bytes {BYTES} NOT NULL, PRIMARY KEY (number, part))""",
    """CREATE TABLE IF NOT EXISTS checkpoint (
        number {NUMBER} PRIMARY KEY, fold {NUMBER} NOT NULL, digest {BYTES} NOT NULL,
        bytes {BYTES} NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS topology_history (
        number {NUMBER} PRIMARY KEY, record {NUMBER} NOT NULL, bytes {BYTES} NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS lease (
        id TEXT PRIMARY KEY, payload {BYTES} NOT NULL, until {NUMBER} NOT NULL, digest {BYTES} NOT NULL)""",
    "INSERT INTO head VALUES (1, -1, {GENESIS}, 0, 0) ON CONFLICT DO NOTHING",
)

_ENTRY = """l.number, l.time, l.digest, l.id, l.kind, l.format, l.operation, l.clock, l.table_id,
    l.rows, l.size, l.app_id, l.app_version, l.metadata, l.hashes"""

HEAD: Final = "SELECT number, digest, time, layout FROM head"
TAIL: Final = f"""SELECT h.number, h.digest, h.time, h.layout, {_ENTRY}, p.bytes
    FROM head h LEFT JOIN log l ON l.number >= :known LEFT JOIN payload p
    ON p.number = l.number AND p.part = 'value' ORDER BY l.number"""
_LINKED: Final = f"""{_ENTRY}, b.digest FROM log l LEFT JOIN log b
    ON b.number = (SELECT max(number) FROM log WHERE number < l.number)"""
ENTRIES: Final = f"""SELECT {_LINKED}
    WHERE l.number >= :first AND l.number <= :last ORDER BY l.number"""
# The same rule as `fold.is_commit`.
_IS_COMMIT: Final = "l.kind IN ('RowsCommitted', 'TableDefined') AND l.operation IS NOT NULL"
# `:table` is 0 for all tables.
_COMMITS: Final = f"""SELECT {_LINKED} WHERE {_IS_COMMIT} AND l.number > :after AND l.number <= :upto
    AND (l.table_id = :table OR :table = 0)"""
OLDEST_COMMITS: Final = f"{_COMMITS} ORDER BY l.number LIMIT :most"
NEWEST_COMMITS: Final = f"{_COMMITS} ORDER BY l.number DESC LIMIT :most"
WRITTEN_BETWEEN: Final = f"""SELECT count(*), sum(l.rows) FROM log l
    WHERE {_IS_COMMIT} AND l.table_id = :table AND l.number > :after AND l.number <= :upto"""
OF_APP: Final = "SELECT number FROM log WHERE table_id = :table AND app_id = :app_id LIMIT 1"
CHAIN: Final = f"SELECT {_ENTRY} FROM log l WHERE l.number > :after ORDER BY l.number LIMIT :most"
BY_ID: Final = "SELECT number FROM log WHERE number > :after AND id = :id"
BY_APP: Final = """SELECT number, time, rows FROM log
    WHERE table_id = :table AND app_id = :app_id AND app_version = :app_version"""
BEFORE_TIME: Final = "SELECT number FROM log WHERE time <= :time ORDER BY time DESC LIMIT 1"

INSERT_ENTRY: Final = """INSERT INTO log VALUES (
    :number, :time, :id, :kind, :format, :operation, :clock, :table, :rows, :size,
    :app_id, :app_version, :metadata, :hashes, :digest)"""
INSERT_PART: Final = "INSERT INTO payload VALUES (:number, :part, :bytes)"
MOVE_HEAD: Final = """UPDATE head SET number = :number, digest = :digest, time = :time, layout = :layout
    WHERE digest = :before"""

ROWS_OF: Final = """SELECT p.number, p.bytes FROM payload p JOIN log l ON l.number = p.number
    WHERE p.number > :after AND p.part = 'rows' AND l.table_id = :table"""
PARTS_BETWEEN: Final = "SELECT number, part, bytes FROM payload WHERE number > :after AND number <= :upto"
PART: Final = "SELECT bytes FROM payload WHERE number = :number AND part = :part"
STATISTICS: Final = f"""SELECT p.bytes, {_LINKED} JOIN payload p ON p.number = l.number
    WHERE p.part = 'statistics' AND p.number >= :first AND p.number <= :last AND l.table_id IN (:table, 0)"""

CHECKPOINTS: Final = """SELECT c.number, l.digest, c.fold FROM checkpoint c JOIN log l ON l.number = c.number
    ORDER BY c.number DESC"""
CHECKPOINT: Final = "SELECT digest, bytes FROM checkpoint WHERE number = :number"
PUT_CHECKPOINT: Final = """INSERT INTO checkpoint VALUES (:number, :fold, :digest, :bytes)
    ON CONFLICT (number) DO UPDATE SET fold = excluded.fold, digest = excluded.digest,
    bytes = excluded.bytes"""
FORGET_CHECKPOINTS: Final = "DELETE FROM checkpoint WHERE number < :before"
DROPPABLE: Final = """SELECT number, part FROM payload
    WHERE number > :after AND number <= :upto ORDER BY number LIMIT :most"""
DELETE_PART: Final = "DELETE FROM payload WHERE number = :number AND part = :part"

PUT_TOPOLOGY: Final = """INSERT INTO topology_history VALUES (:number, :record, :bytes)
    ON CONFLICT (number) DO UPDATE SET record = excluded.record, bytes = excluded.bytes"""
TOPOLOGIES: Final = f"""SELECT {_ENTRY}, t.bytes, b.digest FROM topology_history t
    LEFT JOIN log l ON l.number = t.record
    LEFT JOIN log b ON b.number = (SELECT max(number) FROM log WHERE number < l.number)
    WHERE t.number >= :first AND t.number <= :last ORDER BY t.number"""
OLDEST_TOPOLOGY: Final = "SELECT min(number) FROM topology_history"
TOPOLOGY_AT: Final = """SELECT max(t.number) FROM topology_history t JOIN log l ON l.number = t.record
    WHERE l.time <= :time"""
FORGET_TOPOLOGIES: Final = "DELETE FROM topology_history WHERE number < :before"

LEASES: Final = "SELECT id, payload, until, digest FROM lease"
LEASE: Final = f"{LEASES} WHERE id = :id"
PUT_LEASE: Final = """INSERT INTO lease VALUES (:id, :payload, :until, :digest) ON CONFLICT (id)
    DO UPDATE SET payload = excluded.payload, until = excluded.until, digest = excluded.digest"""
DELETE_LEASE: Final = "DELETE FROM lease WHERE id = :id"


# Copies. The rows of all tables are copied unchanged, so their digests stay valid. Leases are not copied,
# since their owners are processes that use the original.

Dump: TypeAlias = dict[str, list[list[Any]]]  # the rows of each table

EVERYTHING: Final = {
    name: f"SELECT * FROM {name} ORDER BY 1"
    for name in ("head", "log", "payload", "checkpoint", "topology_history")
}


def filling(rows: Dump) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (statement, values) that insert the rows of a dump into empty tables."""
    yield "DELETE FROM head", {}
    for table in EVERYTHING:
        for row in rows[table]:
            values = {f"c{number}": value for number, value in enumerate(row)}
            yield f"INSERT INTO {table} VALUES ({', '.join(f':{name}' for name in values)})", values
