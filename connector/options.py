"""The options of reads and writes, checked before a store is opened.

Each option is a field of `Options`, with its name in Spark, its parser and its uses. docs/options.md
explains the options; a test compares it with this module.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from functools import partial
from typing import Any

from elasticscan.backends import is_cluster
from elasticscan.base.errors import InvalidOption, UsageError
from elasticscan.base.formatting import brief
from elasticscan.base.limits import (
    DEFAULT_PAGE_ROWS,
    DEFAULT_SPLIT_BYTES,
    MAX_NUMBER,
    MAX_PAGE_ROWS,
    check_name,
)
from elasticscan.base.suggestions import suggest
from elasticscan.metadata import AUTO
from elasticscan.store import (
    FROM_ENVIRONMENT,
    IdempotencyKey,
    Location,
    application,
    check_tag_name,
    file_form,
    user_metadata,
    whole_number,
)

EARLIEST, LATEST = "earliest", "latest"

_BYTES = re.compile(r"([0-9]{1,19})\s*([kmgt]?)i?b?")
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LAST_SECOND = datetime.max.replace(tzinfo=UTC).timestamp()

# Spark adds these to the user's options. SQL sends all names in lower case.
_FROM_SPARK = frozenset(
    "provider owner location external comment is_managed_location serialization.format queryname".split()  # noqa: SIM905
)
_FROM_SPARK_PREFIXES = ("option.", "spark.sql.")

# Another name of the option `store`. Spark shows options in plans and event logs, but hides the value of this
# one (its setting `spark.sql.redaction.options.regex`), which may contain a password.
URL = "url"

# Options that name the store. A Redis or Valkey cluster has these and options of its own.
_PLACES = ("store", URL, "path")
_OF_CLUSTERS = frozenset({
    *_PLACES, "table", "columns", "filter", "batchSize", "splitSize", "numPartitions",
    "maxRowsPerTask", "taskOrder", "partialAggregates",
})  # fmt: skip

# Pairs of options that exclude each other, and pairs whose first option needs the second.
_APART = (
    ("versionAsOf", "timestampAsOf"), ("startingVersion", "startingTimestamp"),
    ("endingVersion", "endingTimestamp"),
    ("ifUnchangedSince", "insertOnly"), ("deleteColumn", "insertOnly"), ("insertOnly", "partialUpdate"),
    ("deleteColumn", "partialUpdate"), ("deleteColumn", "replaceWhere"), ("columns", "partialAggregates"),
    ("maxRowsPerTask", "partialAggregates"), ("includeMetadata", "partialAggregates"),
)  # fmt: skip
_NEEDS = (
    ("taskOrder", "maxRowsPerTask"), ("shardKey", "primaryKey"), ("compression", "primaryKey"),
    ("txnVersion", "txnAppId"),
)  # fmt: skip
_APPEND_ALONE = frozenset({"insertOnly", "ifUnchangedSince", "partialUpdate"})  # not for mode overwrite
# Options that are accepted where they have no effect, since a view has one set of options for all uses.
_HARMLESS = frozenset({
    "columns", "index", "batchSize", "splitSize", "numPartitions", "minPartitions", "includeMetadata",
    "failOnDataLoss",
})  # fmt: skip

# The uses of options. FEED is a batch read of changes.
READ, FEED, STREAM, WRITE, STREAM_WRITE = "read", "change feed", "readStream", "write", "writeStream"
_READS = (READ, FEED, STREAM)
SPARK_COMPRESSION = "lz4"  # of tables that Spark creates: it makes Spark no slower (decision 19)
_WRITES = (WRITE, STREAM_WRITE)


# The parser of a text, which raises `UsageError` or an error of Python if the text is wrong; and the allowed
# form, for the error message.
Form = tuple[Callable[[str], Any], str]


def whole(least: int, most: int = MAX_NUMBER) -> Form:
    return lambda text: whole_number("", int(text), least, most), f"a whole number from {least} to {most}"


def _some_text(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len({part.lower() for part in names}) < len(names):
        raise ValueError
    return names


def _first_commit(text: str) -> int | str:
    word = text.strip().lower()
    return word if word in (EARLIEST, LATEST) else whole_number("", int(word), 0, MAX_NUMBER)


def _byte_count(text: str) -> int:
    match = _BYTES.fullmatch(text.strip().lower())
    return whole_number("", int(match[1]) * _FACTORS[match[2]] if match else 0, 1, MAX_NUMBER)


def _snapshot(text: str) -> int | str:
    """Return a commit number or the name of a tag. Planning a read checks that it exists."""
    word = text.strip()
    return whole_number("", int(word), 0, MAX_NUMBER) if word.isdecimal() else check_tag_name(word)


def _moment(text: str) -> float:
    """Return seconds since 1970. A number is seconds already; a time without a zone is in UTC."""
    try:
        seconds = float(text)
    except ValueError:
        time = datetime.fromisoformat(text.strip())
        seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds) or seconds > _LAST_SECOND:
        raise ValueError
    return seconds


@dataclass(frozen=True, slots=True)
class PartialAggregates:
    """Aggregates that each task computes over its rows: texts as in `Table.aggregate`, by groups."""

    values: tuple[str, ...]
    by: tuple[str, ...]

    def text(self) -> str:
        return json.dumps({"values": self.values, "by": self.by})


def _partial_aggregates(text: str) -> PartialAggregates:
    content = json.loads(text)
    values, by = content.pop("values", []), content.pop("by", [])
    texts = [*values, *by]
    is_list_of_texts = isinstance(values, list) and isinstance(by, list) and set(map(type, texts)) == {str}
    if content or not is_list_of_texts or len(set(texts)) < len(texts):
        raise ValueError
    return PartialAggregates(tuple(values), tuple(by))


some_text = (_some_text, "text that is not empty")
column_list = (_columns, "distinct column names such as 'id, name'")
index_name = (  # planning a read checks that the index exists
    lambda text: check_name("index", text.strip().lower()),
    "'auto', 'none' or the name of an index",
)
first_commit = (_first_commit, "the number of a commit, 'earliest' or 'latest'")
flag = (lambda text: {"true": True, "false": False}[text.strip().lower()], "true or false")
byte_count = (_byte_count, "a number of bytes of at least 1, such as 67108864, 64m or 1g")
snapshot = (_snapshot, "a commit number or a tag; a time goes into 'timestampAsOf'")
moment = (_moment, "an ISO date or time such as '2026-01-31T12:00:00Z', or seconds since 1970")
application_name = (partial(application, "txnAppId"), "text of 1 to 1,024 bytes")
compression = (partial(file_form, "compression"), "'lz4', 'zstd' or 'none'")
metadata_of_commit = (
    lambda text: user_metadata(json.loads(text)),
    'a JSON object of texts, such as \'{"job": "nightly"}\'',
)
partial_aggregates = (
    _partial_aggregates,
    'a JSON object such as {"values": ["count(*)", "sum(km)"], "by": ["city"]}',
)


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its name in Spark, the form of its text, and its uses."""

    name: str
    form: Form
    where: tuple[str, ...]

    def parse(self, text: str) -> Any:
        """Parse the text of the option. Raises `InvalidOption`."""
        parse, allowed = self.form
        try:
            text.encode()  # no lone surrogate
            return parse(text)
        except (UsageError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
            why = f"option {self.name!r}={brief(text, 200)} must be {allowed}"
            raise InvalidOption(why, option=self.name) from None


def _option(name: str, form: Form, default: Any, where: Collection[str], shown: bool = True) -> Any:
    """Return a field of `Options`; `default` is the value of an option that is not set."""
    return field(default=default, repr=shown, metadata={"option": Option(name, form, tuple(where))})


@dataclass(frozen=True, slots=True)
class Options:
    """Options as values, made by `parse_options`.

    Options from `feed` on are for reads of changes. Times are seconds since 1970. `cluster_options` are those
    that only clusters have. `chosen` are the names of options that differ from their default.
    """

    store: str = _option("store", some_text, MISSING, _READS + _WRITES, shown=False)
    table: str = _option("table", some_text, "", _READS + _WRITES)
    columns: tuple[str, ...] | None = _option("columns", column_list, None, _READS)
    filter: str | None = _option("filter", some_text, None, _READS)
    index: str = _option("index", index_name, AUTO, (READ,))
    explain: bool = _option("explain", flag, False, (READ,))
    version: int | str | None = _option("versionAsOf", snapshot, None, (READ,))
    timestamp: float | None = _option("timestampAsOf", moment, None, (READ,))
    batch_rows: int = _option("batchSize", whole(1, MAX_PAGE_ROWS), DEFAULT_PAGE_ROWS, _READS)
    split_bytes: int = _option("splitSize", byte_count, DEFAULT_SPLIT_BYTES, _READS)
    partitions: int | None = _option("numPartitions", whole(1), None, _READS)
    task_rows: int | None = _option("maxRowsPerTask", whole(0, MAX_NUMBER), None, (READ,))
    task_order: tuple[str, ...] | None = _option("taskOrder", column_list, None, (READ,))
    partial: PartialAggregates | None = _option(  # noqa: RUF009 - frozen, like all of them
        "partialAggregates", partial_aggregates, None, (READ,)
    )
    metadata: bool = _option("includeMetadata", flag, False, (READ,))
    app_id: str | None = _option("txnAppId", application_name, None, _WRITES)
    txn_version: int | None = _option("txnVersion", whole(0, MAX_NUMBER), None, (WRITE,))
    primary_key: tuple[str, ...] | None = _option("primaryKey", column_list, None, _WRITES)
    shard_key: tuple[str, ...] | None = _option("shardKey", column_list, None, _WRITES)
    compression: str | None = _option("compression", compression, SPARK_COMPRESSION, _WRITES)
    delete_column: str | None = _option("deleteColumn", some_text, None, _WRITES)
    merge_schema: bool = _option("mergeSchema", flag, False, _WRITES)
    partial_update: bool = _option("partialUpdate", flag, False, (WRITE,))
    insert_only: bool = _option("insertOnly", flag, False, _WRITES)
    unchanged_since: int | None = _option("ifUnchangedSince", whole(0, MAX_NUMBER), None, (WRITE,))
    replace_where: str | None = _option("replaceWhere", some_text, None, (WRITE,))
    user_metadata: Mapping[str, str] | None = _option("userMetadata", metadata_of_commit, None, _WRITES)
    cluster_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    chosen: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    checkpoint: str | None = _option("checkpointLocation", some_text, None, (STREAM_WRITE,))
    feed: bool = _option("readChangeFeed", flag, False, (FEED, STREAM))
    start: int | str | None = _option("startingVersion", first_commit, None, (FEED, STREAM))
    start_time: float | None = _option("startingTimestamp", moment, None, (FEED, STREAM))
    end: int | None = _option("endingVersion", whole(0, MAX_NUMBER), None, (FEED,))
    end_time: float | None = _option("endingTimestamp", moment, None, (FEED,))
    max_rows: int | None = _option("maxRowsPerTrigger", whole(1, MAX_NUMBER), None, (STREAM,))
    max_bytes: int | None = _option("maxBytesPerTrigger", byte_count, None, (STREAM,))
    skip_change_commits: bool = _option("skipChangeCommits", flag, False, (STREAM,))
    fail_on_data_loss: bool = _option("failOnDataLoss", flag, True, (FEED, STREAM))
    stream_name: str | None = _option("streamName", some_text, None, (STREAM,))
    min_partitions: int | None = _option("minPartitions", whole(1), None, (FEED, STREAM))

    @property
    def is_embedded(self) -> bool:
        """Return True for an embedded store, False for a Redis or Valkey cluster."""
        return not is_cluster(self.store)

    @property
    def txn(self) -> IdempotencyKey | None:
        """Return the application and version that make a batch write idempotent; None if not set."""
        if self.app_id is None or self.txn_version is None:
            return None
        return IdempotencyKey(self.app_id, self.txn_version)


OPTIONS = tuple(one.metadata["option"] for one in fields(Options) if one.metadata)
_SPELLED = {name.lower(): name for name in (*(option.name for option in OPTIONS), *_PLACES)}
_WHERE = {option.name: option.where for option in OPTIONS}


def parse_options(spark_options: Mapping[str, str]) -> Options:
    """Parse and check the options that Spark sends, with names in any case.

    Raises `InvalidOption` if one is unknown, has an impossible value, or contradicts another option.
    """
    texts, cluster_options = _by_name(spark_options)
    texts |= _place(texts)
    values, chosen = dict[str, Any](), set[str]()
    for one in fields(Options):
        if one.metadata and (option := one.metadata["option"]).name in texts:
            values[one.name] = option.parse(texts[option.name])
            if values[one.name] != one.default:
                chosen.add(option.name)
    for first, second in _APART:
        if first in chosen and second in chosen:
            raise _refusal(first, f"does not go with {second!r}; leave one out")
    for name, needed in _NEEDS:
        if name in texts and needed not in texts:
            raise _refusal(name, f"needs {needed!r}; give both or neither")
    return Options(**values, cluster_options=cluster_options, chosen=frozenset(chosen))


def _by_name(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the known options by name, and the options that only clusters have."""
    texts, cluster_options = dict[str, str](), dict[str, str]()
    of_cluster = any(is_cluster(text) for name, text in options.items() if name.lower() in _PLACES)
    for key, text in options.items():
        lower = key.lower()
        name = _SPELLED.get(lower)
        if name is not None:
            if of_cluster and name not in _OF_CLUSTERS:
                raise _refusal(name, "is not for a Redis or Valkey cluster; leave it out")
            texts[name] = text
        elif lower in _FROM_SPARK or lower.startswith(_FROM_SPARK_PREFIXES):
            continue
        elif of_cluster:
            cluster_options[lower] = text
        else:
            hint = suggest(lower, _SPELLED.values()) or "; docs/options.md lists the options"
            raise InvalidOption(f"there is no option {brief(key)}{hint}", option=key)
    return texts, cluster_options


def _refusal(name: str, why: str) -> InvalidOption:
    return InvalidOption(f"option {name!r} {why}", option=name)


def check_use(options: Options, use: str, overwrite: bool | None = None) -> Options:
    """Refuse options of other uses, which would change the rows; return the options.

    Reads ignore options of writes: a temporary view has one set of options for SELECT and INSERT INTO. A
    write refuses the options of the other mode; `overwrite` is its mode.
    """
    chosen = options.chosen
    for name in sorted(chosen):
        if overwrite is not None and name in (_APPEND_ALONE if overwrite else ("replaceWhere",)):
            raise _refusal(name, f"is for mode {'append' if overwrite else 'overwrite'}; leave it out")
        where = _WHERE[name]
        is_ignored = use != STREAM_WRITE and set(where).isdisjoint(_READS)
        is_ignored |= name in _HARMLESS and use in (READ, *_WRITES)
        if use not in where and not is_ignored:
            raise _refusal(name, f"is for {' and '.join(where)}, not for {use}; leave it out")
    if use == WRITE and "txnAppId" in chosen and "txnVersion" not in chosen:
        raise _refusal("txnAppId", "needs 'txnVersion'; give both or neither")
    if use == FEED and chosen.isdisjoint(("startingVersion", "startingTimestamp")):
        raise _refusal(
            "startingVersion",
            "or 'startingTimestamp' is needed with 'readChangeFeed'; 'earliest' reads all changes",
        )
    if use == FEED and options.start == LATEST:
        raise _refusal("startingVersion", "= 'latest' is for readStream; name a commit")
    return options


def _place(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the options `store` and `table`. A path names both ("uri/table"), or the store alone."""
    named = {name: texts[name] for name in _PLACES if name in texts}
    if len(set(named.values())) > 1:
        raise InvalidOption(
            f"options {' and '.join(named)} all choose the store; give one", option=[*named][-1]
        )
    store, table = next(iter(named.values()), ""), texts.get("table", "")
    if is_cluster(store):  # its URL may end with the table
        return {"store": store}
    if "path" in named:
        path = store.rstrip("/")
        head, _, tail = path.rpartition("/")
        store, table = (head, tail) if tail == table.rstrip("/") or not table else (path or store, table)
    if not store or not table:
        name = "path" if "path" in named else "table" if store else "store"
        raise InvalidOption(
            f"no {'table' if store else 'store'} is given; set the options 'store' and 'table', or use "
            "load('uri/table')",
            option=name,
        )
    return {"store": absolute(store), "table": table}


def absolute(uri: str) -> str:
    """Return a store's URI as an absolute one: tasks may run in another directory."""
    if uri.startswith(FROM_ENVIRONMENT) or is_cluster(uri):
        return uri
    return Location.of(uri).uri  # also of file:/a and ~/a
