"""The catalog: a store's log, the state that is folded from it, and transactions over both.

    entry        a row of the log, chained to the one before by its digest (`LogEntry`)
    record       the content of an entry: one change of the store, a frozen value of `metadata.records`
    state        the fold of all records (`StoreState`, `TableState`)
    home         the database that stores the log: SQLite or PostgreSQL (`SqliteHome`, `PostgresHome`)
    transaction  one state, and the records that are appended to it (`Tx`)

What it promises:

- **One order.** Records get their numbers under the log's lock, so the order of numbers is the order in which
  they become visible. A snapshot is the number of a commit.
- **All or nothing.** Files are written and flushed first; a transaction then refers to them. A process that
  dies before its transaction leaves only files that no record names.
- **Damage is found.** Each entry's digest covers the digest of the entry before it, and the parts of the
  record in other tables. A reader detects altered, lost and repeated entries and never returns wrong rows.
- **The log does not go back.** A process that has seen (number, digest) rejects an older copy of the log.
- **No single clock is trusted.** Each record's time is later than the one before. Leases and retention end by
  the store's own time (`store_time`), or by the server's clock if the log is at a server.
- **A lost answer is not a lost commit.** The log is searched for the commit's id. Only if the server stays
  unreachable, an error is raised: `CommitUnknown` if the commit may be in the log.

The modules are listed in `docs/architecture.md`; begin with `state`, `fold` and `catalog`.

The design is that of KDI's log: a commit is acknowledged once its record is durable, and the state in memory
is rebuilt by reading the log. The log does not contain the rows of large commits (they are in Arrow files,
`elasticscan.storage`) or decide where tablets go (`elasticscan.store.moves.balancing`).
"""

from elasticscan.catalog.catalog import Catalog
from elasticscan.catalog.entries import Append
from elasticscan.catalog.failures import Interrupted, retry_interrupted
from elasticscan.catalog.leases import Lease
from elasticscan.catalog.opening import copy_catalog, create_catalog, holds_store, open_catalog
from elasticscan.catalog.secrets import (
    add_secrets,
    forget_secrets,
    key_seconds,
    offset_keys,
    seal_keys,
    take_incarnation,
)
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.table_state import InlineCommit, RemovedFile, Tag
from elasticscan.catalog.tables import Dump
from elasticscan.catalog.topology_history import (
    append_topology,
    base_topology,
    forget_topologies,
    newest_topology,
    oldest_topology,
    slot_map,
    topology_at,
    topology_entries,
)
from elasticscan.catalog.transaction import Commit, IdempotencyKey, Tx
