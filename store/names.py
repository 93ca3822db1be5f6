"""Names that are not there, but that people type: of earlier releases, and of other table formats.

Each with what to write instead; an attribute of any other name is a plain `AttributeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from elasticscan.base.errors import InvalidOption, NotPicklable, UnknownName
from elasticscan.base.resources import telling_lack

Asked = ParamSpec("Asked")
Given = TypeVar("Given")

_OF_TABLE = {
    "add_columns": "add_columns(fields)",
    "aggregate": "aggregate(values, group_by)",
    "append": "upsert(rows)",
    "changes": "changes(after)",
    "create_index": "create_index(index, columns)",
    "delete": "delete(keys)",
    "drop_columns": "drop_columns(names)",
    "drop_index": "drop_index(index)",
    "drop_table": "drop()",
    "history": "history()",
    "indexes": "indexes()",
    "insert": "insert(rows)",
    "merge": "merge(rows)",
    "overwrite": "overwrite(rows)",
    "read": "scan().to_table()",
    "rename_column": "rename_column(old, new)",
    "restore": "restore(to)",
    "scan": "scan()",
    "set_compression": "set_compression(compression)",
    "set_retention": "set_retention(seconds)",
    "update": "update(set, where)",
    "upsert": "upsert(rows)",
    "widen_column": "widen_column(name, type)",
    "write": "upsert(rows)",
}

# What queries of other libraries call on a table or on what was selected of it: arguments of a scan.
_ARGUMENTS = {
    "filter": "columns, filter",
    "head": "limit=n",
    "limit": "limit=n",
    "order_by": "order_by=columns",
    "select": "columns, filter",
    "sort": "order_by=columns",
    "sort_by": "order_by=columns",
    "sort_values": "order_by=columns",
    "where": "columns, filter",
}
_SCANS = {name: f"table.scan({given})" for name, given in _ARGUMENTS.items()}

# What they call to have the rows.
_RESULTS = {
    "arrow": "{}.to_table()",
    "collect": "{}.to_table()",
    "columns": "{}.schema.names",
    "df": "{}.to_pandas()",
    "fetch_arrow_table": "{}.to_table()",
    "fetchall": "{}.to_table().to_pylist()",
    "fetchdf": "{}.to_pandas()",
    "height": "{}.count()",
    "iter_batches": "{}.batches()",
    "num_rows": "{}.count()",
    "pl": "{}.to_polars()",
    "show": "print({}.to_table())",
    "to_arrow_batch_reader": "{}.to_reader()",
    "to_batches": "{}.batches()",
    "to_dicts": "{}.to_table().to_pylist()",
    "to_pylist": "{}.to_table().to_pylist()",
}


def _results_of(scan: str) -> dict[str, str]:
    return {name: call.format(scan) for name, call in _RESULTS.items()}


INSTEAD: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Store": {
            **{name: f"store.table(name).{call}" for name, call in _OF_TABLE.items()},
            "drop": "store.table(name).drop()",
            "commits": "store.table(name).history()",
            "history": "store.table(name).history(), or store.topology_history()",
            "list_tables": "store.tables()",
            "export": "store.table(name).export(directory)",
            "load_table": "store.table(name)",
            "sql": "scan = store.table(name).scan(); duckdb.sql('SELECT … FROM scan'), or in Spark "
            "elasticscan.connector.attach(spark, uri).sql(…)",
            "gc": "store.collect_garbage()",
            "optimize": "store.keep(), or store.table(name).compact()",
            "snapshots": "store.table(name).history()",
            "tag": "store.table(name).tag(tag)",
            "vacuum": "store.collect_garbage()",
        },
        "Table": {
            **_SCANS,
            **_results_of("table.scan()"),
            "agg": "table.aggregate(values, group_by)",
            "append": "table.upsert(rows)",
            "as_of": "table.scan(snapshot=commit), with a tag or a datetime, too",
            "batches": "table.scan().batches()",
            "commits": "table.history()",
            "count": "table.scan().count()",
            "group_by": "table.aggregate(values, group_by)",
            "groupby": "table.aggregate(values, group_by)",
            "explain": "table.scan(columns, filter).explain()",
            "load": "store.load(name, files)",
            "optimize": "table.compact()",
            "read": "table.scan().to_table()",
            "restoreToTimestamp": "table.restore(to=datetime)",
            "restoreToVersion": "table.restore(to=commit)",
            "rollback": "table.restore(to)",
            "snapshots": "table.history()",
            "to_parquet": "table.export(directory)",
            "to_reader": "table.scan().to_reader()",
            "to_table": "table.scan().to_table()",
            "truncate": "table.delete(where='TRUE')",
            "vacuum": "store.collect_garbage()",
            "version": "table.history(1)[0].number",
            "versions": "table.history()",
            "write": "table.upsert(rows)",
        },
        "Scan": {**_SCANS, **_results_of("scan"), "to_arrow": "scan.to_table()"},
    }
)

# What to send to another process in place of each, and what to do with it there.
_SENT = {
    "Store": "send store.uri, and call elasticscan.open(uri)",
    "Table": "send store.uri and table.name, and call elasticscan.open(uri).table(name)",
    "Scan": "send store.uri and scan.key, and go on with elasticscan.open(uri).resume(key)",
}


def takes(**words: str) -> Callable[[Callable[Asked, Given]], Callable[Asked, Given]]:
    """Make a method tell its own word for one that other methods take, as `filter` for `where`."""

    def wrap(method: Callable[Asked, Given]) -> Callable[Asked, Given]:
        @wraps(method)
        def call(*args: Asked.args, **named: Asked.kwargs) -> Given:
            for word in named.keys() & words.keys():
                raise InvalidOption(f"{method.__name__} takes {words[word]}=, and no {word}=", option=word)
            return method(*args, **named)

        return call

    return wrap


class Named:
    """A class whose errors for missing names say what to write instead.

    Its objects hold connections and open files, so they stay in their process. Where that has no more memory,
    files or threads, every method that users call says so.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, member in list(vars(cls).items()):
            if name.startswith("_") and name != "__next__":
                continue
            if isinstance(member, FunctionType):
                setattr(cls, name, telling_lack(member))
            elif isinstance(member, classmethod):
                setattr(cls, name, classmethod(telling_lack(member.__func__)))

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self).__name__
        raise NotPicklable(f"a {kind} cannot be pickled or copied; {_SENT[kind]} there", kind=kind)

    if not TYPE_CHECKING:  # else type checkers take every name for one that exists

        def __getattr__(self, name: str) -> object:
            kind = type(self).__name__
            instead = INSTEAD.get(kind, {}).get(name)
            if instead is None:
                raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=self)
            raise UnknownName(f"{kind}.{name} does not exist; write {instead}", name=name)
