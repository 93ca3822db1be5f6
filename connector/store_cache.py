"""Stores that stay open for all plans and tasks of a process."""

from __future__ import annotations

import gc
import sys
from functools import cache, lru_cache
from pathlib import Path

import pyarrow as pa

from elasticscan.backends import open_cluster
from elasticscan.base.errors import TableChanged
from elasticscan.base.redaction import shown
from elasticscan.connector.options import Options
from elasticscan.protocol import Backend
from elasticscan.store import CATALOG_FILE, Store, resolve

_MOST_OPEN = 8
_DAEMON = "pyspark.daemon"


def open_backend(options: Options, store_id: str | None = None) -> Backend:
    """Open the embedded store, as `open_store`, or the cluster of a read."""
    if options.is_embedded:
        return open_store(options.store, store_id).backend
    return _open_cluster(options.store, tuple(sorted(options.cluster_options.items())))


@lru_cache(_MOST_OPEN)
def _open_cluster(uri: str, options: tuple[tuple[str, str], ...]) -> Backend:
    return open_cluster(uri, **dict(options))


def open_store(uri: str, store_id: str | None = None) -> Store:
    """Open the store at `uri`, or return it if this process has opened it before.

    Another store may have been created at the URI since then. So the file of the catalog is part of the
    cache's key, and the store's id is compared with the one of the plan.

    Raises:
        TableChanged: the store at `uri` is not the one of the plan.
    """
    uri = resolve(uri)
    store = opened(uri, _identity(uri))
    try:
        store.backend.versions()
    except TableChanged:  # another store has a catalog file with the same inode number
        opened.cache_clear()
        store = opened(uri, _identity(uri))
    if store_id is not None and store.backend.identity != store_id:
        raise TableChanged(
            f"another store is at {shown(uri)} since this was planned; nothing was committed: load the "
            "DataFrame again",
            uri=shown(uri),
        )
    return store


@lru_cache(_MOST_OPEN)
def opened(uri: str, file: object) -> Store:
    """Open a store; `file` identifies its catalog in the cache."""
    _freeze_imports()
    return Store.open(uri)


@cache
def _freeze_imports() -> None:
    """Exclude imported modules from garbage collection, which PySpark's daemon runs after each task.

    Runs once in a process, before its first store is open, so that no object of a task is kept for ever. Runs
    in workers only: in other processes the garbage collector belongs to the user.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == _DAEMON:  # the daemon has forked this process
        pa.array([0]).to_numpy()  # at the first call pyarrow imports pandas, if it is installed
        gc.freeze()


def _identity(uri: str) -> object:
    """Return the identity of the catalog's file; None for a catalog that is not a local file."""
    try:
        status = (Path(uri) / CATALOG_FILE).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
