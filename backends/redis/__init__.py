"""Redis and Valkey clusters, read while slots move between their masters.

hash_slots    slots of keys, and a tag for each slot
cluster_map   placements, from what nodes say
patterns      patterns of key names
values        values as rows
pages         the rule: which commands read a page, and what their answers say
connections   commands out, answers in
cluster       placements and shards of one scan
keys          continuation keys
history       placements that were seen, as topologies
inference     columns, from a sample of keys
options       options and URLs
errors        errors of clusters, as those of the product
scan          a scan: pages with keys, a table, a stream
store         a cluster and its tables

All but `connections`, `history` and what is built on them is pure: it runs against a simulated cluster, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from elasticscan.backends.redis.options import parse_options, split_uri
from elasticscan.backends.redis.store import ClusterStore, ClusterTable
from elasticscan.base.errors import InvalidOption

__all__ = ["ClusterStore", "ClusterTable", "open_store", "open_table", "split_uri"]

_SECRET = "keysecret"


def open_store(uri: str, options: Mapping[str, Any]) -> ClusterStore:
    """Open a cluster by its URI and the options that say how to reach it."""
    cluster, table, secret = _parsed(options)
    if table:
        raise InvalidOption(
            f"{next(iter(table))} is an option of table(), not of the cluster", option="options"
        )
    return ClusterStore(replace(split_uri(uri)[0], **cluster), secret)


def open_table(
    uri: str, name: str | None, schema: pa.Schema | None, options: Mapping[str, Any]
) -> ClusterTable:
    """Open a table by options as Spark has them; the URI may end with its name."""
    cluster, table, secret = _parsed(options)
    reach, named = split_uri(uri)
    if name is not None and named is not None and name != named:
        raise InvalidOption(
            f"the URL names table {named!r} and option table {name!r}; give one", option="table"
        )
    found = name or named
    if found is None:
        raise InvalidOption(
            "no table is named; end the URL with /TABLE, or give the option table", option="table"
        )
    return ClusterStore(replace(reach, **cluster), secret).table(found, schema, **table)


def _parsed(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    secret = next((value for name, value in options.items() if name.lower() == _SECRET), None)
    given = {name: value for name, value in options.items() if name.lower() != _SECRET}
    return *parse_options(given), secret
