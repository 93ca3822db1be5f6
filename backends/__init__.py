"""Back ends other than the embedded store: stores that others operate.

redis   Redis and Valkey clusters, read with the cursor rule while they are resharded

A URI's scheme chooses the back end. Its client library is imported when a store is opened, not before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from elasticscan.base.errors import InvalidOption

if TYPE_CHECKING:
    from elasticscan.backends.redis.store import ClusterStore
    from elasticscan.protocol import Backend

__all__ = ["is_cluster", "open_backend", "open_cluster"]

_CLUSTERS = ("redis", "rediss", "valkey", "valkeys")
_FROM_ENVIRONMENT = "env:"


def is_cluster(uri: object) -> bool:
    """Return whether a URI, or the variable that it names, is that of a Redis or Valkey cluster."""
    if not isinstance(uri, str):
        return False
    if uri.startswith(_FROM_ENVIRONMENT):
        uri = os.environ.get(uri.removeprefix(_FROM_ENVIRONMENT), "")
    return uri.partition("://")[0] in _CLUSTERS


def open_backend(uri: str, options: Mapping[str, str]) -> Backend:
    """Open a cluster for reads, by its URI and options as Spark has them, those of tables among them."""
    backend: Backend = _client().RedisBackend(uri, options)
    return backend


def open_cluster(uri: str, **options: Any) -> ClusterStore:
    """Open a cluster, whose nodes are looked up at once.

    Args:
        uri: `redis://user:password@host:port,host:port`; `rediss` for TLS.
        options: as the options of Spark that say how to reach a cluster, such as `timeout` or `addressMap`,
            and `keySecret`.

    Raises:
        InvalidOption: the URI or an option is wrong, or the extra `redis` is not installed.
        ShardUnavailable: no node answers.
    """
    if options.pop("read_only", True) is not True:
        raise InvalidOption("a cluster is always read-only; leave read_only out", option="read_only")
    store: ClusterStore = _client().open_store(uri, options)
    return store


def _client() -> Any:
    try:
        return import_module("elasticscan.backends.redis")
    except ModuleNotFoundError as error:
        raise InvalidOption(
            f"{error.name} is not installed; pip install 'elasticscan[redis]'", option="url"
        ) from error
