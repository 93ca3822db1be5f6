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
from elasticscan.connector import ElasticScanSource
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.options import (
    FEED,
    OPTIONS,
    READ,
    STREAM,
    STREAM_WRITE,
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


HERE = str(Path("my.store").absolute())  # for tasks that run elsewhere


@pytest.mark.parametrize(
    ("given", "store"),
    [
        ({"path": "/data/my.store/t"}, "/data/my.store"),
        ({"path": "postgresql://u@h/db/t"}, "postgresql://u@h/db"),
        ({"STORE": "/s", "taBLE": "t"}, "/s"),
        ({"path": "my.store/t"}, HERE),
        ({"path": "file:///data/my.store/t"}, "/data/my.store"),
        ({"path": "~/my.store/t"}, str(Path("~/my.store").expanduser())),
        ({"path": "/data/my.store/", "table": "t"}, "/data/my.store"),
        ({"path": "postgresql://u@h/db", "table": "t"}, "postgresql://u@h/db"),
        ({"path": "/data/my.store", "table": "t", "store": "/data/my.store"}, "/data/my.store"),
        ({"url": "env:A", "store": "env:A", "table": "t"}, "env:A"),  # whose value Spark hides
        # What Spark adds is ignored.
        ({**WHERE, "provider": "elasticscan", "owner": "me", "option.store": "/s"}, "/data/my.store"),
    ],
)
def test_a_place_is_named_by_options_or_a_path(given: dict[str, str], store: str) -> None:
    assert parse_options(given) == Options(store, "t")


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"path": "/s/t", "store": "/other"}, "path"),
        ({"store": "/s"}, "table"),
        ({"table": "t"}, "store"),
        ({"path": "t"}, "path"),
        ({"paths": '["/a/t", "/b/t"]'}, "paths"),
        ({"url": "env:A", "store": "env:B", "table": "t"}, "url"),
        ({"url": "env:A", "path": "env:B/t"}, "path"),
    ],
)
def test_a_place_that_is_missing_or_said_twice_is_refused(given: dict[str, str], option: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_options(given)
    assert caught.value.fields["option"] == option


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("splitSize", "10k", 10 << 10),
        ("splitSize", "3 MB", 3 << 20),
        ("splitSize", "1gib", 1 << 30),
        # Times are UTC unless they say otherwise.
        ("timestampAsOf", "1700000000.5", 1_700_000_000.5),
        ("timestampAsOf", "253402300799", 253_402_300_799),
        ("timestampAsOf", "1970-01-02", 86_400.0),
        ("timestampAsOf", "1970-01-01 01:00:00.25", 3_600.25),
        ("timestampAsOf", "1970-01-01T01:00:00+01:00", 0.0),
    ],
)
def test_sizes_take_suffixes_and_times_zones(name: str, text: str, value: float) -> None:
    options = parse_options(WHERE | {name: text})
    assert (options.split_bytes if name == "splitSize" else options.timestamp) == value


