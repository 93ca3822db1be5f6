"""The log of a store: one ordered sequence of records, and the state that is folded from it.

    entry        a row of the log, chained to the one before by its digest (`LogEntry`)
    record       what an entry says, a frozen value of `metadata.records`
    state        the fold of all records (`StoreState`, `TableState`)
    home         the database that keeps it: SQLite, or PostgreSQL (`SqliteHome`, `PostgresHome`)

The modules, in the order in which they are best read:

entries      the rows of the log and their chain
files        the fragments and runs of a table as one Arrow table and a few changes
state        the pure fold
checks       what each kind of record requires of the state; pure
codec        frozen values as msgpack
tables       the six tables and all statements
home         what the log needs of a database; sqlite: in a file; postgres: at a server
pool         connections to it, and forks
log          follow, append, read
checkpoints  the state in parts, so that opening need not fold everything
topologies   the topology history
leases       what ends by itself with time

The design is that of KDI's log (a commit is appended and acknowledged once it is durable; state in memory is
rebuilt by reading the log) with the digest chain of a ledger. Not reachable from stores yet.
"""

from elasticscan.catalog.log.checks import check
from elasticscan.catalog.log.entries import GENESIS, LogEntry, LogRow, record_of, row_of
from elasticscan.catalog.log.files import FileSet
from elasticscan.catalog.log.log import Append, Appended, Log
from elasticscan.catalog.log.sqlite import SqliteHome
from elasticscan.catalog.log.state import InlineCommit, StoreState, TableState, apply
from elasticscan.catalog.log.topologies import placement_at

__all__ = [
    "GENESIS",
    "Append",
    "Appended",
    "FileSet",
    "InlineCommit",
    "Log",
    "LogEntry",
    "LogRow",
    "SqliteHome",
    "StoreState",
    "TableState",
    "apply",
    "check",
    "placement_at",
    "record_of",
    "row_of",
]
