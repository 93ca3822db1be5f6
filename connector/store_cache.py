"""Opening the store where a task runs, once for each process."""

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
    """Open the store of a read: an embedded one as `open_store` does, or a cluster that others operate."""
    if options.is_embedded:
        return open_store(options.store, store_id).backend
    return _open_cluster(options.store, tuple(sorted(options.own.items())))


@lru_cache(_MOST_OPEN)
def _open_cluster(uri: str, options: tuple[tuple[str, str], ...]) -> Backend:
    return open_cluster(uri, **dict(options))


def open_store(uri: str, store_id: str | None = None) -> Store:
    """Open the store at `uri`, or return the one that an earlier plan or task of this process has opened.

    Another store may have been made at the same place since, so the catalog's file is part of the key, and
    the store's id is compared where it is known.

    Raises:
        TableChanged: the store at `uri` is not the one that the plan was made for.
    """
    uri = resolve(uri)
    store = opened(uri, _identity(uri))
    try:
        store.backend.versions()
    except TableChanged:  # another store was made here, in a file with the same inode number
        opened.cache_clear()
        store = opened(uri, _identity(uri))
    if store_id is not None and store.backend.identity != store_id:
        raise TableChanged(
            f"the store at {shown(uri)} is another one than when this was planned; nothing was committed: "
            "load the DataFrame again",
            uri=shown(uri),
        )
    return store


@lru_cache(_MOST_OPEN)
def opened(uri: str, file: object) -> Store:
    """Open a store whose catalog is this file, or return the one that is open."""
    _freeze_imports()
    return Store.open(uri)


@cache
def _freeze_imports() -> None:
    """Spare PySpark's daemon, which looks for garbage after each task, the search of all that was imported.

    Once for a process, and before its first store is there, so that nothing that tasks make is kept for ever;
    in workers alone, since garbage is a user's affair in a user's process.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == _DAEMON:  # which forked this process, for tasks or to plan
        pa.array([0]).to_numpy()  # with the first one pyarrow imports pandas, where it is installed
        gc.freeze()


def _identity(uri: str) -> object:
    """Return which file the catalog is, where it is one: another one at the same path is another store."""
    try:
        status = (Path(uri) / CATALOG_FILE).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
