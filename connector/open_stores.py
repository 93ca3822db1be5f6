"""Opening the store where a task runs, once for each process."""

from __future__ import annotations

import gc
import sys
from collections import OrderedDict
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock

import pyarrow as pa

from elasticscan.backends import open_cluster
from elasticscan.base.concurrency import renewed_in_child
from elasticscan.base.errors import TableChanged
from elasticscan.base.redaction import shown
from elasticscan.connector.options import Options
from elasticscan.protocol import Backend
from elasticscan.store import CATALOG_FILE, Store, resolve

_MOST_OPEN = 8
_open: OrderedDict[tuple[str, object], Store] = OrderedDict()
_lock = renewed_in_child(Lock)
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
    key = (uri, _identity(uri))
    with _lock():
        store = _open.get(key)
        if store is not None and _was_replaced(store):
            del _open[key]
            store = None
        if store is None:
            _freeze_imports()
            _open[key] = store = Store.open(uri)
            while len(_open) > _MOST_OPEN:
                _open.popitem(last=False)
        _open.move_to_end(key)
    if store_id is not None and store.backend.identity != store_id:
        raise TableChanged(
            f"the store at {shown(uri)} is another one than when this was planned; nothing was committed: "
            "load the DataFrame again",
            uri=shown(uri),
        )
    return store


@cache
def _freeze_imports() -> None:
    """Spare PySpark's daemon, which looks for garbage after each task, the search of all that was imported.

    Once for a process, and before its first store is there, so that nothing that tasks make is kept for ever;
    in workers alone, since garbage is a user's affair in a user's process.
    """
    if _is_worker():
        pa.array([0]).to_numpy()  # with the first one pyarrow imports pandas, where it is installed
        gc.freeze()


def _is_worker() -> bool:
    """Return True in a process that PySpark's daemon has forked, for tasks or to plan."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == _DAEMON


def _was_replaced(store: Store) -> bool:
    """Return True if another store was made at the same place, in a file with the same inode number."""
    try:
        store.backend.versions()
    except TableChanged:
        return True
    return False


def _identity(uri: str) -> object:
    """Return which file the catalog is, where it is one: another one at the same path is another store."""
    try:
        status = (Path(uri) / CATALOG_FILE).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
