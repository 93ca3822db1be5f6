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

The modules, in the order in which they are best read:

entries           the rows of the log and their chain, and records on their way into it
files             the fragments and runs of a table as one Arrow table and a few changes
store_time        what time the store takes it to be
table_state       one table as the fold has it, and changes of its files
state             the state of a store
fold              records applied to it, one after another; pure
checks            what each kind of record requires of the state; pure
codec             frozen values as msgpack
tables            the six tables and all statements
database          what the log needs of a database; pool: connections to it, and forks
failures          the errors of databases as ours, and attempts that are made again after them
sqlite            in a file; sqlite_files: that file, and reading it without changing anything next to it
postgres          at a server
leases            what ends by itself with time
checkpoints       the state in parts, so that opening need not fold everything
replay            the state as of the head
transaction       `Tx`: a state, and what is appended to it
topology_history  placements that were; secrets: what seals continuation keys
catalog           `Catalog`: follow, append, checkpoint
opening           the log that a URL names, opened or made
verifying         the check of all of it

The design is that of KDI's log: a commit is appended and acknowledged once it is durable, and state in memory
is rebuilt by reading the log. It leaves out rows (they are in Arrow files, `elasticscan.storage`) and
decisions (which tablet goes where is planned in `elasticscan.topology`; `elasticscan.store` carries it out).
"""

from elasticscan.catalog.catalog import Catalog
from elasticscan.catalog.entries import Append
from elasticscan.catalog.failures import Interrupted, retry_interrupted
from elasticscan.catalog.leases import Lease
from elasticscan.catalog.opening import NewStore, copy_catalog, create_catalog, holds_store, open_catalog
from elasticscan.catalog.pool import in_transaction
from elasticscan.catalog.secrets import (
    KEYS,
    OFFSETS,
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
    enter_foreign_topology,
    forget_topologies,
    newest_topology,
    oldest_topology,
    slot_map,
    topology_at,
    topology_entries,
)
from elasticscan.catalog.transaction import Commit, IdempotencyKey, Tx
