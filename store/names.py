"""Names that are not there, but that people type: of earlier releases, and of other table formats.

Each with what to write instead; an attribute of any other name is a plain `AttributeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from inspect import CO_VARKEYWORDS, unwrap
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from elasticscan.base.errors import InvalidOption, NotPicklable, UnknownName
from elasticscan.base.resources import telling_lack

Asked = ParamSpec("Asked")
Given = TypeVar("Given")

_OF_TABLE = {
    "add_columns": "add_columns(fields)",
    "aggregate": "aggregate(values, group_by)",
    "changes": "changes()",
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
    "set_retention": "set_retention(period)",
    "update": "update(set, where)",
    "upsert": "upsert(rows)",
    "widen_column": "widen_column(name, type)",
}

# Those of others whose names are none of ours: of Delta, Iceberg, Kafka, and of stores of documents.
_OF_TABLE_ELSEWHERE = {
    **dict.fromkeys(("append", "put", "save", "send", "write"), "upsert(rows)"),
    **dict.fromkeys(("alter_column", "change_column", "update_column"), "widen_column(name, type)"),
    **dict.fromkeys(("cdc", "change_feed", "load_cdf", "subscribe", "table_changes"), "changes()"),
    **dict.fromkeys(("checkout", "time_travel", "with_snapshot"), "scan(snapshot=commit)"),
    **dict.fromkeys(("create_tag", "manage_snapshots"), "tag(name)"),
    **dict.fromkeys(("describe", "detail", "dtypes", "fields"), "schema, or table.definition for all of it"),
    **dict.fromkeys(("expire_snapshots", "set_properties"), "set_retention(period)"),
    **dict.fromkeys(("rewrite_data_files", "z_order"), "compact()"),
    **dict.fromkeys(("truncate", "truncate_table"), "delete(where='TRUE')"),
    **dict.fromkeys(
        ("rename", "rename_table"), "export(path), and load it under another name: tables keep theirs"
    ),
    **dict.fromkeys(
        ("to_csv", "to_json", "write_csv"),
        "to_pandas().to_csv(file) and the like, or table.export(path)",
    ),
    "rename_columns": "rename_column(old, new)",
    "add_column": "add_columns([pa.field(name, type)])",
    "current_snapshot": "history(1)[0]",
    "drop_column": "drop_columns([name])",
    "find": "scan(filter=condition), or table.get(keys)",
    "lookup": "get(keys)",
    "query": "scan(columns, filter)",
    "remove": "delete(keys), or table.delete(where=condition)",
    "replace": "overwrite(rows)",
    "replace_where": "overwrite(rows, where=condition)",
    "tail": "scan(order_by='column DESC', limit=n)",
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
    "take": "limit=n",
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
    "fetchone": "next({}.batches())",
    "height": "{}.count()",
    "iter_batches": "{}.batches()",
    "num_rows": "{}.count()",
    "pl": "{}.to_polars()",
    "read_all": "{}.to_table()",
    "rows": "{}.to_table().to_pylist()",
    "shape": "{}.count()",
    "show": "print({}.to_table())",
    "toPandas": "{}.to_pandas()",
    "to_arrow_batch_reader": "{}.to_reader()",
    "to_arrow_table": "{}.to_table()",
    "to_batches": "{}.batches()",
    "to_df": "{}.to_pandas()",
    "to_dicts": "{}.to_table().to_pylist()",
    "to_pyarrow_table": "{}.to_table()",
    "to_pylist": "{}.to_table().to_pylist()",
}


_SQL_OF_STORE = (
    "scan = store.table(name).scan(); duckdb.sql('SELECT … FROM scan'), or in Spark "
    "elasticscan.connector.attach(spark, uri).sql(…)"
)


_TABLE_EXISTS = "name in [table.name for table in store.tables()]"


def _results_of(scan: str) -> dict[str, str]:
    return {name: call.format(scan) for name, call in _RESULTS.items()}


INSTEAD: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Store": {
            **{name: f"store.table(name).{call}" for name, call in (_OF_TABLE | _OF_TABLE_ELSEWHERE).items()},
            **dict.fromkeys(("execute", "query", "sql"), _SQL_OF_STORE),
            **dict.fromkeys(("get_table", "load_table", "open_table"), "store.table(name)"),
            **{name: f"store.status()[{name!r}]" for name in ("leases", "shards", "tablets")},
            **dict.fromkeys(("add_shard", "reshard", "scale", "scale_out"), "store.expand([shard])"),
            **dict.fromkeys(("remove_shard", "scale_in"), "store.contract(shard)"),
            **dict.fromkeys(("describe", "detail", "info", "stats"), "store.status()"),
            "begin": "store.table(name).upsert(rows): each write is a commit, all or nothing",
            "commit": "store.table(name).upsert(rows): each write is a commit, all or nothing",
            "drop": "store.table(name).drop()",
            "commits": "store.table(name).history()",
            "history": "store.table(name).history(), or store.topology_history()",
            "list_tables": "store.tables()",
            "export": "store.table(name).export(path)",
            "list_shards": "store.status()['shards']",
            "path": "store.uri",
            "repair": "store.verify(), and in a shell `elasticscan repair STORE NEW`",
            "snapshot": "store.status()['snapshot']",
            "table_exists": _TABLE_EXISTS,
            "table_names": "[table.name for table in store.tables()]",
            "gc": "store.collect_garbage()",
            "optimize": "store.keep(), or store.table(name).compact()",
            "snapshots": "store.table(name).history()",
            "tag": "store.table(name).tag(tag)",
            "vacuum": "store.collect_garbage()",
        },
        "Table": {
            **_SCANS,
            **_results_of("table.scan()"),
            **{name: f"table.{call}" for name, call in _OF_TABLE_ELSEWHERE.items()},
            "agg": "table.aggregate(values, group_by)",
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
            "sql": "scan = table.scan(); duckdb.sql('SELECT … FROM scan')",
            "to_duckdb": "scan = table.scan(); duckdb.sql('SELECT … FROM scan')",
            "to_parquet": "table.export(path)",
            "to_table": "table.scan().to_table()",
            "vacuum": "store.collect_garbage()",
            "version": "table.history(1)[0].number",
            "versions": "table.history()",
        },
        "Scan": {
            **_SCANS,
            **_results_of("scan"),
            "sql": "duckdb.sql('SELECT … FROM scan'), or scan.to_table()",
            "to_arrow": "scan.to_table()",
        },
    }
)

# What to send to another process in place of each, and what to do with it there.
_SENT = {
    "Store": "send store.uri, and call elasticscan.open(uri)",
    "Table": "send store.uri and table.name, and call elasticscan.open(uri).table(name)",
    "Scan": "send store.uri and scan.key, and go on with elasticscan.open(uri).resume(key)",
}


# Arguments of other methods and libraries, each with those that say it here: the one that a method takes
# counts; or with why there is none.
KEYWORDS: Mapping[str, Sequence[str] | str] = MappingProxyType(
    {
        **dict.fromkeys(("where", "predicate", "row_filter", "condition", "filters"), ("filter", "where")),
        **dict.fromkeys(("filter", "overwrite_filter", "replace_where", "delete_filter"), ("where",)),
        **dict.fromkeys(("select", "selected_fields", "fields", "projection"), ("columns",)),
        **dict.fromkeys(("as_of", "version", "snapshot_id", "version_as_of"), ("snapshot", "to")),
        **dict.fromkeys(("timestamp_as_of", "at"), ("timestamp", "snapshot", "to")),
        **dict.fromkeys(("snapshot", "timestamp"), ("to",)),
        **dict.fromkeys(("order", "sort", "sort_by"), ("order_by",)),
        **dict.fromkeys(("since", "starting_version", "start", "offset"), ("after", "if_unchanged_since")),
        **dict.fromkeys(("until", "ending_version", "end", "before", "to_version"), ("upto",)),
        **dict.fromkeys(("updates", "new_values", "assignments"), ("set",)),
        **dict.fromkeys(("batch_size", "batch_rows", "page_size"), ("page_rows",)),
        **dict.fromkeys(("path", "location"), ("uri", "directory", "source")),
        **dict.fromkeys(("key", "keys", "pk"), ("primary_key",)),
        **dict.fromkeys(("n", "n_rows", "head", "max_rows"), ("limit",)),
        "by": ("group_by",),
        "params": ("parameters",),
        "data": ("rows", "schema", "source"),
        "properties": ("user_metadata",),
        "snapshot_properties": ("user_metadata",),
        "num_shards": ("shards",),
        "buckets": ("slots",),
        **dict.fromkeys(
            ("if_not_exists", "exist_ok"),
            "what is there raises AlreadyExists, and table(name) or elasticscan.open(uri) opens it",
        ),
        **dict.fromkeys(("descending", "ascending", "reverse"), "order_by='column DESC' says it"),
        "lazy": "write to_polars().lazy(); columns and filter say what is read",
        **dict.fromkeys(
            ("sep", "delimiter", "delim"),
            "fields of CSV are apart by commas; what pyarrow.csv.read_csv reads of others, upsert takes",
        ),
        "dtype": ("types",),
        "unique": "primary keys are there once, and values of other columns may be there again: leave it out",
        "mode": "upsert, insert, merge and overwrite write rows, and read_only=True opens a store to read it",
        **dict.fromkeys(
            ("on", "join_cols", "match_on"), "rows are matched by the primary key of the table: leave it out"
        ),
        **dict.fromkeys(
            ("partition_by", "partition_spec", "partitioning"),
            "rows are spread by a hash of the primary key, or of its beginning: shard_key=",
        ),
    }
)

# Operators that people try on them; each would else be an error without a hint.
_OPERATORS = {
    "Store": {
        "__getitem__": "store.table(name)",
        "__iter__": "store.tables()",
        "__contains__": _TABLE_EXISTS,
    },
    "Table": {
        "__getitem__": "table.scan(columns).to_table(), or table.get(keys) for rows by their keys",
        "__len__": "table.scan().count()",
        "__iter__": "table.scan().batches()",
        "__array__": "table.to_pandas(), table.to_polars() or table.to_arrow()",
    },
    "Scan": {"__array__": "scan.to_pandas(), scan.to_polars() or scan.to_table()"},
}
_SHOWN = {
    "__array__": "an array of a {}",
    "__contains__": "in {}",
    "__getitem__": "{}[…]",
    "__iter__": "for … in {}",
    "__len__": "len({})",
}


def _telling_words(method: Callable[Asked, Given]) -> Callable[Asked, Given]:
    """Make a method tell its own word for one that it does not take, as `filter` for `where`."""
    code = unwrap(method).__code__
    own = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    if code.co_flags & CO_VARKEYWORDS:  # it hands them on
        return method

    @wraps(method)
    def call(*args: Asked.args, **named: Asked.kwargs) -> Given:
        for word in named.keys() - own:
            here = KEYWORDS.get(word, ())
            if isinstance(here, str):
                raise InvalidOption(f"{method.__name__} takes no {word}=: {here}", option=word)
            near = [name for name in here if name in own] or get_close_matches(word, own, n=1, cutoff=0.7)
            if near:
                raise InvalidOption(f"{method.__name__} takes {near[0]}=, and no {word}=", option=word)
        return method(*args, **named)

    return call


def _refusing(kind: str, operator: str, instead: str) -> Callable[..., NoReturn]:
    shown = _SHOWN[operator].format(kind.lower())

    def refuse(self: object, *_: object, **__: object) -> NoReturn:
        raise UnknownName(f"{shown} does not exist; write {instead}", name=operator)

    return refuse


class Named:
    """A class whose errors for missing names say what to write instead.

    Its objects hold connections and open files, so they stay in their process. Where that has no more memory,
    files or threads, every method that users call says so.
    """

    def __init_subclass__(cls, shown_as: str | None = None, **options: Any) -> None:
        """`shown_as` is the name that users know, of a class that is only a part of another one."""
        super().__init_subclass__(**options)
        for name, member in list(vars(cls).items()):
            if name.startswith("_") and name != "__next__":
                continue
            function = member.__func__ if isinstance(member, classmethod) else member
            if not isinstance(function, FunctionType):
                continue
            unwrap(function).__qualname__ = f"{shown_as or cls.__name__}.{name}"  # for errors of Python's own
            wrapped = telling_lack(_telling_words(function))
            setattr(cls, name, classmethod(wrapped) if isinstance(member, classmethod) else wrapped)
        for operator, instead in _OPERATORS.get(cls.__name__, {}).items():
            setattr(cls, operator, _refusing(cls.__name__, operator, instead))

    def __bool__(self) -> bool:
        return True  # and is not asked for its length

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self).__name__
        raise NotPicklable(f"a {kind} cannot be pickled or copied; {_SENT[kind]} there", kind=kind)

    if not TYPE_CHECKING:  # else type checkers take every name for one that exists

        def __getattr__(self, name: str) -> object:
            kind = type(self).__name__
            hints, own = INSTEAD.get(kind, {}), dir(type(self))
            near = [name] if name in hints else []
            if not name.startswith("_") and name not in own:  # one that is there has failed within
                near = near or get_close_matches(
                    name, [*hints, *(one for one in own if one[0] != "_")], n=1, cutoff=0.75
                )
            if not near:
                raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=self)
            instead = hints.get(near[0], f"{kind.lower()}.{near[0]}")
            raise UnknownName(f"{kind}.{name} does not exist; write {instead}", name=name)
