"""Names that an attached store does not have, but that people type, each with what to write instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from elasticscan.base.errors import UnknownName
from elasticscan.base.nearness import nearest

INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("query", "execute", "run", "cql", "select"), "catalog.sql(text)"),
        **dict.fromkeys(
            ("read", "load", "load_table", "get_table", "scan", "from_table", "view"),
            "catalog.table(name).load()",
        ),
        **dict.fromkeys(
            ("list_tables", "show_tables", "listTables", "table_names", "views"), "catalog.tables, a tuple"
        ),
        **dict.fromkeys(
            ("create_table", "createTable", "drop_table", "dropTable"),
            "catalog.sql('CREATE TABLE …') and catalog.sql('DROP TABLE …')",
        ),
        **dict.fromkeys(
            ("insert", "update", "delete", "merge", "upsert", "write", "append"),
            "catalog.sql('INSERT INTO …'), UPDATE, DELETE and MERGE INTO likewise; or "
            "frame.write.format('elasticscan').mode('append').save('store/table')",
        ),
        **dict.fromkeys(
            ("refresh", "refreshTable", "reload"), "catalog.sql(text): each call reads the newest rows"
        ),
        **dict.fromkeys(
            ("readStream", "stream", "subscribe"),
            "spark.readStream.format('elasticscan').load('store/table')",
        ),
        **dict.fromkeys(("store", "open"), "elasticscan.open(uri)"),
    }
)


class TableNames(tuple[str, ...]):
    """Names of tables. Whoever calls them, since `Store.tables` is a method, gets them, too."""

    def __call__(self) -> TableNames:
        return self


def no_such_name(name: str, own: Collection[str], views: Collection[str]) -> Exception:
    """The error of a name that an attached store does not have; an `AttributeError` in any case."""
    message = INSTEAD.get(name)
    if message is None and name in views:
        message = f"catalog.table({name!r})"
    if message is None and not name.startswith("_"):
        near = nearest(name, own, 0.8)
        message = f"catalog.{near}" if near else None
    if message is None:
        return AttributeError(f"'AttachedStore' object has no attribute {name!r}", name=name)
    return UnknownName(f"an attached store has no {name}; write {message}", name=name)
