"""Arguments that a method does not take, but that people give it: words of other calls and other libraries.

Whoever gives one, or gives too many or too few, gets a `WrongArguments` that says what to write. It is a
`TypeError`, too, as Python's own would be; nothing was done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature, unwrap
from types import FunctionType, MappingProxyType
from typing import Any, ParamSpec, TypeVar

from elasticscan.base.errors import WrongArguments
from elasticscan.base.nearness import nearest

Asked = ParamSpec("Asked")
Given = TypeVar("Given")
Kind = TypeVar("Kind", bound=type)

_CONDITIONS = ("where", "predicate", "row_filter", "condition", "filters", "filter", "expr", "query")
_OF_COMMITS = ("start", "start_version", "starting_version", "from_version", "since")
_IN_ROWS = (
    "data", "df", "frame", "table", "records", "values", "documents", "items", "batch", "source", "row",
)  # fmt: skip

# Arguments of other methods and libraries, each with those that say it here: the first that a method takes
# counts.
KEYWORDS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        **dict.fromkeys(_CONDITIONS, ("filter", "where", "condition", "text")),
        **dict.fromkeys(("statement", "sql", "sqlQuery"), ("text",)),
        **dict.fromkeys(("overwrite_filter", "replace_where", "delete_filter"), ("where",)),
        **dict.fromkeys(_IN_ROWS, ("rows", "schema", "source")),
        **dict.fromkeys(("select", "selected_fields", "fields", "projection", "cols"), ("columns", "schema")),
        **dict.fromkeys(("column", "column_names", "names", "usecols"), ("columns", "fields", "name")),
        "columns": ("group_by", "fields", "names", "schema"),
        **dict.fromkeys(("as_of", "version", "snapshot_id", "version_as_of", "tag"), ("snapshot", "to")),
        **dict.fromkeys(("timestamp_as_of", "at", "as_of_timestamp"), ("timestamp", "snapshot", "to")),
        **dict.fromkeys(("snapshot", "timestamp"), ("snapshot", "to")),
        **dict.fromkeys(("order", "sort", "sort_by", "orderby"), ("order_by",)),
        **dict.fromkeys(_OF_COMMITS, ("after", "if_unchanged_since")),
        "offset": ("after",),
        **dict.fromkeys(("starting_timestamp", "start_time", "from_timestamp"), ("after",)),
        **dict.fromkeys(
            ("until", "ending_version", "end_version", "end", "before", "to_version", "ending_timestamp"),
            ("upto",),
        ),
        **dict.fromkeys(("updates", "new_values", "assignments", "values"), ("set", "rows")),
        **dict.fromkeys(("batch_size", "batch_rows", "page_size", "chunksize"), ("page_rows",)),
        **dict.fromkeys(("path", "location", "url", "store"), ("uri", "source", "target", "path")),
        **dict.fromkeys(("file", "files", "paths"), ("source", "path")),
        **dict.fromkeys(("key", "keys", "pk", "primary_keys", "id", "ids"), ("keys", "primary_key", "key")),
        **dict.fromkeys(("primary_key", "partition_key"), ("keys",)),
        **dict.fromkeys(("n", "n_rows", "nrows", "head", "max_rows", "top"), ("limit",)),
        **dict.fromkeys(("by", "group", "groupby", "keys_by"), ("group_by",)),
        **dict.fromkeys(("aggs", "aggregates", "aggregations", "metrics", "measures"), ("values",)),
        **dict.fromkeys(("params", "args", "parameters", "bind"), ("parameters", "args")),
        **dict.fromkeys(
            ("properties", "snapshot_properties", "metadata", "commit_metadata"), ("user_metadata",)
        ),
        **dict.fromkeys(("num_shards", "n_shards", "shard", "nodes", "servers"), ("shards", "shard")),
        **dict.fromkeys(("partitions", "num_partitions", "num_tablets", "n_tablets"), ("tablets",)),
        **dict.fromkeys(("buckets", "num_buckets"), ("slots",)),
        **dict.fromkeys(("retention", "ttl", "retention_hours"), ("retention_seconds", "period")),
        **dict.fromkeys(("days", "hours", "seconds", "interval"), ("period",)),
        **dict.fromkeys(("table", "table_name", "identifier", "collection"), ("name", "table")),
        **dict.fromkeys(("name", "index_name"), ("table", "index")),
        **dict.fromkeys(("codec",), ("compression",)),
        **dict.fromkeys(("dtype", "dtypes", "schema", "column_types"), ("types",)),
        **dict.fromkeys(("file_format", "kind_of_files"), ("format",)),
        **dict.fromkeys(("target_file_size", "max_file_bytes", "max_rows_per_file"), ("file_bytes",)),
        **dict.fromkeys(("sep", "delim", "separator"), ("delimiter",)),
        **dict.fromkeys(("na_values", "null_values", "nullstr"), ("nulls",)),
        **dict.fromkeys(("progress", "callback", "progress_callback"), ("on_progress", "on_step")),
        **dict.fromkeys(("to", "destination", "dest", "node"), ("shard", "target")),
        **dict.fromkeys(("token", "continuation", "continuation_key", "cursor", "paging_state"), ("key",)),
    }
)

_SAY_BY_SET = "update(set, where) changes the rows that meet a condition"
_MATCHED = "rows are matched by the primary key of the table: leave it out"
_SPREAD = "rows are spread by a hash of the primary key, or of its beginning: shard_key="
_THERE = "what is there raises AlreadyExists, and table(name) or elasticscan.open(uri) opens it"
_NO_OFFSET = (
    "a scan goes on from the key of a page, as store.resume(scan.key), or behind the last row that was read, "
    "as filter='id > 17' with order_by='id'"
)
_GROUPS = (
    "keep the commit that was read last, and give it as after= to changes; a Spark stream keeps it by itself "
    "('checkpointLocation', 'streamName')"
)
_NO_EXPIRY = (
    "rows stay until they are deleted, as delete(where=\"at < TIMESTAMP '2026-01-01'\"); older snapshots go "
    "after set_retention(period)"
)

# Why there is no such argument where a method takes none of the above, and what to do: for methods that take
# one of the arguments named first, or for all.
_READERS, _WRITERS, _ALL = ("filter",), ("rows",), ()
WITHOUT: Mapping[str, tuple[Sequence[str], str]] = MappingProxyType(
    {
        **dict.fromkeys(("if_not_exists", "exist_ok", "replace"), (("schema", "uri", "shards"), _THERE)),
        **dict.fromkeys(
            ("descending", "ascending", "reverse", "desc"), (("order_by",), "order_by='column DESC' says it")
        ),
        **dict.fromkeys(("offset", "skip", "start_row"), (_READERS, _NO_OFFSET)),
        **dict.fromkeys(
            ("ttl", "expire_after", "expire_after_seconds", "using_ttl"), (("rows", "schema"), _NO_EXPIRY)
        ),
        **dict.fromkeys(
            ("on", "join_cols", "match_on", "by", "key", "keys", "primary_key", "unique_key"),
            (_WRITERS, _MATCHED),
        ),
        **dict.fromkeys(
            ("partition_by", "partition_cols", "partition_spec", "partitioning", "clustering_key"),
            (("rows", "primary_key"), _SPREAD),
        ),
        **dict.fromkeys(("cluster_by", "z_order_by", "bucket_by"), (("rows", "primary_key"), _SPREAD)),
        **dict.fromkeys(
            ("replication", "replication_factor", "replicas"),
            (_ALL, "each tablet is at one shard; store.backup(target) copies a store"),
        ),
        **dict.fromkeys(
            ("consistency", "consistency_level", "isolation_level", "read_concern", "write_concern"),
            (_ALL, "every read is of one snapshot, and every write one commit, on the disks when it returns"),
        ),
        **dict.fromkeys(("group_id", "consumer_group", "auto_offset_reset", "checkpoint"), (_ALL, _GROUPS)),
        **dict.fromkeys(
            ("timeout", "timeout_ms", "max_retries", "retries"), (_ALL, "waits are bounded: leave it out")
        ),
        "allow_filtering": (_READERS, "any condition may be asked, and create_index makes it quick"),
        "distinct": (_READERS, "aggregate('count(*)', group_by=columns) gives each combination once"),
        "lazy": (_READERS, "write to_polars().lazy(); columns and filter say what is read"),
        "mode": (
            ("rows", "uri"),
            "upsert, insert, merge and overwrite write rows, and read_only=True opens a store to read it",
        ),
        "schema": (
            _WRITERS,
            "rows have the columns of the table, whose schema is table.schema: leave it out",
        ),
        "unique": (
            ("index", "primary_key"),
            "primary keys are there once, and values of other columns may be there again: leave it out",
        ),
    }
)

_ONE_PAGE = "a page is the first so many: next(table.changes(…, page_rows=10)).rows"
_AFTERWARDS = "its result is an Arrow table: "
_ALL_GIVEN = f"it writes all rows that it is given; {_SAY_BY_SET}, overwrite(rows, where=…) replaces these"
_EXCLUSIVE = "after=16, the commit before the first one that is read"

# The same, of a single method.
OF_METHODS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "aggregate": {
            "having": f"{_AFTERWARDS}.filter(pc.field('n') > 9) behind it chooses groups; SQL has HAVING",
            **dict.fromkeys(("order_by", "sort_by", "sort"), f"{_AFTERWARDS}.sort_by('n') behind it sorts"),
            **dict.fromkeys(
                ("limit", "n", "head", "offset", "skip"), f"{_AFTERWARDS}.slice(0, 10) behind it cuts"
            ),
            "pipeline": "write aggregate(['count(*) AS n', 'sum(km)'], group_by='city', filter='km > 1')",
        },
        "changes": {
            **dict.fromkeys((*_OF_COMMITS, "offset"), f"write {_EXCLUSIVE}"),
            **dict.fromkeys(("limit", "max_records", "n", "max_rows"), _ONE_PAGE),
            **dict.fromkeys(
                ("snapshot", "version"), "after= and upto= choose the commits, the last included"
            ),
            "order_by": "within a page they are by key: sort what it returns by _commit_version",
        },
        "create_index": {
            **dict.fromkeys(("on", "keys", "key", "fields"), "write columns="),
            **dict.fromkeys(("type", "index_type", "using", "method"), "write kind="),
            "if_not_exists": "what is there raises AlreadyExists; table.indexes() lists them",
        },
        "export": {
            **dict.fromkeys(
                ("format", "file_format"), "the end of the path says it: .parquet, .csv or .arrow"
            ),
            **dict.fromkeys(
                ("mode", "overwrite"), "it replaces no files: choose a path that is not there yet"
            ),
            **dict.fromkeys(
                ("partition_by", "partition_cols", "partitioning"),
                "pyarrow.dataset.write_dataset(table.to_reader(), path, partitioning=…) writes directories",
            ),
        },
        "insert": {"mode": "it refuses keys that are there; upsert replaces their rows"},
        "update": {
            "upsert": "merge(rows, columns=[…]) inserts rows whose key is not there, and updates the others",
            "multi": "all rows that meet the condition are changed: leave it out",
            "keys": "write where='id IN :keys' with parameters={'keys': [1, 2]}",
        },
        "upsert": {
            "if_not_exists": "insert(rows) refuses keys that are there; merge(rows, when_matched='ignore') "
            "leaves their rows as they are",
            "columns": "merge(rows, columns=[…]) writes some columns, and leaves the others as they are",
            **dict.fromkeys(_CONDITIONS, _ALL_GIVEN),
        },
        "merge": {
            **dict.fromkeys(
                (*_CONDITIONS, "on", "source_alias", "target_alias"),
                f"rows are matched by the primary key of the table; {_SAY_BY_SET}, and MERGE INTO in "
                "catalog.sql takes conditions",
            ),
            **dict.fromkeys(("when_matched_update_all", "how"), "write when_matched='update'"),
            "when_not_matched_insert_all": "write when_not_matched='insert'",
        },
        "table": {"mode": "a table is made by create_table, and opened by table(name)"},
        "create_table": {
            **dict.fromkeys(
                ("clustering_key", "partition_key"),
                "primary_key= has all columns of the key, shard_key= the first of them, which spread rows",
            ),
            "mode": "create_table(…) makes a table, and table(name).overwrite(rows) replaces the rows of one",
            **dict.fromkeys(("on", "key", "keys", "unique_key"), "write primary_key="),
        },
    }
)

_A_SLIP = 0.75  # of how much two words have in common: limit and delimiter have 0.71
_OF_SCANS = ("columns", "filter", "order_by", "limit", "snapshot", "index", "page_rows")
_EACH = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def telling_words(method: Callable[Asked, Given]) -> Callable[Asked, Given]:
    """Make a method or function say what to write in place of arguments that it does not take."""
    expected: list[Signature] = []

    @wraps(method)
    def call(*args: Asked.args, **named: Asked.kwargs) -> Given:
        try:
            return method(*args, **named)
        except WrongArguments as error:  # of a method that this one hands its arguments on to
            taken, word = error.fields.get("taken"), error.fields.get("option")
            if taken is None or word not in named or error.fields.get("of") == method.__name__:
                raise
            own = [name for name in _names(signature(unwrap(method))) if name not in taken]
            raise _unknown(method.__name__, str(word), [*own, *taken]) from None
        except TypeError:
            if not expected:
                expected.append(signature(unwrap(method)))
            refused = _refused(unwrap(method), expected[0], args, named)
            if refused is None:
                raise  # it came from within
        raise refused

    return call


def telling_words_of(kind: Kind) -> Kind:
    """Do so for all methods of a class that users call."""
    for name, member in list(vars(kind).items()):
        if isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(kind, name, telling_words(member))
    return kind


def _names(expected: Signature) -> list[str]:
    return [
        name
        for name, each in expected.parameters.items()
        if name not in ("self", "cls") and each.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    ]


def _refused(
    function: Callable[..., Any], expected: Signature, args: Sequence[Any], named: Mapping[str, Any]
) -> WrongArguments | None:
    """The error of a call whose arguments do not fit, if they do not."""
    method, kind = function.__name__, function.__qualname__.partition(".")[0]
    try:
        expected.bind(*args, **named)
    except TypeError:
        pass
    else:
        return None
    names, takes_any = (
        _names(expected),
        any(p.kind is Parameter.VAR_KEYWORD for p in expected.parameters.values()),
    )
    own = [each for each in expected.parameters.values() if each.name in names]
    for word in named:
        if word not in names and not takes_any:
            return _unknown(method, word, names, kind)
    bound = len(expected.parameters) - len(own) - takes_any  # self, which is given, too
    places = [each.name for each in own if each.kind in _EACH]
    given = len(args) - bound
    if given > len(places):
        others = [f"{each.name}=" for each in own if each.kind is Parameter.KEYWORD_ONLY]
        by_place = f" ({', '.join(places)})" if places else ""
        rest = f"; give by name what else there is: {', '.join(others)}" if others else ""
        most = f"{len(places) or 'no'} positional argument{'s' * (len(places) != 1)}{by_place}"
        return WrongArguments(
            f"{method} takes {most}, and was given {given}{rest}", option=places[-1] if places else ""
        )
    for word in places[: max(given, 0)]:
        if word in named:
            return WrongArguments(f"{method} was given {word} twice; give it once", option=word)
    lacking = [
        each.name
        for at, each in enumerate(own)
        if each.default is Parameter.empty
        and each.name not in named
        and (at >= given or each.name not in places)
    ]
    known = ", ".join(f"{name}=" for name in names)
    return WrongArguments(
        f"{method} lacks {' and '.join(lacking)}; it takes {known}", option=lacking[0] if lacking else ""
    )


def _unknown(method: str, word: str, names: Sequence[str], kind: str = "") -> WrongArguments:
    """The error of a word that a method does not take; `kind` is the class whose method it is."""
    why = OF_METHODS.get(method, {}).get(word)
    said_by = KEYWORDS.get(word, ())
    near = next((name for name in said_by if name in names), None) or nearest(word, names, 0.8)
    if why is None and near is None:
        needs, why = WITHOUT.get(word, ((), None))
        if needs and not set(needs) & {*names}:
            why = None
        near = None if why else nearest(word, names, _A_SLIP)
    asked = [name for name in (word, *said_by) if name in _OF_SCANS]
    if kind == "Scan" and asked:
        message = f"{method} takes nothing: the scan has it, as table.scan({asked[0]}=…).{method}()"
    elif why is not None:
        message = f"{method} takes no {word}=: {why}"
    elif near:
        message = f"{method} takes {near}=, and no {word}="
    elif names:
        message = f"{method} takes no {word}=; it takes {', '.join(f'{name}=' for name in names)}"
    else:
        message = f"{method} takes no {word}=, and nothing else: leave it out"
    return WrongArguments(message, option=word, of=method, taken=list(names))
