"""Names that are not there, but that people type: of earlier releases, and of other table formats.

Each with what to write instead; an attribute of any other name is a plain `AttributeError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from elasticscan.base.errors import UnknownName

_OF_TABLE = {
    name: f"store.table(name).{now}"
    for name, now in {
        "add_columns": "add_columns(fields)",
        "append": "upsert(rows)",
        "changes": "changes(after)",
        "commits": "commits()",
        "create_index": "create_index(index, columns)",
        "delete": "delete(keys)",
        "drop_index": "drop_index(index)",
        "drop_table": "drop()",
        "indexes": "indexes()",
        "overwrite": "overwrite(rows)",
        "read": "scan().to_table()",
        "scan": "scan()",
        "set_retention": "set_retention(seconds)",
        "upsert": "upsert(rows)",
        "write": "upsert(rows)",
    }.items()
}

INSTEAD: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Store": {
            **_OF_TABLE,
            "drop": "store.table(name).drop()",
            "history": "store.table(name).commits(), or store.topology_history()",
            "list_tables": "store.tables()",
            "load_table": "store.table(name)",
            "sql": "scan = store.table(name).scan(); duckdb.sql('SELECT … FROM scan'), or in Spark "
            "elasticscan.connector.attach(spark, uri).sql(…)",
            "vacuum": "store.collect_garbage()",
        },
        "Table": {
            "append": "table.upsert(rows)",
            "count": "table.scan().count()",
            "filter": "table.scan(columns, filter)",
            "history": "table.commits()",
            "insert": "table.upsert(rows)",
            "limit": "table.scan(limit=n)",
            "merge": "table.upsert(rows)",
            "optimize": "table.compact()",
            "read": "table.scan().to_table()",
            "select": "table.scan(columns, filter)",
            "to_arrow": "table.scan().to_table()",
            "to_pandas": "table.scan().to_table().to_pandas()",
            "to_polars": "polars.DataFrame(table.scan())",
            "update": "table.upsert(rows)",
            "vacuum": "store.collect_garbage()",
            "where": "table.scan(columns, filter)",
            "write": "table.upsert(rows)",
        },
        "Scan": {
            "collect": "scan.to_table()",
            "df": "scan.to_table().to_pandas()",
            "fetchall": "scan.to_table().to_pylist()",
            "filter": "table.scan(columns, filter)",
            "limit": "table.scan(columns, filter, limit=n)",
            "select": "table.scan(columns, filter)",
            "show": "print(scan.to_table())",
            "to_arrow": "scan.to_table()",
            "to_arrow_batch_reader": "scan.to_reader()",
            "to_batches": "scan.batches()",
            "to_pandas": "scan.to_table().to_pandas()",
            "to_polars": "polars.DataFrame(scan)",
            "where": "table.scan(columns, filter)",
        },
    }
)


class Named:
    """A class whose errors for missing names say what to write instead."""

    if not TYPE_CHECKING:  # else type checkers take every name for one that exists

        def __getattr__(self, name: str) -> object:
            kind = type(self).__name__
            instead = INSTEAD.get(kind, {}).get(name)
            if instead is None:
                raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=self)
            raise UnknownName(f"{kind}.{name} does not exist; write {instead}", name=name)
