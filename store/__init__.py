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

How the parts work together, operation by operation, and what each conflicts with is in
`docs/architecture.md` and `docs/formats.md`:

    store.py, table.py  what users hold; readable.py: a table read; defined.py: one apart from its rows
    names.py       names that users type and that are not there
    beginning.py   scans that begin; scan.py: who reads one, Arrow streams, counts
    aggregating.py aggregates, folded page by page; extremes.py: those that need no look at a row,
                   where fragments are plain (plain.py)
    getting.py     rows by their primary keys, many at once
    paging.py      pages and keys over `reader.drive`
    access_paths.py the path that a scan takes, chosen by cost; ordering.py: `order_by`, and its indexes
    replacing.py   rows in place of those that meet a condition
    loading.py     files into a table, piece by piece; sources.py: files of many kinds, found and read;
                   iceberg.py: Iceberg tables, by their own library
    exporting.py   rows as Parquet files
    typed.py       rows that come as Python lists; keys.py: keys likewise, in a table's types, and tombstones
    changes.py     scans of what commits changed
    streams.py     what planning a micro-batch has to know, in one look; streams by their leases
    shards.py      the in-process placement look-up and page reads
    definitions.py tables: checked, reserved for a first write, entered with it
    writer.py      stage, then commit; stage again what moved meanwhile
    by_condition.py rows that meet a condition, deleted or given new values
    merging.py     rows that meet those with the same keys: updated, deleted, inserted
    preconditions.py what a write may require of its keys, checked until it commits
    mover.py       one move: copy, catch up, switch
    owners.py      signs that whoever carries a move out still lives
    restoring.py   a table made again what it was at an older snapshot
    indexing.py    indexes, built beside writers and moves
    schema_changes.py columns that come, go, and get other names and types
    elasticity.py  plans carried out: expand, contract, move, split, join, resume
    repair/        a store made again from its files, by the rules of repair/plan.py
    compaction.py  merging fragments: some of a shard's, or all
    after_commit.py  upkeep by whoever writes; keeper.py: all of it, by a keeper; steps.py: what both do
    verifying.py   verification, counting
    roots.py       whose a shard's root is, asked whenever somebody writes or deletes there
    aliases.py     roots that are one place under two names; making.py: a new store, wholly or not at all
    garbage.py     what becomes of each file, as a pure function; collector.py carries it out
    backup.py      a store copied to a place of backups, and made of one
    adoption.py    copies of a store, and older catalogs that were put back
    sealing.py     continuation keys: their secrets and their end
    leases.py      promises that what is read stays readable; tags.py: those without an end, by name
    location.py    where a store is, and who may read what it makes
    amplification.py  what is due of upkeep, and what reads, writes and space cost beyond their rows
    disks.py       a shard's disk; that of a store which can only be read
    arguments.py   checks of what callers hand over; status.py: what `Store.status` returns
    context.py     what the parts of an open store share; lookups.py: caches, each valid for one layout of
                   the catalog; readers.py: open files; following.py: work that follows commits
"""

from elasticscan.catalog import Commit, IdempotencyKey, Tag
from elasticscan.store.access_paths import slots_of_filter
from elasticscan.store.adoption import Adopted
from elasticscan.store.arguments import file_form, user_metadata
from elasticscan.store.backup import BackedUp
from elasticscan.store.beginning import begin_scan, scan_changes
from elasticscan.store.by_condition import MOST_ATTEMPTS, Selection, delete_rows, update_rows
from elasticscan.store.changes import feed_fields, rows_by_slot
from elasticscan.store.collector import Collected
from elasticscan.store.context import Context
from elasticscan.store.definitions import reserve_table
from elasticscan.store.elasticity import Elasticity, OnProgress
from elasticscan.store.exporting import Exported
from elasticscan.store.extremes import known_values
from elasticscan.store.garbage import Action, Decision
from elasticscan.store.keeper import Kept
from elasticscan.store.keys import tombstones_of, with_tombstones
from elasticscan.store.leases import hold_for_stream
from elasticscan.store.loading import Loaded
from elasticscan.store.location import CATALOG_FILE, FROM_ENVIRONMENT, Location, resolve
from elasticscan.store.lookups import SlotPlaces
from elasticscan.store.paging import Page
from elasticscan.store.preconditions import KeyCheck, absent, unchanged
from elasticscan.store.repair.rebuild import RepairReport, repair_store
from elasticscan.store.replacing import check_condition, publish_replacing, replacing_in, rows_that_meet
from elasticscan.store.scan import Scan
from elasticscan.store.sources import read_files
from elasticscan.store.store import Store
from elasticscan.store.streams import (
    StreamState,
    hold_snapshot,
    look,
    look_behind,
    scan_snapshot,
    streams_of,
)
from elasticscan.store.table import Table
from elasticscan.store.tags import check_tag_name
from elasticscan.store.writer import (
    check_no_key_twice,
    has_forerunner,
    is_committed,
    publish,
    remove_staged,
    stage,
    table_to_write,
    write,
)

__all__ = [
    "CATALOG_FILE",
    "FROM_ENVIRONMENT",
    "MOST_ATTEMPTS",
    "Action",
    "Adopted",
    "BackedUp",
    "Collected",
    "Commit",
    "Context",
    "Decision",
    "Elasticity",
    "Exported",
    "IdempotencyKey",
    "Kept",
    "KeyCheck",
    "Loaded",
    "Location",
    "OnProgress",
    "Page",
    "RepairReport",
    "Scan",
    "Selection",
    "SlotPlaces",
    "Store",
    "StreamState",
    "Table",
    "Tag",
    "absent",
    "begin_scan",
    "check_condition",
    "check_no_key_twice",
    "check_tag_name",
    "delete_rows",
    "feed_fields",
    "file_form",
    "has_forerunner",
    "hold_for_stream",
    "hold_snapshot",
    "is_committed",
    "known_values",
    "look",
    "look_behind",
    "publish",
    "publish_replacing",
    "read_files",
    "remove_staged",
    "repair_store",
    "replacing_in",
    "reserve_table",
    "resolve",
    "rows_by_slot",
    "rows_that_meet",
    "scan_changes",
    "scan_snapshot",
    "slots_of_filter",
    "stage",
    "streams_of",
    "table_to_write",
    "tombstones_of",
    "unchanged",
    "update_rows",
    "user_metadata",
    "with_tombstones",
    "write",
]
