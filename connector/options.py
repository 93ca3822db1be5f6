"""The options of a read or a write, checked before anything is opened."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import BATCH_ROWS, MAX_PAGE_ROWS, NAME_PATTERN
from elasticscan.base.showing import brief
from elasticscan.catalog import Txn
from elasticscan.store import FROM_ENVIRONMENT, resolved

DEFAULT_SPLIT_BYTES = 512 << 20

_OWN = (
    "store",
    "table",
    "path",
    "columns",
    "filter",
    "index",
    "versionAsOf",
    "timestampAsOf",
    "batchSize",
    "splitSize",
    "numPartitions",
    "includeMetadata",
    "explain",
    "readChangeFeed",
    "startingVersion",
    "startingTimestamp",
    "endingVersion",
    "endingTimestamp",
    "skipChangeCommits",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "streamName",
    "txnAppId",
    "txnVersion",
    "primaryKey",
    "shardKey",
    "deleteColumn",
    "mergeSchema",
    "checkpointLocation",
)
# What takes the place of options that are no more.
_REMOVED = {
    "pushdown": "use the options 'filter' and 'columns', or attach(spark, uri).sql(...), which sets both for "
    "each table of a query",
}
# Spark adds these to what the user gave; all keys reach us in lower case from SQL.
_FROM_SPARK = frozenset(
    (
        "provider",
        "owner",
        "location",
        "external",
        "comment",
        "is_managed_location",
        "serialization.format",
        "queryname",
    )
)
_FROM_SPARK_PREFIXES = ("option.", "spark.")

_BYTES = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
T = TypeVar("T")

_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
EARLIEST, LATEST = "earliest", "latest"
_MAX_NUMBER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """How commits are followed: by a stream, or by a batch read with `readChangeFeed`.

    Attributes:
        feed: whether every change is told (insert, update_preimage, update_postimage, delete), with
            `_change_type`, `_commit_version` and `_commit_timestamp`; else the new rows alone.
        start: the first commit that is wanted, or "earliest" or "latest".
        start_time: in place of it, seconds since the epoch: commits made then or later.
        end, end_time: the last commit of a batch read, in the same ways.
        skip_change_commits: whether commits of deletes and overwrites are passed over.
        max_rows, max_bytes: most of a micro-batch.
        min_partitions: fewest tasks of a micro-batch, where it has as many slots.
        fail_on_data_loss: whether it is an error when changes are no longer kept.
        stream_name: the name under which what a stream still needs is kept for it.
    """

    feed: bool = False
    start: int | str | None = None
    start_time: float | None = None
    end: int | None = None
    end_time: float | None = None
    skip_change_commits: bool = False
    max_rows: int | None = None
    max_bytes: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    stream_name: str | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """Options as values. Built by `parse_options`, which checks each and all together.

    Attributes:
        store: the store's uri, or `env:` and the name of a variable that holds it; a directory is absolute,
            since tasks may run in another one.
        table: the table's name.
        columns, filter: what a read returns.
        index: "auto", "none" or an index's name.
        version, timestamp: the snapshot to read (a commit number, or seconds since the epoch);
            at most one is given.
        batch_rows: most rows of an Arrow batch.
        split_bytes: about how much a task reads.
        partitions: most partitions of a read.
        metadata: whether `_shard` and `_slot` are added.
        txn: (txnAppId, txnVersion) of a batch write.
        app_id: txnAppId; a stream gives no txnVersion, it counts its batches itself.
        checkpoint: where Spark keeps the state of the stream that writes.
        delete_column: the column of the rows that says which of them delete.
        merge_schema: whether a write adds the columns that the table lacks; those that it has and the
            rows lack are then null.
        primary_key, shard_key: of the table that a write may create.
        explain: whether a read gives the ways there are to read, in place of rows.
        changes: how changes are read.
    """

    store: str = field(repr=False)
    table: str
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    index: str = "auto"
    version: int | None = None
    timestamp: float | None = None
    batch_rows: int = BATCH_ROWS
    split_bytes: int = DEFAULT_SPLIT_BYTES
    partitions: int | None = None
    metadata: bool = False
    txn: Txn | None = None
    primary_key: tuple[str, ...] | None = None
    shard_key: tuple[str, ...] | None = None
    explain: bool = False
    app_id: str | None = None
    checkpoint: str | None = None
    delete_column: str | None = None
    merge_schema: bool = False
    changes: ChangeOptions = field(default_factory=ChangeOptions)


def parse_options(given: Mapping[str, str], stream_write: bool = False) -> Options:
    """Check what Spark handed over.

    Keys are case-insensitive. Options of the other direction are let through where they cannot
    change any rows: a temporary view has one set of options for reading and for INSERT INTO.

    Raises:
        InvalidOption: one is unknown (the nearest right one is named), has an impossible value,
            or contradicts another.
    """
    values = _known(given)
    store, table = _where(values)
    if "versionAsOf" in values and "timestampAsOf" in values:
        raise InvalidOption(
            "options 'versionAsOf' and 'timestampAsOf' both choose the snapshot; give one of them",
            option="timestampAsOf",
        )
    options = Options(
        store=store,
        table=table,
        columns=_take(values, "columns", _names("columns")),
        filter=_take(values, "filter", _text("filter")),
        index=_take(values, "index", _index) or "auto",
        version=_take(values, "versionAsOf", _whole("versionAsOf", 0)),
        timestamp=_take(values, "timestampAsOf", _moment("timestampAsOf")),
        batch_rows=_take(values, "batchSize", _whole("batchSize", 1, MAX_PAGE_ROWS)) or BATCH_ROWS,
        split_bytes=_take(values, "splitSize", _size("splitSize")) or DEFAULT_SPLIT_BYTES,
        partitions=_take(values, "numPartitions", _whole("numPartitions", 1)),
        metadata=_take(values, "includeMetadata", _flag("includeMetadata")) or False,
        txn=None if stream_write else _txn(values),
        primary_key=_take(values, "primaryKey", _names("primaryKey")),
        shard_key=_take(values, "shardKey", _names("shardKey")),
        explain=_take(values, "explain", _flag("explain")) or False,
        app_id=_take(values, "txnAppId", _text("txnAppId")),
        checkpoint=_take(values, "checkpointLocation", _text("checkpointLocation")),
        delete_column=_take(values, "deleteColumn", _text("deleteColumn")),
        merge_schema=_take(values, "mergeSchema", _flag("mergeSchema")) or False,
        changes=_changes(values),
    )
    if stream_write and "txnVersion" in values:
        raise InvalidOption(
            "option 'txnVersion' is for batch writes: a stream's batches have numbers of their own, and each "
            "is written once; leave it out",
            option="txnVersion",
        )
    if options.shard_key and not options.primary_key:
        raise InvalidOption(
            "option 'shardKey' only goes with 'primaryKey', for a table that a write creates",
            option="shardKey",
        )
    return options


def check_for_batch(options: Options) -> Options:
    """Refuse what only a stream does, and a change feed that does not say which changes."""
    found = options.changes
    for name, value in (
        ("skipChangeCommits", found.skip_change_commits),
        ("maxRowsPerTrigger", found.max_rows),
        ("maxBytesPerTrigger", found.max_bytes),
        ("streamName", found.stream_name),
    ):
        if value:
            raise InvalidOption(f"option {name!r} is for readStream; a batch leaves it out", option=name)
    bounds = _bounds(found)
    if not found.feed:
        for name in bounds:
            raise InvalidOption(
                f"option {name!r} chooses changes: a batch read takes it with 'readChangeFeed' = 'true', and "
                "else chooses its snapshot with 'versionAsOf' or 'timestampAsOf'",
                option=name,
            )
        return options
    if found.start is None and found.start_time is None:
        raise InvalidOption(
            "option 'readChangeFeed' needs 'startingVersion' or 'startingTimestamp' in a batch read, to say "
            "which changes ('earliest' for all that are kept)",
            option="startingVersion",
        )
    if found.start == LATEST:
        raise InvalidOption(
            "option 'startingVersion'='latest' is for readStream: a batch read has nothing to wait for",
            option="startingVersion",
        )
    _refuse_other_reads(options, "a change feed")
    return options


def check_for_stream(options: Options) -> Options:
    """Refuse what a stream cannot do."""
    found = options.changes
    for name, value in (("endingVersion", found.end), ("endingTimestamp", found.end_time)):
        if value is not None:
            raise InvalidOption(
                f"option {name!r} is for batch reads; a stream with trigger(availableNow=True) ends with the "
                "newest commit",
                option=name,
            )
    _refuse_other_reads(options, "a stream")
    return options


def _refuse_other_reads(options: Options, what: str) -> None:
    for name, value in (
        ("versionAsOf", options.version is not None),
        ("timestampAsOf", options.timestamp is not None),
        ("index", options.index != "auto"),
        ("includeMetadata", options.metadata),
        ("explain", options.explain),
    ):
        if value:
            hint = "use 'startingVersion' or 'startingTimestamp'" if "AsOf" in name else "leave it out"
            raise InvalidOption(f"option {name!r} is not for {what}; {hint}", option=name)


def check_for_write(options: Options) -> Options:
    """Refuse what would make a write do something else than it says."""
    narrowing = {
        "filter": options.filter,
        "versionAsOf": options.version,
        "timestampAsOf": options.timestamp,
        "readChangeFeed": options.changes.feed or None,
    }
    if options.explain:
        raise InvalidOption(
            "option 'explain' gives the ways there are to read in place of rows, and nothing can be written "
            "to these; write without it",
            option="explain",
        )
    for name, value in narrowing.items():
        if value is not None:
            raise InvalidOption(
                f"option {name!r} narrows what is read, but a write always goes to the whole table as it is "
                "now; write without it (for INSERT INTO: into a view made without it)",
                option=name,
            )
    return options


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """The options by their proper names."""
    own = {name.lower(): name for name in _OWN}
    values: dict[str, str] = {}
    for key, value in given.items():
        lower = key.lower()
        if lower in own:
            values[own[lower]] = value
        elif lower == "paths":
            values.setdefault("path", _only_path(value))
        elif lower in _REMOVED:
            raise InvalidOption(f"there is no option {key!r} any more; {_REMOVED[lower]}", option=key)
        elif lower not in _FROM_SPARK and not lower.startswith(_FROM_SPARK_PREFIXES):
            near = difflib.get_close_matches(lower, own, n=1, cutoff=0.5)
            hint = f"did you mean {own[near[0]]!r}?" if near else f"there are {', '.join(_OWN)}"
            raise InvalidOption(f"there is no option {key!r}; {hint}", option=key)
    return values


def _only_path(text: str) -> str:
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if isinstance(paths, list) and len(paths) == 1 and isinstance(paths[0], str):
        return paths[0]
    raise InvalidOption(
        f"load() takes one 'uri/table', not {text}; load each table by itself and union them", option="path"
    )


def _where(values: Mapping[str, str]) -> tuple[str, str]:
    """Store and table, from `store` and `table` or from `path`, which is "uri/table"."""
    store, table, path = (values.get(name) for name in ("store", "table", "path"))
    if path is not None:
        head, _, tail = path.rstrip("/").rpartition("/")
        if not head and store is None:
            raise _bad("path", path, "'uri/table', as in load('/data/my.store/flights')")
        for name, value, found in (("store", store, head or store), ("table", table, tail)):
            if value is not None and value.rstrip("/") != found:
                raise InvalidOption(
                    f"option {name!r}={value!r} contradicts load({path!r}), which says {found!r}; give "
                    "either load('uri/table') or the options 'store' and 'table'",
                    option=name,
                )
        store, table = head or store, tail
    for name, value in (("store", store), ("table", table)):
        if not value:
            raise InvalidOption(
                f"no {name} is given: set the options 'store' and 'table', or load('uri/table'). Spark does "
                "not hand over the options of CREATE TABLE later: read such a table WITH (store = '...', "
                "table = '...'), or make a TEMPORARY VIEW",
                option=name,
            )
    assert store is not None
    assert table is not None
    return _absolute(store), table


def located(options: Options) -> Options:
    """The options with the store's own uri, where they name an environment variable that holds it.

    Tasks may run where it is not set. What goes to them is not shown in plans, as options are.
    """
    return replace(options, store=_absolute(resolved(options.store)))


def _absolute(uri: str) -> str:
    if uri.startswith(FROM_ENVIRONMENT):
        return uri
    if uri.startswith("file://"):
        uri = uri.removeprefix("file://")
    return uri if "://" in uri else str(Path(uri).absolute())


def _changes(values: Mapping[str, str]) -> ChangeOptions:
    fail = _take(values, "failOnDataLoss", _flag("failOnDataLoss"))
    found = ChangeOptions(
        feed=_take(values, "readChangeFeed", _flag("readChangeFeed")) or False,
        start=_take(values, "startingVersion", _start),
        start_time=_take(values, "startingTimestamp", _moment("startingTimestamp")),
        end=_take(values, "endingVersion", _whole("endingVersion", 0, _MAX_NUMBER)),
        end_time=_take(values, "endingTimestamp", _moment("endingTimestamp")),
        skip_change_commits=_take(values, "skipChangeCommits", _flag("skipChangeCommits")) or False,
        max_rows=_take(values, "maxRowsPerTrigger", _whole("maxRowsPerTrigger", 1, _MAX_NUMBER)),
        max_bytes=_take(values, "maxBytesPerTrigger", _size("maxBytesPerTrigger")),
        min_partitions=_take(values, "minPartitions", _whole("minPartitions", 1)),
        fail_on_data_loss=fail is not False,
        stream_name=_take(values, "streamName", _text("streamName")),
    )
    bounds = _bounds(found)
    for one, other in (("startingVersion", "startingTimestamp"), ("endingVersion", "endingTimestamp")):
        if one in bounds and other in bounds:
            raise InvalidOption(
                f"options {one!r} and {other!r} both choose a commit; give one of them", option=other
            )
    most = _take(values, "numPartitions", _whole("numPartitions", 1))
    if most is not None and (found.min_partitions or 0) > most:
        raise InvalidOption(
            f"option 'minPartitions'={found.min_partitions} is more than 'numPartitions'={most}, the most "
            "there may be; leave one of them out",
            option="minPartitions",
        )
    return found


def _bounds(found: ChangeOptions) -> dict[str, object]:
    """The options that choose commits, of those that were given."""
    values = {
        "startingVersion": found.start,
        "startingTimestamp": found.start_time,
        "endingVersion": found.end,
        "endingTimestamp": found.end_time,
    }
    return {name: value for name, value in values.items() if value is not None}


def _txn(values: Mapping[str, str]) -> Txn | None:
    given = [name for name in ("txnAppId", "txnVersion") if name in values]
    if len(given) == 1:
        raise InvalidOption(
            f"option {given[0]!r} needs the other of 'txnAppId' and 'txnVersion' beside it; give "
            "both or neither",
            option=given[0],
        )
    if not given:
        return None
    application = _text("txnAppId")(values["txnAppId"])
    return Txn(application, _whole("txnVersion", 0, (1 << 63) - 1)(values["txnVersion"]))


# One value


def _take(values: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T | None:
    text = values.get(name)
    return None if text is None else parse(text)


def _bad(name: str, value: str, wanted: str) -> InvalidOption:
    return InvalidOption(f"option {name!r}={brief(value, 200)} must be {wanted}", option=name)


def _text(name: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not text.strip():
            raise _bad(name, text, "some text; leave it out for none")
        return text

    return parse


def _names(name: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(part.strip() for part in text.split(","))
        if not all(names) or len({part.lower() for part in names}) < len(names):
            raise _bad(name, text, "column names with commas between, each once, such as 'id, name'")
        return names

    return parse


def _index(text: str) -> str:
    """Whether the table has an index of that name is seen when a read is planned."""
    name = text.strip().lower()  # names of indexes have no other letters
    if not re.fullmatch(NAME_PATTERN, name):
        raise _bad("index", text, "'auto', 'none' or the name of an index")
    return name


def _start(text: str) -> int | str:
    word = text.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    if not (word.isascii() and word.isdigit()):
        raise _bad("startingVersion", text, "the number of a commit, 'earliest' or 'latest'")
    return _whole("startingVersion", 0, _MAX_NUMBER)(text)


def _whole(name: str, least: int, most: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        digits = text.strip()
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else -1
        if number < least or (most is not None and number > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise _bad(name, text, f"a whole number {bounds}")
        return number

    return parse


def _flag(name: str) -> Callable[[str], bool]:
    def parse(text: str) -> bool:
        if text.strip().lower() not in ("true", "false"):
            raise _bad(name, text, "true or false")
        return text.strip().lower() == "true"

    return parse


def _size(name: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        found = _BYTES.fullmatch(text.strip())
        digits = found[1] if found and found[1].isascii() and len(found[1]) < 20 else "0"
        size = int(digits) * _FACTORS[found[2].lower()] if found else 0
        if not 1 <= size <= _MAX_NUMBER:
            raise _bad(name, text, "a number of bytes of at least 1, such as 67108864, 64m or 1g")
        return size

    return parse


def _moment(name: str) -> Callable[[str], float]:
    """Seconds since the epoch. Digits alone are that already; without a zone, UTC is meant."""

    def parse(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            try:
                found = datetime.fromisoformat(text.strip())
            except ValueError:
                seconds = math.nan
            else:
                seconds = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        if not math.isfinite(seconds):
            raise _bad(
                name,
                text,
                "an ISO date or time such as '2026-01-31' or '2026-01-31T12:00:00Z' (UTC without a zone), or "
                "seconds since 1970",
            )
        return seconds

    return parse
