"""Options: each value checked, contradictions refused, the nearest right name reported."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticscan.base.errors import ElasticScanError, InvalidOption
from elasticscan.base.limits import DEFAULT_SPLIT_BYTES
from elasticscan.connector import ElasticScanSource
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.options import (
    FEED,
    OPTIONS,
    READ,
    STREAM,
    WRITE,
    Option,
    Options,
    check_use,
    parse_options,
)
from elasticscan.store import Store
from tests.base.examples import examples
from tests.connector.conftest import SCHEMA, rows

WHERE = {"store": "/data/my.store", "table": "t"}


def parsed(**options: str) -> Options:
    return parse_options({**WHERE, **options})


def refused(**options: str) -> str:
    with pytest.raises(InvalidOption) as caught:
        parsed(**options)
    return str(caught.value)


def test_store_and_table_are_enough_and_the_rest_has_defaults() -> None:
    assert parsed() == Options("/data/my.store", "t")
    assert parsed().split_bytes == DEFAULT_SPLIT_BYTES == 512 << 20
    assert (parsed().index, parsed().explain, parsed(txnAppId="a", txnVersion="1").txn) == (
        "auto",
        False,
        ("a", 1, None),
    )


@pytest.mark.parametrize(
    ("given", "store", "table"),
    [
        ({"path": "/data/my.store/t"}, "/data/my.store", "t"),
        ({"path": "postgresql://u@h/db/t"}, "postgresql://u@h/db", "t"),
        ({"store": "/s", "path": "t"}, "/s", "t"),
        ({"STORE": "/s", "taBLE": "t"}, "/s", "t"),
        ({**WHERE, "path": "/data/my.store/t"}, "/data/my.store", "t"),
        ({"path": "my.store/t"}, str(Path("my.store").absolute()), "t"),  # for tasks that run elsewhere
        ({"path": "file:///data/my.store/t"}, "/data/my.store", "t"),
        ({"path": "file:/data/my.store/t"}, "/data/my.store", "t"),
        ({"path": "~/my.store/t"}, str(Path("~/my.store").expanduser()), "t"),
        ({"path": "/data/my.store", "table": "t"}, "/data/my.store", "t"),
        ({"path": "/data/my.store/", "table": "t"}, "/data/my.store", "t"),
        ({"path": "my.store", "table": "t"}, str(Path("my.store").absolute()), "t"),
        ({"path": "postgresql://u@h/db", "table": "t"}, "postgresql://u@h/db", "t"),
        ({"path": "/data/my.store", "table": "t", "store": "/data/my.store"}, "/data/my.store", "t"),
    ],
)
def test_a_place_is_named_by_options_or_a_path(given: dict[str, str], store: str, table: str) -> None:
    assert parse_options(given) == Options(store, table)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"path": "/s/t", "table": "other", "store": "/s"}, "store"),
        ({"path": "/s", "table": "t", "store": "/other"}, "store"),
        ({"path": "/s/t", "store": "/other"}, "store"),
        ({"store": "/s"}, "table"),
        ({"table": "t"}, "store"),
        ({"path": "t"}, "path"),
        ({"paths": '["/a/t", "/b/t"]'}, "paths"),
        ({}, "store"),
    ],
)
def test_a_place_that_is_missing_or_said_twice_is_refused(given: dict[str, str], option: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_options(given)
    assert caught.value.fields["option"] == option


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("10k", 10 << 10), ("3 MB", 3 << 20), ("2G", 2 << 30), ("1gib", 1 << 30)]
)
def test_sizes_take_suffixes(text: str, size: int) -> None:
    assert parsed(splitSize=text).split_bytes == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("1700000000.5", 1_700_000_000.5),
        ("1970-01-02", 86_400.0),
        ("1970-01-01 01:00:00", 3_600.0),
        ("1970-01-01T01:00:00Z", 3_600.0),
        ("1970-01-01T01:00:00+01:00", 0.0),
        ("1970-01-01T00:00:00.25", 0.25),
    ],
)
def test_timestamps_are_utc_unless_they_say_otherwise(text: str, seconds: float) -> None:
    assert parsed(timestampAsOf=text).timestamp == seconds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("columns", "id,,v"),
        ("columns", "id, ID"),
        ("filter", "  "),
        ("index", "by delay"),
        ("explain", "1"),
        ("versionAsOf", "la test"),
        ("versionAsOf", "9" * 20),
        ("timestampAsOf", "yesterday"),
        ("batchSize", "0"),
        ("batchSize", "16777217"),
        ("splitSize", "10 apples"),
        ("startingVersion", "soon"),
        *(("userMetadata", text) for text in ("nightly", "[1]", '{"a": 1}', "[" * 100_000)),
        *(("partialAggregates", text) for text in ("", "[]", '{"values": [1]}', '{"by": ["a", "a"]}')),
    ],
)
def test_an_impossible_value_is_refused_by_name(name: str, value: str) -> None:
    text = refused(**{name: value})
    assert text.startswith("[ES_INVALID_OPTION]")
    assert f"{name!r}=" in text
    assert " must be " in text


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("column", "columns"),
        ("snapshotTimestampAsOf", "timestampAsOf"),
        ("fetchBatchSize", "batchSize"),
        ("version_as_of", "versionAsOf"),
    ],
)
def test_an_unknown_option_names_the_nearest_right_one(typed: str, meant: str) -> None:
    assert f"there is no option {typed!r}; did you mean {meant!r}?" in refused(**{typed: "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxRowsPerTrigger", "1"),
        ("maxbytespertrigger", "1g"),
        ("startingVersion", "1"),
        ("endingVersion", "1"),
        ("streamName", "nightly"),
    ],
)
def test_a_batch_read_refuses_what_only_streams_and_change_feeds_do(name: str, value: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        check_use(parsed(**{name: value}), READ)
    assert caught.value.fields["option"].lower() == name.lower()


@pytest.mark.parametrize(("name", "value"), [("endingVersion", "1"), ("versionAsOf", "1"), ("index", "by_v")])
def test_a_stream_refuses_what_only_batch_reads_do(name: str, value: str) -> None:
    with pytest.raises(InvalidOption, match=f"option '{name}' is for .*, not for readStream"):
        check_use(parsed(**{name: value}), STREAM)


@pytest.mark.parametrize("name", ["startingTimestamp", "endingTimestamp", "timestampAsOf"])
def test_a_time_after_the_year_9999_is_refused(name: str) -> None:
    text = refused(**{name: "1767225600123", "readChangeFeed": "true", "startingVersion": "1"})
    assert "must be an ISO date or time" in text
    assert parsed(timestampAsOf="253402300799").timestamp == 253_402_300_799


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingVersion": "1", "startingTimestamp": "2026-01-01"}, "leave one out"),
        ({"endingVersion": "1", "endingTimestamp": "2026-01-01"}, "leave one out"),
        (
            {"versionAsOf": "1", "timestampAsOf": "2026-01-01"},
            "'versionAsOf' does not go with 'timestampAsOf'",
        ),
        ({"txnAppId": "app"}, "option 'txnAppId' needs 'txnVersion'"),
        ({"txnAppId": "a" * 1_025, "txnVersion": "1"}, "must be a name of 1 to 1,024 bytes"),
        ({"txnVersion": "1"}, "option 'txnVersion' needs 'txnAppId'"),
        ({"ifUnchangedSince": "2", "insertOnly": "true"}, "does not go with 'insertOnly'"),
        ({"deleteColumn": "v", "insertOnly": "true"}, "does not go with 'insertOnly'"),
        ({"deleteColumn": "v", "replaceWhere": "id < 5"}, "does not go with 'replaceWhere'"),
        ({"deleteColumn": "v", "partialUpdate": "true"}, "does not go with 'partialUpdate'"),
        ({"insertOnly": "true", "partialUpdate": "true"}, "does not go with 'partialUpdate'"),
        ({"partialAggregates": '{"by": ["g"]}', "columns": "g"}, "does not go with 'partialAggregates'"),
        ({"partialAggregates": '{"by": ["g"]}', "includeMetadata": "true"}, "does not go with"),
        ({"partialAggregates": '{"by": ["g"]}', "maxRowsPerTask": "3"}, "does not go with"),
        ({"taskOrder": "d"}, "needs 'maxRowsPerTask'"),
        ({"shardKey": "id"}, "'primaryKey'"),
        ({"compression": "zstd"}, "'primaryKey'"),
        ({"primaryKey": "id", "compression": "snappy"}, "must be one of none, lz4, zstd"),
    ],
)
def test_what_does_not_go_together_or_is_no_option_is_refused(given: dict[str, str], message: str) -> None:
    assert message in refused(**given)


def test_an_option_like_no_other_is_refused() -> None:
    assert "there is no option 'qqqq'; docs/options.md lists the options" in refused(qqqq="1")


def test_what_spark_adds_is_ignored() -> None:
    added = {"provider": "elasticscan", "owner": "me", "option.store": "/s", "spark.sql.create.version": "1"}
    assert parsed(**added) == parsed()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"filter": "id > 1"}, "is for read"),
        ({"versionAsOf": "1"}, "is for read"),
        ({"timestampAsOf": "2026-01-01"}, "is for read"),
        (
            {"readChangeFeed": "true", "startingVersion": "1"},
            "is for change feed and readStream, not for write",
        ),
        ({"explain": "true"}, "'explain'"),
        ({"partialAggregates": '{"by": ["g"]}'}, "'partialAggregates' is for read, not for write"),
    ],
)
def test_a_write_through_a_narrowed_view_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        check_use(parsed(**given), WRITE)


def test_a_write_does_not_mind_how_reads_are_cut() -> None:
    options = parsed(numPartitions="2", batchSize="10", columns="id")
    assert check_use(options, WRITE) is options


ROOT = Path(__file__).resolve().parents[2]
HEAD = "| option | for | default | meaning |\n|---|---|---|---|\n"


def row(option: Option, default: Any) -> str:
    """An option as the pages list it; a batch read of changes is a read to its readers."""
    where = list(dict.fromkeys(READ if use == FEED else use for use in option.where))
    if default in (None, MISSING):
        shown = ""
    elif isinstance(default, bool):
        shown = str(default).lower()
    else:
        shown = f"{default >> 20}m" if isinstance(default, int) and default >= 1 << 20 else f"{default}"
    return f"| `{option.name}` | {', '.join(where)} | {shown} | {option.meaning} |"


def listed(page: str) -> list[str]:
    _, _, rest = (ROOT / page).read_text(encoding="utf-8").partition(HEAD)
    return rest.partition("\n\n")[0].splitlines()


def test_the_page_of_options_has_the_table_of_options() -> None:
    """Where this fails, put the expected rows into docs/options.md."""
    defaults = [one.default for one in fields(Options) if one.metadata]
    rows = [row(option, default) for option, default in zip(OPTIONS, defaults, strict=True)]
    assert listed("docs/options.md") == rows


def test_a_store_may_be_named_by_the_option_whose_value_spark_hides() -> None:
    options = parse_options({"URL": "env:TRIPS", "table": "t"})
    assert (options.store, options.table) == ("env:TRIPS", "t")
    assert parse_options({"url": "env:A", "store": "env:A", "table": "t"}).store == "env:A"
    for more in ({"store": "env:B", "table": "t"}, {"path": "env:B/t"}):
        with pytest.raises(InvalidOption, match="give"):
            parse_options({"url": "env:A", **more})


# Any options


SECRET = "hunter2"
NINES = "9" * 5_000
URL = f"postgresql://me:{SECRET}@127.0.0.1:1/db"
NAMES = [*(option.name for option in OPTIONS), "path", "paths", "url"]
TEXTS = st.text(max_size=20) | st.sampled_from(
    [
        *("", " ", "0", "1", "-1", "1.5", NINES, f"-{NINES}", f"{NINES}g", "٣", "²", "1e999", "nan", "inf"),
        *("-1e300", "0001-01-01", "9999-12-31T23:59:59.9999999Z", "2026-13-45", "earliest", "latest", "t"),
        *("true", "no", "id", "id,id", "id,", ",", "id = 1", f"id = {NINES}", "map( 1", "\0", "\ud800"),
        *("/", "//", "../..", "~", "file://", "s3://b?x", "sqlite:///x", "[]", "{}", '["a"]', "x" * 99_999),
        *(URL, f"{URL}/t", f'["{URL}/t"]', f"s3://b/p?secret_key={SECRET}", f"s3://me:{SECRET}@b/p"),
    ]
)
USES: list[Callable[[ElasticScanSource], Any]] = [
    lambda source: parse_options(source.options),
    lambda source: source.schema(),
    lambda source: source.reader(source.schema()).partitions(),
    lambda source: source.writer(spark_schema(SCHEMA), False),
    lambda source: source.streamReader(source.schema()).initialOffset(),
    lambda source: source.streamWriter(spark_schema(SCHEMA), True),
]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    store = Store.create(tmp_path_factory.mktemp("options") / "shop.store", ["s1", "s2"], slots=64)
    store.create_table("t", SCHEMA, ["id"])
    store.table("t").upsert(rows(0, 100))
    return store.uri


@settings(max_examples=examples(300), deadline=10_000, derandomize=True)
@given(
    given_=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), TEXTS, max_size=3),
    use=st.sampled_from(USES),
)
def test_any_options_work_or_raise_a_typed_error_without_a_secret(
    uri: str, given_: dict[str, str], use: Callable[[ElasticScanSource], Any]
) -> None:
    try:
        use(ElasticScanSource({"store": uri, "table": "t", **given_}))
    except (ElasticScanError, TypeError, ValueError) as error:
        str(error).encode()
        assert SECRET not in "".join(traceback.format_exception(error))  # noqa: PT017
