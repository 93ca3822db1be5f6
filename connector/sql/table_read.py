"""A builder of the read of one table, without SQL.

shop.table("flights").where("dep_delay > 60").select("origin", "dest").load()
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.clock import zoned
from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import MAX_NUMBER, NAME_PATTERN
from elasticscan.connector.options import Options, parse_options
from elasticscan.connector.reading import chosen_columns
from elasticscan.connector.sql.driver_reads import read_few
from elasticscan.connector.sql.limits import RowLimit
from elasticscan.connector.sql.views import FORMAT
from elasticscan.connector.store_cache import open_store
from elasticscan.filters import Predicate
from elasticscan.metadata import TableInfo
from elasticscan.store import whole_number

_SNAPSHOTS = ("versionasof", "timestampasof")


@dataclass(frozen=True, slots=True)
class TableRead:
    """A read of one table. Every method but `load` returns a new one.

    Attributes:
        options: the options of the source that are set, by their names in lower case.
    """

    _spark: SparkSession = field(repr=False)
    _uri: str = field(repr=False)
    _table: TableInfo = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict)
    _most: int | None = None

    def where(self, condition: str) -> TableRead:
        """Keep only rows that meet this condition and all earlier ones.

        The condition has the meaning that it has in a Spark session in ANSI mode with the time zone UTC.

        Raises:
            FilterError: the condition is not supported, or does not fit the types of the columns.
            NotFound: the table does not have a column of the condition.
        """
        predicate = Predicate.parse(condition, self._table.schema)
        if (earlier := self.options.get("filter")) is not None:
            predicate = Predicate.parse(f"({earlier}) AND ({predicate})", self._table.schema)
        return self._with_option("filter", str(predicate))

    def select(self, *columns: str | Sequence[str]) -> TableRead:
        """Read only these columns, given one by one or as a list.

        Raises:
            NotFound: the table does not have one of the columns.
        """
        names = [name for each in columns for name in ([each] if isinstance(each, str) else each)]
        return self.option("columns", ",".join(names))

    def index(self, name: str) -> TableRead:
        """Choose the access path by the option `index`."""
        return self.option("index", name)

    def as_of(self, snapshot: int | str | date) -> TableRead:
        """Read a snapshot: a commit number, a tag, or the last commit up to a time. The last call counts.

        A time is a datetime with a zone, or a date or an ISO text, which are in UTC if they have no zone.
        """
        if isinstance(snapshot, datetime):
            zoned("snapshot", snapshot)
        text = snapshot.isoformat() if isinstance(snapshot, date) else str(snapshot)
        is_time = not isinstance(snapshot, int) and not re.fullmatch(NAME_PATTERN, text.strip())
        kept = {name: value for name, value in self.options.items() if name not in _SNAPSHOTS}
        return replace(self, options=kept)._with_option(_SNAPSHOTS[is_time], text)

    def option(self, name: str, value: Any) -> TableRead:
        """Set an option of the source. The option `filter` is the same as `where`.

        Raises:
            InvalidOption: the option does not exist, or cannot have this value.
        """
        if name.lower() == "filter":
            return self.where(str(value))
        if name.lower() in ("store", "url", "table", "path"):
            raise InvalidOption(f"option {name!r} is set by the table of the read; leave it out", option=name)
        return self._with_option(name, str(value).lower() if isinstance(value, bool) else str(value))

    def _with_option(self, name: str, text: str) -> TableRead:
        read = replace(self, options={**self.options, name.lower(): text})
        chosen_columns(self._table, read._parsed(read.options))
        return read

    def _parsed(self, options: Mapping[str, str]) -> Options:
        return parse_options({"store": self._uri, "table": self._table.name, **options})

    def limit(self, rows: int) -> TableRead:
        """Read at most `rows` rows, in no particular order. The smallest limit counts."""
        most = whole_number("limit", rows, 0, MAX_NUMBER)
        return replace(self, _most=most if self._most is None else min(most, self._most))

    def load(self) -> DataFrame:
        """Return the DataFrame of the snapshot of `as_of`, or of the newest one at this moment."""
        options = dict(self.options)
        is_feed = self._parsed(options).feed
        if not is_feed and options.keys().isdisjoint(_SNAPSHOTS):
            options["versionasof"] = str(open_store(self._uri).backend.newest())
        few = read_few(self._parsed(options), None if self._most is None else RowLimit(self._most))
        if few is not None:
            return self._spark.createDataFrame(few.rows, few.schema)
        if self._most is not None and not is_feed:
            options["maxrowspertask"] = str(self._most)
        reader = self._spark.read.format(FORMAT)
        frame = reader.options(url=self._uri, table=self._table.name, **options).load()
        return frame if self._most is None else frame.limit(self._most)
