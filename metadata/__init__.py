"""Facts about tables: what the catalog keeps and files carry, as frozen values.

columns     columns through all definitions of their table (`TableColumn`)
fragments   tables (`TableInfo`), and immutable files of their rows with the slots they serve (`Fragment`);
            slots that the same fragments serve (`SlotInterval`); the commits that count (`Bounds`)
indexes     indexes, the phases of their builds, and the runs of their entries
manifest    what a file says of itself, so that a catalog can be made again from files (`Manifest`, `Seal`)
statistics  bounds of columns by record batch (`FragmentStatistics`)
records     the records of a store's log

Everything here is pure. `storage` writes and reads the files, `catalog` keeps the rows, `optimizer`
decides by the statistics; none of them knows the others.
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
