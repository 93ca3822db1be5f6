"""Metadata of tables, in the catalog and in files, as frozen values.

columns     the columns of all definitions of a table (`TableColumn`)
fragments   tables (`TableInfo`), and immutable files of their rows with the slots they serve (`Fragment`);
            ranges of slots that the same fragments serve (`SlotInterval`); the commits to read (`Bounds`)
indexes     indexes, the phases of their builds, and the runs of their entries
manifest    a file's description of itself, from which a lost catalog can be rebuilt (`Manifest`, `Seal`)
statistics  bounds of columns by record batch (`FragmentStatistics`)
records     the records of a store's log

Everything here is pure. `storage` writes and reads the files, `catalog` stores the records, and `optimizer`
uses the statistics. These three do not import each other.
"""

from elasticscan.metadata.columns import TableColumn, is_widening, new_column
from elasticscan.metadata.fragments import (
    CHANGE_COLUMNS,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    MEMORY,
    QUERY_PREFIX,
    SHARD_COLUMN,
    SLOT_COLUMN,
    Bounds,
    Fragment,
    SlotInterval,
    StagedFragment,
    TableInfo,
    floor_at,
    intervals_of,
    no_such_column,
)
from elasticscan.metadata.indexes import (
    AUTO,
    DIRECT,
    HASH,
    INDEX_KINDS,
    KEY,
    NONE,
    SORTED,
    IndexInfo,
    IndexPhase,
    IndexRun,
    StagedRun,
)
from elasticscan.metadata.manifest import FRAGMENT, INDEX_RUN, Manifest, Origin, Seal
from elasticscan.metadata.records import (
    FORMATS,
    LAYOUT,
    MAX_FILES,
    NO_CHANGES,
    NO_SLOTS,
    AddedRun,
    FileChanges,
    FilesCondemned,
    FragmentsReplaced,
    HorizonRaised,
    IndexDefined,
    MoveSwitched,
    Record,
    RowsCommitted,
    Secret,
    SecretChanged,
    ShardDefined,
    StoreAdopted,
    StoreCreated,
    TableDefined,
    TableDropped,
    TabletsChanged,
    TagChanged,
    TimeObserved,
    TopologyEntered,
    file_changes,
    file_ids,
    file_statistics,
    moved_tablet,
    table_of,
)
from elasticscan.metadata.statistics import (
    KEY_BYTES,
    Block,
    FragmentStatistics,
    pack_statistics,
    unpack_statistics,
)
