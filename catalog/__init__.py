"""The catalog: a store's log, the state that is folded from it, and transactions over both.

    entry        a row of the log, chained to the one before by its digest (`LogEntry`)
    record       what an entry says, a frozen value of `metadata.records`
    state        the fold of all records (`StoreState`, `TableState`)
    home         the database that keeps the log: SQLite, or PostgreSQL (`SqliteHome`, `PostgresHome`)
    transaction  one state, and the records that are appended to it (`Tx`)

What it promises:

- **One order.** Records get their numbers under the log's lock, so the order of numbers is the order in which
  they become visible. A snapshot is the number of a commit.
- **All or nothing.** Files are written and flushed first; a transaction then refers to them. A process that
  dies before leaves files that nothing refers to, and nothing else.
- **It proves itself.** Each entry's digest covers the one before, and seals what the record has in other
  tables. What was altered, lost or repeated is found, and never passes as other rows.
- **It does not go back.** Who has seen (number, digest) never takes an older copy for the newest log.
- **No clock is trusted alone.** Times of records never go back; what ends with time ends when the store
  believes that it is over, by a server's clock where there is one.
- **A lost answer is no lost commit**: whether it is there is found out by its id. Only a lasting absence of
  the server is an error, and of a commit that its fate is not known (`CommitUnknown`).

The modules are listed in `docs/architecture.md`; begin with `state`, `fold` and `catalog`.

The design is that of KDI's log: a commit is appended and acknowledged once it is durable, and state in memory
is rebuilt by reading the log. It leaves out rows (they are in Arrow files, `elasticscan.storage`) and
decisions (which tablet goes where is planned in `elasticscan.store.moves.balancing`).
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
