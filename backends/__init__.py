"""Back ends other than the embedded store: stores that others operate.

redis   Redis and Valkey clusters, read with the cursor rule while they are resharded

A URI's scheme chooses the back end. Its client library is imported when a store is opened, not before.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elasticscan.base.errors import InvalidOption

if TYPE_CHECKING:
    from elasticscan.backends.redis import ClusterStore

__all__ = ["is_cluster", "open_cluster"]

_CLUSTERS = ("redis", "rediss", "valkey", "valkeys")


def is_cluster(uri: object) -> bool:
    """Return whether a URI, or the URI in the variable that it names, is of a Redis or Valkey cluster."""
    if not isinstance(uri, str):
        return False
    if uri.startswith("env:"):
        uri = os.environ.get(uri.removeprefix("env:"), "")
    return uri.partition("://")[0] in _CLUSTERS


def open_cluster(uri: str, **options: Any) -> ClusterStore:
    """Open a cluster for reads, and connect to its nodes.

    Args:
        uri: `redis://user:password@host:port,host:port/table`, where the table is optional; `rediss` for TLS.
        options: the options of Spark; options of tables are defaults of `ClusterStore.table`.

    Raises:
        InvalidOption: the URI or an option is wrong, or the extra `redis` is not installed.
        ShardUnavailable: no node answers.
    """
    try:
        clusters = import_module("elasticscan.backends.redis")
    except ModuleNotFoundError as error:
        raise InvalidOption(
            f"{error.name} is not installed; pip install 'elasticscan[redis]'", option="url"
        ) from error
    store: ClusterStore = clusters.ClusterStore(uri, options)
    return store
