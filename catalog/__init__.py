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
  it alone, since a scan at an older snapshot cannot see them.

Tables: `store_state` (one row), `seal_keys`, `shards`, `tablets` (the placement),
`topology_history`, `tables`, `commits`, `fragments`, `moves`, `leases`. Each is described in
`docs/formats.md`. A fragment's row lists the slots that it speaks for; a tablet that leaves a
shard is struck from the lists there in the transaction that moves it, so a tablet that comes
back is served from the newly copied fragments alone and never seen twice.

Inside a store directory the catalog is an SQLite database in WAL mode (`synchronous=FULL`).
Any other database that SQLAlchemy knows can be named by URL. The format is versioned: an older
catalog is brought up to date in one transaction when it is opened, a newer one is refused.

It leaves out: rows (they are in Arrow files, `elasticscan.storage`), and decisions (which tablet
should go where is planned in `elasticscan.topology` and carried out by `elasticscan.store`).
"""

from elasticscan.catalog.catalog import Catalog, MoveRow, NewStore, Tx
from elasticscan.catalog.commits import Commit, Txn
from elasticscan.catalog.engine import holds_store
from elasticscan.catalog.fragments import DroppedFile
from elasticscan.catalog.home import Home
from elasticscan.catalog.placement import Identity, StoreInfo

__all__ = [
    "Catalog",
    "Commit",
    "DroppedFile",
    "Home",
    "Identity",
    "MoveRow",
    "NewStore",
    "StoreInfo",
    "Tx",
    "Txn",
    "holds_store",
]
