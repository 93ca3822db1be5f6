"""Names that are not there, but that people type: of earlier releases, and of other table formats.

Each with what to write instead; an attribute of any other name is a plain `AttributeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from inspect import signature, unwrap
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from elasticscan.base.errors import ElasticScanError, NotPicklable, UnknownName, WrongArguments
from elasticscan.base.limits import MAX_COLUMN_NAME_BYTES
from elasticscan.base.nearness import nearest
from elasticscan.base.resources import telling_lack
from elasticscan.store.words import telling_words

_OF_TABLE = {
    "add_columns": "add_columns(fields)",
    "aggregate": "aggregate(values, group_by)",
    "changes": "changes()",
    "create_index": "create_index(index, columns)",
    "definition": "definition",
    "delete": "delete(keys)",
    "drop_columns": "drop_columns(names)",
    "drop_index": "drop_index(index)",
    "drop_table": "drop()",
    "drop_tag": "drop_tag(tag)",
    "explain_aggregate": "explain_aggregate(values, group_by)",
    "get": "get(keys)",
    "history": "history()",
    "indexes": "indexes()",
    "insert": "insert(rows)",
    "merge": "merge(rows)",
    "overwrite": "overwrite(rows)",
    "read": "scan().to_table()",
    "rename_column": "rename_column(old, new)",
    "restore": "restore(to)",
    "scan": "scan()",
    "schema": "schema",
    "set_compression": "set_compression(compression)",
    "set_retention": "set_retention(period)",
    "tags": "tags()",
    "to_arrow": "to_arrow()",
    "to_pandas": "to_pandas()",
    "to_polars": "to_polars()",
    "to_reader": "to_reader()",
    "update": "update(set, where)",
    "upsert": "upsert(rows)",
    "widen_column": "widen_column(name, type)",
}

# Those of others whose names are none of ours: of Delta, Iceberg, Kafka, and of stores of documents.
_OF_TABLE_ELSEWHERE = {
    **dict.fromkeys(
        (
            "append",
            "put",
            "save",
            "send",
            "write",
            "produce",
            "producer",
            "bulk_write",
            "insert_all",
            "upsert_many",
        ),
        "upsert(rows)",
    ),
    **dict.fromkeys(("insert_one", "insert_many"), "insert(rows)"),
    **dict.fromkeys(("replace_one", "find_one_and_replace"), "upsert(rows)"),
    **dict.fromkeys(("update_one", "update_many", "find_one_and_update"), "update(set, where)"),
    **dict.fromkeys(("delete_one", "delete_many", "find_one_and_delete"), "delete(where=condition)"),
    **dict.fromkeys(
        ("count_documents", "estimated_document_count", "size_of"), "scan(filter=condition).count()"
    ),
    **dict.fromkeys(("ensure_index", "create_indexes"), "create_index(index, columns)"),
    **dict.fromkeys(("list_indexes", "index_information"), "indexes()"),
    **dict.fromkeys(("alter_column", "change_column", "update_column"), "widen_column(name, type)"),
    **dict.fromkeys(("cdc", "cdf", "change_feed", "load_cdf", "subscribe", "table_changes"), "changes()"),
    **dict.fromkeys(
        ("consume", "consumer", "offsets", "poll", "position", "seek", "seek_to_end", "end_offsets"),
        "changes(after=commit), whose scan.key says where to go on",
    ),
    **dict.fromkeys(("seek_to_beginning", "beginning_offsets"), "changes(), of all that is kept"),
    **dict.fromkeys(("offsets_for_times", "replay"), "changes(after=datetime)"),
    **dict.fromkeys(("watch", "change_stream"), "changes(after=commit)"),
    **dict.fromkeys(("checkout", "time_travel", "with_snapshot"), "scan(snapshot=commit)"),
    **dict.fromkeys(("create_branch", "create_snapshot", "create_tag", "manage_snapshots"), "tag(name)"),
    **dict.fromkeys(("delete_tag", "remove_tag", "untag"), "drop_tag(name)"),
    **dict.fromkeys(("delete_table", "remove_table", "drop_collection", "delete_topic"), "drop()"),
    **dict.fromkeys(("describe", "detail", "dtypes", "fields"), "schema, or table.definition for all of it"),
    **dict.fromkeys(("expire", "expire_snapshots", "set_ttl", "ttl"), "set_retention(period)"),
    **dict.fromkeys(
        ("properties", "set_properties", "update_properties"),
        "definition; table.set_retention(period) and table.set_compression(compression) change it",
    ),
    **dict.fromkeys(("execute_compaction", "rewrite_data_files", "z_order", "z_order_by"), "compact()"),
    **dict.fromkeys(
        ("evolve", "update_schema"), "add_columns(fields), table.drop_columns(names) and the like"
    ),
    **dict.fromkeys(("alter_table",), "add_columns(fields), table.drop_columns(names) and the like"),
    **dict.fromkeys(("clear", "truncate", "truncate_table"), "delete(where='TRUE')"),
    **dict.fromkeys(("multi_get", "get_all"), "get(keys)"),
    **dict.fromkeys(("delete_index", "remove_index"), "drop_index(index)"),
    **dict.fromkeys(("insert_into", "write_table"), "upsert(rows)"),
    **dict.fromkeys(("read_table", "scan_table"), "to_arrow()"),
    "to_df": "to_pandas(), and in Spark spark.read.format('elasticscan').load('store/table')",
    "add_index": "create_index(index, columns)",
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
    **dict.fromkeys(("find", "find_one"), "scan(filter=condition), or table.get(keys)"),
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
    "to_list": "{}.to_table().to_pylist()",
    "to_pylist": "{}.to_table().to_pylist()",
    **dict.fromkeys(("to_numpy", "values"), "{}.to_pandas().to_numpy()"),
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
            **dict.fromkeys(("execute", "execute_async", "prepare", "query", "sql"), _SQL_OF_STORE),
            **dict.fromkeys(
                ("assign", "consumer_groups", "committed", "lag", "lags", "groups", "streams", "checkpoints"),
                "store.status()['streams'], and in a shell `elasticscan status STORE --streams`",
            ),
            **dict.fromkeys(
                ("create_collection", "create_topic", "create_topics"),
                "store.create_table(name, schema, primary_key)",
            ),
            **dict.fromkeys(("collection", "get_collection", "topic"), "store.table(name)"),
            **dict.fromkeys(
                ("create_keyspace", "keyspace", "keyspaces", "set_keyspace", "use"),
                "store.table(name): a store is one space of tables",
            ),
            **dict.fromkeys(
                ("list_collection_names", "list_topics", "topics", "collections"), "store.tables()"
            ),
            **dict.fromkeys(
                ("describe_table", "for_name", "for_path", "get_table", "load_table", "open_table"),
                "store.table(name)",
            ),
            **dict.fromkeys(("catalog", "ls", "show_tables", "tables_list"), "store.tables()"),
            **dict.fromkeys(
                ("create_if_not_exists", "create_or_replace_table", "create_table_if_not_exists"),
                "store.create_table(name, schema, primary_key), which raises AlreadyExists where one is, and "
                "store.table(name).overwrite(rows) to replace its rows",
            ),
            **dict.fromkeys(
                ("from_pandas", "ingest", "read_csv", "read_parquet"),
                "store.load(table, files), or store.table(name).upsert(rows)",
            ),
            **dict.fromkeys(("check", "fsck", "health"), "store.verify()"),
            **dict.fromkeys(("clone", "copy"), "store.backup(target), and elasticscan.Store.from_backup(…)"),
            **dict.fromkeys(("cluster", "nodes", "ring", "shard_map"), "store.status()['shards']"),
            "move_tablet": "store.move(tablet, shard)",
            "split_tablet": "store.split(tablet)",
            **dict.fromkeys(("join_tablets", "merge_tablets"), "store.join(left, right)"),
            **{name: f"store.status()[{name!r}]" for name in ("leases", "shards", "tablets")},
            **dict.fromkeys(
                ("add_node", "add_shard", "reshard", "scale", "scale_out"), "store.expand([shard])"
            ),
            **dict.fromkeys(("remove_node", "remove_shard", "scale_in"), "store.contract(shard)"),
            **dict.fromkeys(("describe", "detail", "info", "metrics", "stats"), "store.status()"),
            **dict.fromkeys(
                ("batch", "begin", "commit", "flush", "rollback", "start_session", "transaction"),
                "store.table(name).upsert(rows): each write is a commit, all or nothing",
            ),
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
            **dict.fromkeys(("agg", "distinct", "group_by", "groupby"), "table.aggregate(values, group_by)"),
            "as_of": "table.scan(snapshot=commit), with a tag or a datetime, too",
            "batches": "table.scan().batches()",
            "commits": "table.history()",
            "count": "table.scan().count()",
            **dict.fromkeys(
                ("dedup", "drop_duplicates"), "table.primary_key: of each key there is one row, the newest"
            ),
            **dict.fromkeys(("files", "nbytes", "size", "statistics", "stats"), "store.status()['tables']"),
            **dict.fromkeys(("partitions", "shards", "tablets"), "store.status()['tablets']"),
            **dict.fromkeys(("key", "pk"), "table.primary_key"),
            **dict.fromkeys(("inspect", "describe_history"), "table.history(), and store.status()"),
            "explain": "table.scan(columns, filter).explain()",
            "info": "table.definition, and store.status()['tables'] for rows and bytes",
            "print_schema": "print(table.schema)",
            "refs": "table.tags()",
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
            **dict.fromkeys(("agg", "aggregate", "group_by", "groupby"), "table.aggregate(values, group_by)"),
            **dict.fromkeys(
                ("export", "to_csv", "to_parquet", "write_csv", "write_parquet"),
                "table.export(path, columns)",
            ),
            **dict.fromkeys(("first", "next", "peek"), "next(scan.batches())"),
            **dict.fromkeys(("offset", "position", "resume", "seek"), "scan.key, and store.resume(key)"),
            "cancel": "scan.close()",
            "pages": "scan.batches(), or for page in scan",
            "plan": "scan.explain()",
            "progress": "scan.stats",
            "sql": "duckdb.sql('SELECT … FROM scan'), or scan.to_table()",
            "to_arrow": "scan.to_table()",
            "version": "scan.snapshot",
        },
    }
)

# What to send to another process in place of each, and what to do with it there.
_SENT = {
    "Store": "send store.uri, and call elasticscan.open(uri)",
    "Table": "send store.uri and table.name, and call elasticscan.open(uri).table(name)",
    "Scan": "send store.uri and scan.key, and go on with elasticscan.open(uri).resume(key)",
}


_A_SLIP = 0.87  # of how much two names have in common: read_table and rename_table, say, 0.8

# Operators that people try on them; each would else be an error without a hint.
_OPERATORS = {
    "Store": {
        "__getitem__": "store.table(name)",
        "__iter__": "store.tables()",
        "__contains__": _TABLE_EXISTS,
        "__len__": "len(store.tables())",
    },
    "Table": {
        "__getitem__": "table.scan(columns).to_table(), or table.get(keys) for rows by their keys",
        "__len__": "table.scan().count()",
        "__iter__": "table.scan().batches()",
        "__array__": "table.to_pandas(), table.to_polars() or table.to_arrow()",
    },
    "Scan": {
        "__array__": "scan.to_pandas(), scan.to_polars() or scan.to_table()",
        "__getitem__": "scan.to_table(), or next(scan.batches())",
        "__len__": "scan.count()",
    },
}
# What to write in place of the class itself.
_OPENED = {
    "Store": "elasticscan.open(uri), or elasticscan.create(uri, shards) for a new one",
    "Table": "elasticscan.open(uri).table(name)",
    "Scan": "table.scan(columns, filter)",
}
_SHOWN = {
    "__array__": "an array of a {}",
    "__contains__": "in {}",
    "__getitem__": "{}[…]",
    "__iter__": "for … in {}",
    "__len__": "len({})",
}


def _refusing(kind: str, operator: str, instead: str) -> Callable[..., NoReturn]:
    shown = _SHOWN[operator].format(kind.lower())

    def refuse(self: object, *_: object, **__: object) -> NoReturn:
        raise UnknownName(f"{shown} does not exist; write {instead}", name=operator)

    return refuse


def _telling_how_it_is_opened(kind: str, begin: Callable[..., None]) -> Callable[..., None]:
    """The `__init__` of a class that people call as they call those of other libraries."""

    @wraps(begin)
    def call(self: object, *args: object, **named: object) -> None:
        try:
            return begin(self, *args, **named)
        except TypeError:
            try:
                signature(begin).bind(self, *args, **named)
            except TypeError:
                pass
            else:
                raise  # it came from within
        raise WrongArguments(f"a {kind} is not made so; write {_OPENED[kind]}", option=kind)

    return call


def _inside(whole: Any, name: str) -> str | None:
    """The call for a table or a column that is named like an attribute; None where there is none."""
    kind = type(whole).__name__
    with suppress(ElasticScanError, AttributeError):  # a store that is away, an object that is only begun
        if kind == "Store":
            names, call = [table.name for table in whole.tables()], "store.table({!r})"
        elif kind == "Table":
            names, call = whole.schema.names, "table.scan([{!r}])"
        else:
            return None
        found = name if name in names else _nearest(name, names)
        return None if found is None else call.format(found)
    return None


def _nearest(name: str, names: Sequence[str]) -> str | None:
    """The name that is the same in other letters (`forName`), or that differs by a slip or so."""
    plain = {each.replace("_", "").lower(): each for each in reversed(names)}
    near = nearest(name.replace("_", "").lower(), plain, _A_SLIP)
    return None if near is None else plain[near]


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
            wrapped = telling_lack(telling_words(function))
            setattr(cls, name, classmethod(wrapped) if isinstance(member, classmethod) else wrapped)
        known = shown_as or cls.__name__
        if known in _OPENED and "__init__" in vars(cls):
            cls.__init__ = _telling_how_it_is_opened(known, vars(cls)["__init__"])  # type: ignore[method-assign]
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
            if len(name) > MAX_COLUMN_NAME_BYTES:  # no name at all, and too long to be shown or looked for
                raise AttributeError(f"{kind!r} object has no attribute of {len(name):,} characters")
            hints, own = INSTEAD.get(kind, {}), dir(type(self))
            near = name if name in hints else None
            if not name.startswith("_") and name not in own:  # one that is there has failed within
                inside = None if near else _inside(self, name)
                if inside is not None:
                    raise UnknownName(f"{kind}.{name} does not exist; write {inside}", name=name)
                near = near or _nearest(name, [*(one for one in own if one[0] != "_"), *hints])
            if near is None:
                raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=self)
            instead = hints.get(near, f"{kind.lower()}.{near}")
            raise UnknownName(f"{kind}.{name} does not exist; write {instead}", name=name)
