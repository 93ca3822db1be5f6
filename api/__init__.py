"""Tables that are cut into tablets, and scans that return every row once while the tablets move.

    import elasticscan, pyarrow as pa

    store = elasticscan.create("tour.store", shards=["s1", "s2"])
    trips = store.create_table("trips", pa.schema([("id", pa.int64()), ("km", pa.float64())]), ["id"])
    trips.upsert(pa.table({"id": [1, 2], "km": [0.5, 7.25]}))   # 2: the commit, a snapshot to read at
    store.expand(["s3"])                                        # tablets move while others read
    trips.scan(filter="km > 1").to_table()                      # one row

This is all there is to import:

create, open  make a store, open one: `Store.create` and `Store.open`.
Store         tables by name, shards and tablets (`expand`, `move`, …), and `resume(key)`.
Table         `upsert`, `merge`, `delete`, `overwrite`, `scan`, `changes`, indexes, columns.
Scan          pages with keys, an Arrow table, or an Arrow stream that DuckDB, Polars and pandas read.
Page          a part of a scan: `rows`, and the `key` from which `Store.resume` continues.
errors        every error, sorted by the action to take: `from elasticscan.errors import TryAgain`.

For Spark there is nothing to import: `spark.read.format("elasticscan").load("tour.store/trips")`; for SQL
over a store's tables, use `elasticscan.connector.attach`. Other modules of `elasticscan` are not for users.

Names are imported at first use, because Arrow and SQL need most of the time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticscan import errors
    from elasticscan.store import Page, Scan, Store, Table

    create = Store.create
    open = Store.open  # noqa: A001 - `elasticscan.open`, as one says `gzip.open`; of a cluster, a ClusterStore

__version__ = "0.1.0"
__all__ = ["Page", "Scan", "Store", "Table", "__version__", "create", "errors", "open"]


def _open(uri: Any, *args: Any, **options: Any) -> Any:
    """Open a store as `Store.open` does, or a Redis or Valkey cluster as `backends.open_cluster` does."""
    backends = import_module("elasticscan.backends")
    if backends.is_cluster(uri):
        return backends.open_cluster(uri, *args, **options)
    return import_module("elasticscan.store").Store.open(uri, *args, **options)


if not TYPE_CHECKING:  # type checkers would take any name, since this one takes all

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            module = import_module(__name__)  # of which Python suggests a name
            raise AttributeError(f"module 'elasticscan' has no attribute {name!r}", name=name, obj=module)
        if name == "errors":
            return import_module("elasticscan.errors")
        store = import_module("elasticscan.store")
        value = _open if name == "open" else getattr(store.Store if name == "create" else store, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
