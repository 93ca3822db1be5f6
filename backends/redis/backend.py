"""A cluster as a back end: opened by options as Spark and `elasticscan.open` have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from elasticscan.backends.redis.cluster import ClusterShards
from elasticscan.backends.redis.names import SLOTS
from elasticscan.backends.redis.options import ClusterOptions, TableOptions, read_options, split_uri
from elasticscan.backends.redis.scan import ClusterScan
from elasticscan.backends.redis.store import ClusterStore, ClusterTable
from elasticscan.base.errors import InvalidOption
from elasticscan.protocol import Capability, Guarantee, of_another_read


def open_store(uri: str, options: Mapping[str, Any]) -> ClusterStore:
    """Open a cluster by its URI and the options that say how to reach it."""
    (asked,) = read_options(options, ClusterOptions)
    return ClusterStore(replace(split_uri(uri)[0], **asked))


class RedisBackend:
    """A cluster, for Spark and the terminal. Its URI may end with a table."""

    guarantee = Guarantee.EACH_ONCE
    capabilities: frozenset[Capability] = frozenset()
    slot_count = SLOTS
    identity = ""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        reach, self._table_name = split_uri(uri)
        cluster, self._table_options = read_options(options, ClusterOptions, TableOptions)
        self.store = ClusterStore(replace(reach, **cluster))

    def table(self, name: str, schema: pa.Schema | None = None) -> ClusterTable:
        """Return a table, by its name or that in the URI. Without a schema some keys tell the columns."""
        return self.store.table(self._name(name), schema, **self._table_options)

    def resume(self, key: str, table: str, filter: str | None) -> ClusterScan:  # noqa: A002
        """Return the part of a scan that a task reads."""
        scan = self.store.resume(key)
        if (scan.table_name, scan.standing.filter, scan.standing.limit) != (self._name(table), filter, None):
            raise of_another_read()
        return scan

    def shards(self, table: str) -> tuple[ClusterShards, ClusterShards]:
        """Return placements and shards for one scan of a table."""
        shards = ClusterShards(self.store.connections, self.table(table).space(None))
        return shards, shards

    def _name(self, given: str) -> str:
        named = self._table_name
        if given and named is not None and given != named:
            raise InvalidOption(
                f"the URL names table {named!r} and option table {given!r}; give one", option="table"
            )
        if not given and named is None:
            raise InvalidOption(
                "no table is named; end the URL with /TABLE, or give the option table", option="table"
            )
        return given or named or ""
