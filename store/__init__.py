"""The embedded store: the API that users open, and the operations behind it.

A `Store` has tables, shards and upkeep. A `Table` is written, read and indexed. A `Scan` returns rows. They
connect three layers that do not import each other: the scan protocol (`elasticscan.reader`), Arrow files
(`elasticscan.storage`) and the catalog (`elasticscan.catalog`).

The store promises:

- A scan returns every row of one snapshot exactly once and does not fail because tablets move.
  It can be stopped after any page and resumed in any process from the page's key.
- A write becomes visible on all shards in one step, or not at all. When `upsert` returns, the rows are on
  the disks. If the process dies before that, nothing of the write is visible.
- A tablet is served from one place at every moment. If a mover dies, the tablet stays at its source;
  `resume_moves` finishes the plan.

`docs/architecture.md` and `docs/formats.md` describe each operation and its conflicts. Each folder below has
a front page with its promises and terms. A folder imports only from folders above it in this list;
import-linter checks this:

roots    where a store and its shards are, and which store owns which directory
context  the shared state of an open store; leases, tags, continuation keys
rows     rows and keys that callers pass as Python values or as files
reading  scans, aggregates, rows by key, changes, exports
writing  writes: staged, then committed; indexes, conditions, merges, loads
moves    moves of tablets, while reads and writes continue
upkeep   merges, balancing and garbage collection, by writers and keepers
copies   creation of a store, backup, creation from a backup
repair   a new store from the files of a damaged one

The modules of this folder are the public API. They import from all these folders except `repair`, which
imports from them:

backend    the store as Spark and the command line use it
store      `Store`; opening: its catalog and disks; status: the result of `Store.status`
table      `Table`
verifying  checks of every file

Every folder may import this module, and it imports from none of them:

arguments  checks of arguments that types and Python's own errors do not cover
"""

from elasticscan.catalog import Commit, IdempotencyKey
from elasticscan.store.arguments import application, file_form, user_metadata, whole_number
from elasticscan.store.backend import EmbeddedTable, complete_rows
from elasticscan.store.context.tags import check_tag_name
from elasticscan.store.moves.balancing import slot_bytes
from elasticscan.store.reading.aggregating import known_count
from elasticscan.store.reading.changes import feed_fields
from elasticscan.store.reading.ordering import MOST_FIRST, FirstRows, can_be_sorted
from elasticscan.store.reading.paged_scan import Page, PagedScan
from elasticscan.store.reading.scan import Scan, columns_of
from elasticscan.store.reading.streams import StreamState
from elasticscan.store.repair.rebuild import repair_store
from elasticscan.store.roots import Location
from elasticscan.store.roots.location import CATALOG_FILE, FROM_ENVIRONMENT, resolve
from elasticscan.store.rows.conversion import tombstones_of, with_tombstones
from elasticscan.store.store import Store
from elasticscan.store.table import Table
from elasticscan.store.writing.definitions import has_forerunner, reserve_table, table_to_write
from elasticscan.store.writing.preconditions import unchanged
from elasticscan.store.writing.publishing import (
    CommitRequest,
    check_no_key_twice,
    earlier_commit,
    publish,
    remove_staged,
    stage,
)
from elasticscan.store.writing.transactions import (
    checked_rows,
    delete_rows,
    publish_replacing,
    until_unchanged,
    update_rows,
)
