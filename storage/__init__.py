"""Arrow files: how rows are written, kept and read. No SQL, no scan protocol.

What this layer promises:

- **A fragment never changes.** It is written under another name, flushed and renamed (in object storage sent
  under its own, and seen when it is whole), so a process that dies leaves no half-written fragment, and a
  reader may keep one open.
- **One order everywhere.** Rows are sorted by (slot, primary key, newest first), at each shard
  alike. A position means the same at every shard, so a scan can go on anywhere.
- **Every byte is proven.** Every byte that is read from a file is compared with a
  checksum first (`sealed_file`); what differs is `FragmentDamaged`, never other rows, and no signal.
- **Memory follows the page, not the table.** Reading keeps a bounded number of record batches;
  writing sorts in parts and merges; copying (moves, compaction) streams.
- **No per-row Python.** NumPy and Arrow kernels work on whole windows; a single row is looked
  at only to find a position by bisection.

A shard answers requests here, cursors in and cursors out (`read_page`, `read_index_page`, `read_changes`;
`read_ranges` and `read_listed` where only some primary keys are asked for, `read_rows` without a page).
How a page is read: its cursors are pieces, of slots, and a piece is read part by part, by the large fragment
that serves some slots (`view`). Where that holds nothing newer than the snapshot and nothing deleted, slices
of its record batches go out uncopied. Where it meets other fragments, these are laid over each of its batches
once (`overlay`), and slices of the result go out; it is kept like a batch. Elsewhere a window of rows is
gathered from all fragments, sorted once, and the newest version of each key kept (`merge`); so are changes
read, and copies made. What the key sets of a request rule out is skipped unread, as far as that is safe: a
batch over which nothing that may match is laid; among merged fragments, only all of them, because a newer
version that does not match hides an older one that does.

What merges and moves write (`copying`) keeps the newest rows apart from history, in fragments of their own:
a scan of the newest snapshot meets slices again. Only `FragmentReader` and the writer know the names of a
table's columns in a file (`docs/schema-changes.md`). The file format is in `docs/formats.md`.

The modules, from the bottom up:

disk         the protocol of files, and what carries it out: a directory, a bucket, memory
spill        batches that wait to be read again, in a temporary file where they are many
sealed_file  Arrow files that prove themselves; batches: record batches of them, whole or in part
fragment     the sorted file of rows; fragment_writer: writes it, with bounds of its columns
key_filter   primary keys that a fragment does not have; lookup: single rows by number and by key, and which
             version is the newest
merge        several fragments in one order, window by window
view         the fragments that serve some slots; overlay: others laid over a large fragment
patch        newer rows in one batch of it
pruning      what statistics rule out
pages        pages of a view's fragments, overlaid or merged
ranges       rows with keys in some ranges; point_reads: rows with some keys, many at once, and keys that a
             staged write has in common with commits
indexes      index files and their pages; changes: what commits did to rows, from their versions
copying      rows of some slots as a new fragment: moves and compaction
conform      rows of users as the table's schema has them, and how large they may be
memory_fragment  rows that lie in the log, as a fragment in memory
ingest       rows on their way in; definition: what a table may be

Sources: the fragment shared by several tablets and the sorted-run merge are those of log-structured
tablet servers such as KDI; pages limited by rows and by bytes are ScyllaDB's.
Left out: which fragments exist and which commits they belong to (`elasticscan.catalog`).
"""

from elasticscan.storage.batches.reader import BatchCache
from elasticscan.storage.changes import DELETE, INSERT, UPDATE_POSTIMAGE, UPDATE_PREIMAGE, read_changes
from elasticscan.storage.conform import (
    ROWS_HINT,
    batches_of,
    check_columns,
    check_keys_filled,
    conform,
    conformed,
    parts_of,
)
from elasticscan.storage.copying import Keep, check_keys_differ, copy_slots, python_rows
from elasticscan.storage.definition import check_definition, map_leaves, stored_schema
from elasticscan.storage.disk import (
    OBJECT_SCHEMES,
    Disk,
    LocalDisk,
    MemoryFile,
    MissingFile,
    flush_directory,
    keep_from_group,
    open_disk,
)
from elasticscan.storage.fragment import (
    DELETED,
    SLOT,
    FragmentReader,
    described_columns,
    is_fragment_path,
    newest_commit_of,
)
from elasticscan.storage.fragment_writer import Destination
from elasticscan.storage.indexes.pages import IndexSource, read_index_page
from elasticscan.storage.indexes.run import RUN_COLUMNS, RunReader, build_runs, check_entries
from elasticscan.storage.ingest import (
    SMALL_FRAGMENT_BYTES,
    File,
    arrange,
    discard,
    files_of,
    remove_files,
    stage_rows,
    staged_source,
)
from elasticscan.storage.lookup import slot_counts
from elasticscan.storage.memory_fragment import (
    MEMORY_DISK,
    MemoryFragment,
    StagedInMemory,
    joined,
    memory_fragment,
    memory_runs,
    numbered,
    pack_rows,
    schema_in_log,
    unpack_rows,
)
from elasticscan.storage.pages import OpenFragment, PageSource, read_page
from elasticscan.storage.point_reads import read_listed, read_rows, shared_keys
from elasticscan.storage.ranges import read_ranges
from elasticscan.storage.sealed_file import SMALL_FILE_BYTES, find_seal, read_manifest, verify_file
from elasticscan.storage.spill import Spool
from elasticscan.storage.view import View, most_rows
