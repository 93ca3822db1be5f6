"""Arrow files: how rows are written, stored and read. No SQL, no scan protocol.

What this layer promises:

- **A fragment never changes.** It is written under a temporary name, flushed and renamed (in object storage
  it is written under its own name, and visible only when complete). So a process that dies leaves no
  partial fragment, and a reader may keep a fragment open.
- **One order everywhere.** Rows are sorted by (slot, primary key, newest first) at every shard. A
  position means the same at every shard, so a scan can resume at any of them.
- **Every byte is verified.** Every byte of a file is compared with a checksum before it is used
  (`sealed_file`). A difference raises `FragmentDamaged`. It never yields wrong rows, and never a signal.
- **Memory depends on the page, not on the table.** Reading keeps a bounded number of record batches;
  writing sorts in parts and merges; copying (moves, compaction) streams.
- **No Python per row.** NumPy and Arrow kernels process whole windows. Single rows are read only by
  bisections that find a position.

The functions that answer requests of a scan take cursors and return cursors: `read_page`, `read_index_page`
and `read_changes`; `read_ranges` and `read_listed` for primary keys; `read_rows` without paging.
A page is read as follows. Its cursors are split into pieces of slots, and a piece into parts: the slots that
have the same large fragment (`view`). There are three cases:

- If this fragment alone serves the part, and has no newer versions and no tombstones, the page gets slices
  of its record batches, without a copy.
- If other fragments serve the part, too, their rows are laid over each batch once (`overlay`), and the page
  gets slices of the result, which is cached like a batch.
- Otherwise a window of rows is read from all fragments and sorted once, and the newest version of each key
  is returned (`merge`). Changes are read in this way, too, and copies are made in this way.

Batches that statistics rule out are skipped, as far as that is safe: a batch only if no row that is laid over
it may match, and merged fragments only all together. The reason: a newer version that does not match the
filter hides an older version that does.

Merges and moves (`copying`) write the newest rows and history into separate fragments, so that scans of the
newest snapshot read slices again. Only `FragmentReader` and the writer know the names of a table's columns
in a file (`docs/schema-changes.md`). The file format is in `docs/formats.md`.

The modules, from the bottom up:

disk         the protocol of files, and its implementations: a directory, a bucket, memory
spill        batches to be read again, in a temporary file if they are large
sealed_file  Arrow files with checksums; batches: their record batches, whole or in part
fragment     the sorted file of rows; fragment_writer: writes it, with bounds of its columns
key_filter   primary keys that a fragment does not have; lookup: single rows by number and by key, and the
             newest version of each key
merge        several fragments in one order, window by window
view         the fragments that serve the same slots; overlay: others laid over a large fragment
patch        newer rows in one batch of it
pruning      fragments and batches that statistics rule out
pages        pages of a view's fragments, overlaid or merged
ranges       rows with keys in ranges; point_reads: rows of many keys in one step, and keys that a staged
             write has in common with commits
indexes      index files and their pages; changes: the changes of commits, from versions of rows
copying      copies of rows as a new fragment, for moves and compaction
conform      users' rows in the columns and types of a table, and their largest size
memory_fragment  rows in the log, as a fragment in memory
ingest       rows of a write: checked, sorted, staged; definition: the limits of a table's definition

Sources: fragments that tablets share, and the merge of sorted runs, are those of log-structured
tablet servers such as KDI; pages limited by rows and by bytes are ScyllaDB's.
Not here: which fragments exist and which commits they belong to (`elasticscan.catalog`).
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
