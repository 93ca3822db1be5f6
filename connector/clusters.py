"""Batch reads of clusters that others operate: planned by where slots are now, read by tasks.

A cluster has no snapshots. Each attempt of a task is exact by itself, but a repeated one reads again, and may
find other values: persist a DataFrame before using it twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from elasticscan.backends import is_cluster, open_table
from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import DEFAULT_SPLIT_BYTES
from elasticscan.connector.conversion import ToSpark, spark_schema
from elasticscan.connector.option_values import byte_count, column_list, whole
from elasticscan.connector.partitions import ScanPartition, checked
from elasticscan.connector.splits import NOTHING, cut
from elasticscan.metadata import no_such_column

if TYPE_CHECKING:
    from elasticscan.backends import ClusterTable

_PLACES = ("url", "store", "path")


@dataclass(frozen=True, slots=True)
class ClusterRead:
    """The options of a read of a cluster. Plain values, so that Spark can send them to tasks.

    Attributes:
        uri: of the cluster, and of the table unless `table` names it.
        given: the options that say how to reach the cluster and how to read values, as texts.
    """

    uri: str = field(repr=False)  # with the password
    table: str | None
    filter: str | None
    columns: tuple[str, ...] | None
    partitions: int | None
    split_bytes: int
    history: str | None
    given: Mapping[str, str] = field(repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ClusterRead:
        """Check the options of a source. Raises `InvalidOption`."""
        given = {name.lower(): text for name, text in options.items()}
        places = [given.pop(name) for name in _PLACES if name in given]
        if len(places) > 1:
            raise InvalidOption("url, store and path say the same; give one of them", option="url")
        most, size, columns = (
            given.pop("numpartitions", None),
            given.pop("splitsize", None),
            given.pop("columns", None),
        )
        return cls(
            places[0],
            given.pop("table", None),
            given.pop("filter", None),
            None if columns is None else column_list("columns", columns),
            None if most is None else whole(1)("numPartitions", most),
            DEFAULT_SPLIT_BYTES if size is None else byte_count("splitSize", size),
            given.pop("topologyhistory", None),
            given,
        )

    def open(self, schema: pa.Schema | None = None) -> ClusterTable:
        return open_table(self.uri, self.table, schema, self.given)


def names_cluster(options: Mapping[str, str]) -> bool:
    """Return whether the options of a source name a cluster."""
    return any(is_cluster(options.get(name)) for name in _PLACES)


def cluster_schema(options: ClusterRead) -> StructType:
    """Return the columns of a read for which the user gave none: those of some values."""
    with options.open() as table:
        schema = table.schema
        for name in options.columns or ():
            if name not in schema.names:
                raise no_such_column(table.name, name, schema.names)
    return spark_schema(pa.schema([schema.field(name) for name in options.columns or schema.names]))


class ClusterBatchReader(DataSourceReader):
    """Plans a scan of a cluster by where slots are now, and reads its parts in tasks."""

    def __init__(self, options: ClusterRead, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def _open(self) -> ClusterTable:
        """Open the table with the columns that Spark expects."""
        return self._options.open(to_arrow_schema(self._schema, timezone="UTC"))

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the scan by where slots are, and where they were at the newest topology before."""
        options = self._options
        # With `columns` the filter may name others, whose types only the values tell.
        with options.open() if options.columns else self._open() as table:
            scan = table.scan(self._schema.names, options.filter)
            cluster, base = table.store.record_topology(options.history)
            weights = table.slot_bytes()
        parts = cut(cluster.placement, base, weights, options.split_bytes, options.partitions, scan.slots)
        names = {shard: "{}:{}".format(*node.address) for shard, node in cluster.nodes.items()}
        return [
            ScanPartition(
                scan.part(part.slots),
                "",
                part.kind,
                ", ".join(names.get(shard, "no node") for shard in part.shards),
                str(part.slots),
            )
            for part in parts or [NOTHING]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, wherever its slots are by now."""
        with self._open() as table:
            scan = table.store.resume(checked(partition).key)
            convert = ToSpark(scan.schema, self._schema.names, self._schema)
            for rows in scan.batches():
                yield convert(rows)