IMPOSSIBLE = [
    ("columns", "id,,v"),
    ("columns", "id, ID"),
    ("filter", "  "),
    ("index", "by delay"),
    ("explain", "1"),
    ("versionAsOf", "la test"),
    ("versionAsOf", "9" * 20),
    ("timestampAsOf", "yesterday"),
    ("timestampAsOf", "1767225600123"),
    ("batchSize", "0"),
    ("batchSize", "16777217"),
    ("splitSize", "10 apples"),
    ("startingVersion", "soon"),
    ("txnAppId", "a" * 1_025),
    ("compression", "snappy"),
    *(("userMetadata", text) for text in ("nightly", "[1]", '{"a": 1}', "[" * 100_000)),
    *(("partialAggregates", text) for text in ("", "[]", '{"values": [1]}', '{"by": ["a", "a"]}')),
]
FOLDED = {"partialAggregates": '{"by": ["g"]}'}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({name: value}, " must be ") for name, value in IMPOSSIBLE),
        # The nearest right name of an unknown option.
        ({"snapshotTimestampAsOf": "1"}, "did you mean 'timestampAsOf'?"),
        ({"version_as_of": "1"}, "did you mean 'versionAsOf'?"),
        ({"qqqq": "1"}, "there is no option 'qqqq'; docs/options.md lists the options"),
        # What does not go together.
        ({"startingVersion": "1", "startingTimestamp": "2026-01-01"}, "leave one out"),
        ({"endingVersion": "1", "endingTimestamp": "2026-01-01"}, "leave one out"),
        ({"versionAsOf": "1", "timestampAsOf": "2026-01-01"}, "does not go with 'timestampAsOf'"),
        ({"txnVersion": "1"}, "option 'txnVersion' needs 'txnAppId'"),
        ({"ifUnchangedSince": "2", "insertOnly": "true"}, "does not go with 'insertOnly'"),
        ({"deleteColumn": "v", "insertOnly": "true"}, "does not go with 'insertOnly'"),
        ({"deleteColumn": "v", "replaceWhere": "id < 5"}, "does not go with 'replaceWhere'"),
        ({"deleteColumn": "v", "partialUpdate": "true"}, "does not go with 'partialUpdate'"),
        ({"insertOnly": "true", "partialUpdate": "true"}, "does not go with 'partialUpdate'"),
        ({**FOLDED, "columns": "g"}, "does not go with 'partialAggregates'"),
        ({**FOLDED, "includeMetadata": "true"}, "does not go with"),
        ({**FOLDED, "maxRowsPerTask": "3"}, "does not go with"),
        ({"taskOrder": "d"}, "needs 'maxRowsPerTask'"),
        ({"shardKey": "id"}, "'primaryKey'"),
        ({"compression": "zstd"}, "'primaryKey'"),
    ],
)
def test_what_is_impossible_or_does_not_go_together_is_refused_by_name(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_options(WHERE | given)
    assert message in str(caught.value)
    assert caught.value.fields["option"] in given


@pytest.mark.parametrize(
    ("use", "name", "value"),
    [
        *((READ, name, "1") for name in ("maxRowsPerTrigger", "startingVersion", "endingVersion")),
        (READ, "streamName", "nightly"),
        *((STREAM, name, "1") for name in ("endingVersion", "versionAsOf", "index")),
        # A write through a view that was narrowed.
        (WRITE, "filter", "id > 1"),
        (STREAM_WRITE, "partialUpdate", "true"),
        (WRITE, "versionAsOf", "1"),
        (WRITE, "explain", "true"),
        (WRITE, "partialAggregates", FOLDED["partialAggregates"]),
    ],
)
def test_what_is_for_another_use_is_refused_there(use: str, name: str, value: str) -> None:
    with pytest.raises(InvalidOption, match=r"is for .*, not for") as caught:
        check_use(parse_options(WHERE | {name: value}), use)
    assert caught.value.fields["option"] == name
    harmless = parse_options(WHERE | {"numPartitions": "2", "batchSize": "10", "columns": "id"})
    assert check_use(harmless, WRITE) is harmless  # how reads are cut


ROOT = Path(__file__).resolve().parents[2]
HEAD = "| option | for | default | meaning |\n|---|---|---|---|\n"


def row(option: Option, default: Any) -> str:
    """An option as the page lists it but for its meaning; a batch read of changes is a read to readers."""
    where = list(dict.fromkeys(READ if use == FEED else use for use in option.where))
    if default in (None, MISSING):
        shown = ""
    elif isinstance(default, bool):
        shown = str(default).lower()
    else:
        shown = f"{default >> 20}m" if isinstance(default, int) and default >= 1 << 20 else f"{default}"
    return f"| `{option.name}` | {', '.join(where)} | {shown} |"


def test_the_page_of_options_has_the_table_of_options() -> None:
    """Where this fails, put the expected rows into docs/options.md."""
    defaults = [one.default for one in fields(Options) if one.metadata]
    rows = [row(option, default) for option, default in zip(OPTIONS, defaults, strict=True)]
    _, _, rest = (ROOT / "docs/options.md").read_text(encoding="utf-8").partition(HEAD)
    listed = rest.partition("\n\n")[0].splitlines()
    assert all(line.removeprefix(head).strip(" |") for line, head in zip(listed, rows, strict=True))
    assert all(line.startswith(head) for line, head in zip(listed, rows, strict=True))


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
