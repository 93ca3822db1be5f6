"""The facade users open, and the hands of the layers below.

`Store` has tables, shards and upkeep; a `Table` is written, read and indexed; a `Scan` gives its rows. They
wire three layers that do not know one another: the scan protocol (`elasticscan.reader`), Arrow files
(`elasticscan.storage`) and the catalog (`elasticscan.catalog`).

What it promises:

- A scan returns every row of one snapshot exactly once and does not fail because tablets move.
  It can be stopped after any page and resumed anywhere from the page's key.
- A write is visible on all shards at once or not at all. When `upsert` returned, it is on the
  disks. When the process died before, nothing of it is visible.
- A tablet is served from one place at every moment. A mover that dies leaves it at its source;
  `resume_moves` finishes what was planned.

How the parts work together, operation by operation, and what each conflicts with is in `docs/architecture.md`
and `docs/formats.md`. Each room below has a front page of its own, with its promises and its words; a room
knows some of those above it in this list and none below, which import-linter holds:

roots    where a store and its shards are, and whose they are
context  an open store, as all that work on it share it; leases, tags, keys
rows     rows and keys that come from outside: typed, and in files
reading  scans, aggregates, rows by key, changes, exports
writing  writes: staged, then committed; indexes, conditions, merges, loads
moves    tablets that move while everything else goes on
upkeep   merges, balance and garbage, by writers and keepers
copies   stores as wholes: made, backed up, made of a backup
repair   a store made again from its files

The facade stands on all of them but `repair`, which stands on it:

backend         a store as Spark and the terminal need it
store           a store as users hold it; opening: its catalog and disks; status: what `Store.status` returns
table           a table as users hold it
verifying       checks of every file and row

What all of them use, and what uses none of them:

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
    delete_rows,
    publish_replacing,
    rows_that_meet,
    until_unchanged,
    update_rows,
)
