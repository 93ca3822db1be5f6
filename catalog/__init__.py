"""The catalog: the store's metadata as SQL tables, and the only place that speaks SQL.

It keeps what must change together, so that it can: one transaction makes a write visible on all
shards at once, one transaction moves a tablet. What it promises:

- **One order.** Commits get consecutive numbers from the one writing transaction, so the order
  of numbers is the order in which commits become visible. A snapshot is simply a number.
- **All or nothing.** Files are written and flushed first; a transaction then refers to them.
  A process that dies before leaves files that nothing refers to, and nothing else.
- **No torn look.** A reading transaction sees one state: a placement and the fragments of the
  same moment.
- **Cheap to ask whether anything changed.** `versions()` returns (layout, last commit). The
  layout number grows with each change of placement or of serving fragments; plain commits leave
  it alone, since a scan at an older snapshot cannot see them. What was read of tables, indexes, shards and
  placement is true since the layout `stable_since`: merges of fragments change nothing of it (`Reached`).
- **It proves itself.** Every row has a digest and every group of rows a sum (`sealed.py`), so what a
  damaged database alters, hides or repeats raises `StoreDamaged`, and never passes as other rows.
- **It does not go back.** Who has seen a commit never takes an older copy, put back, for the newest catalog
  (`Reached`), nor a file that is no longer in its place (`OpenedFiles`).
- **No clock is trusted alone.** Times of commits never go back; what ends with time ends when the store
  believes that it is over (`believed_time.py`), by a server's clock where there is one (`server_clock.py`).
- **State tables drive.** A move and an index's build change by the tables of `topology` and `metadata` alone;
  `Tx.transition` is the one writer of their rows.
- **Connections to a server may be lost**: transactions are carried over, and the fate of
  a commit whose answer was lost is found out (`server.py`). Only a lasting absence is an error, and of a
  commit that its fate is not known (`CommitUnknown`).

The tables are described in `docs/formats.md`. A fragment's row lists the slots that it speaks
for; a tablet that leaves a shard is struck from the lists there in the transaction that moves it,
so a tablet that comes back is served from the newly copied fragments alone and never seen twice.

Inside a store directory the catalog is an SQLite database in WAL mode (`synchronous=FULL`).
A database at a PostgreSQL server is named by its URL; no other kind is known. The format is versioned: only
this release's own is read.

Where the catalog's file cannot be written, it is read without changing anything alongside it
(`readonly.py`), and `writing()` says why it does not write.

The modules, from the bottom up:

tables         the SQL tables
probe          a check of SQLite's files, before damage is raised
failures       the errors of a database, as ours
sealed         rows that prove themselves: the one reader and writer of all of them
remembered     groups of rows that were read before, of which only newer rows are read
compiled       statements, compiled once for all catalogs in SQLite of a process
waiting        answers of a server that falls silent are waited for no longer than a limit
connections    few, of no thread in particular, none across a fork; readonly: catalogs that are not writable
exchange       messages to a server and their answers; pipeline: statements on this short way
server         transactions that outlive their connections
near           transactions of SQLite that only read
engine         opening a database, and its transactions; home: where its file lies, and whether it still does
kept_logs      logs of SQLite that have lost commits, kept aside
state          the store's own row; believed_time: what time it is taken to be; server_clock: by whose clock
placement      shards, tablets; topology_history: as differences
moves          those under way; seal_keys: secrets
indexes        indexes and their runs; fragments: files of rows
tags           names that keep a snapshot; commits: tables, commits, leases; upkeep: its steps
reports        what scans say of themselves while they run
log            the log that takes the place of all these tables (not reachable from stores yet)
definitions    the columns of a table, as its row keeps them
checks         the check of all of it; dump: all of it as values, and back
catalog        `Catalog`, which opens transactions, and `Tx`, which is one

It leaves out: rows (they are in Arrow files, `elasticscan.storage`), and decisions (which tablet
should go where is planned in `elasticscan.topology` and carried out by `elasticscan.store`).
"""

from elasticscan.catalog.catalog import Catalog, NewStore, Tx, is_writing
from elasticscan.catalog.commits import Commit, IdempotencyKey, ask_for_commit, ask_for_merges
from elasticscan.catalog.dump import Dump
from elasticscan.catalog.engine import holds_store
from elasticscan.catalog.failures import Interrupted
from elasticscan.catalog.fragments import DroppedFile, ask_for_merge
from elasticscan.catalog.home import Home
from elasticscan.catalog.moves import OwnedMove
from elasticscan.catalog.pipeline import Question
from elasticscan.catalog.reports import Report
from elasticscan.catalog.seal_keys import KEYS, OFFSETS
from elasticscan.catalog.server import retry_interrupted
from elasticscan.catalog.state import Identity, Reached, StoreInfo
from elasticscan.catalog.tags import Tag
from elasticscan.catalog.topology_history import ask_topology, enter_foreign_topology
from elasticscan.catalog.upkeep import OwnedStep, StepsDone

__all__ = [
    "KEYS",
    "OFFSETS",
    "Catalog",
    "Commit",
    "DroppedFile",
    "Dump",
    "Home",
    "IdempotencyKey",
    "Identity",
    "Interrupted",
    "NewStore",
    "OwnedMove",
    "OwnedStep",
    "Question",
    "Reached",
    "Report",
    "StepsDone",
    "StoreInfo",
    "Tag",
    "Tx",
    "ask_for_commit",
    "ask_for_merge",
    "ask_for_merges",
    "ask_topology",
    "enter_foreign_topology",
    "holds_store",
    "is_writing",
    "retry_interrupted",
]
