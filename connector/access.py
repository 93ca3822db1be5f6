"""Opening the store where a task runs, once for each process."""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock

from elasticscan.base.errors import TableChanged
from elasticscan.store import Store

_MOST_OPEN = 8
_open: OrderedDict[tuple[int, str], Store] = OrderedDict()
_lock = Lock()


def opened(uri: str, store_id: str) -> Store:
    """The store at `uri`, kept open for the next task of this process.

    Spark forks workers and uses them again, so the process is part of the key; and another store
    may have been made at the same place since, so its id is compared.

    Raises:
        TableChanged: the store at `uri` is not the one that the plan was made for.
    """
    key = (os.getpid(), uri)
    with _lock:
        found = _open.get(key)
        if found is None or found.context.info.store_id != store_id:
            _open[key] = found = Store.open(uri)
            while len(_open) > _MOST_OPEN:
                _open.popitem(last=False)
        _open.move_to_end(key)
    if found.context.info.store_id != store_id:
        raise TableChanged(
            f"the store at {uri} is another one than when this was planned; load the DataFrame again",
            uri=uri,
        )
    return found
