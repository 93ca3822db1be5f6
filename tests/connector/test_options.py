"""Options: each value checked, contradictions refused, the nearest right name told."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import DEFAULT_SPLIT_BYTES
from elasticscan.connector.options import (
    FEED,
    OPTIONS,
    READ,
    ChangeOptions,
    Option,
    Options,
    check_for_batch,
    check_for_stream,
    check_for_write,
    parse_options,
)

WHERE = {"store": "/data/my.store", "table": "t"}


def parsed(**given: str) -> Options:
    return parse_options({**WHERE, **given})


def refused(**given: str) -> str:
    with pytest.raises(InvalidOption) as caught:
        parsed(**given)
    return str(caught.value)


def test_store_and_table_are_enough_and_the_rest_has_defaults() -> None:
    assert parsed() == Options("/data/my.store", "t")
    assert parsed().split_bytes == DEFAULT_SPLIT_BYTES == 512 << 20


def test_keys_may_come_in_any_case() -> None:
    found = parse_options({"STORE": "/s", "table": "t", "versionasof": "7", "NUMPARTITIONS": "3"})
    assert (found.version, found.partitions) == (7, 3)


def test_load_takes_uri_and_table_in_one_path() -> None:
    assert parse_options({"path": "/data/my.store/t"}) == Options("/data/my.store", "t")
    assert parse_options({"path": "postgresql://u@h/db/t"}).store == "postgresql://u@h/db"
    assert parse_options({"paths": '["/data/my.store/t"]'}) == Options("/data/my.store", "t")


def test_load_may_name_the_table_alone_beside_a_store() -> None:
    assert parse_options({"store": "/s", "path": "t"}) == Options("/s", "t")


def test_a_relative_store_becomes_absolute_for_tasks_elsewhere() -> None:
    assert parse_options({"path": "my.store/t"}).store == str(Path("my.store").absolute())
    assert parse_options({"path": "file:///data/my.store/t"}).store == "/data/my.store"


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"path": "/s/t", "table": "other"}, "table"),
        ({"path": "/s/t", "store": "/other"}, "store"),
        ({"store": "/s"}, "table"),
        ({"table": "t"}, "store"),
        ({"path": "t"}, "path"),
        ({"paths": '["/a/t", "/b/t"]'}, "path"),
        ({"paths": "no json"}, "path"),
        ({}, "store"),
    ],
)
def test_a_place_that_is_missing_or_said_twice_is_refused(given: dict[str, str], option: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_options(given)
    assert caught.value.fields["option"] == option


def test_the_same_place_said_twice_is_fine() -> None:
    assert parse_options({**WHERE, "path": "/data/my.store/t"}) == parsed()


def test_all_read_options_arrive() -> None:
    found = parsed(
        columns="id, name",
        filter="id > 3",
        index="NONE",
        versionAsOf="12",
        batchSize="1000",
        splitSize="64m",
        numPartitions="4",
        includeMetadata="true",
    )
    expected = Options(
        "/data/my.store",
        "t",
        columns=("id", "name"),
        filter="id > 3",
        index="none",
        version=12,
        batch_rows=1000,
        split_bytes=64 << 20,
        partitions=4,
        metadata=True,
    )
    assert found == expected


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
        ("columns", ""),
        ("columns", "id,,v"),
        ("columns", "id, ID"),
        ("filter", "  "),
        ("index", ""),
        ("index", "by delay"),
        ("explain", "1"),
        ("versionAsOf", "-1"),
        ("versionAsOf", "latest"),
        ("versionAsOf", "9" * 20),
        ("timestampAsOf", "yesterday"),
        ("timestampAsOf", "nan"),
        ("batchSize", "0"),
        ("batchSize", "16777217"),
        ("batchSize", "1.5"),
        ("splitSize", "0"),
        ("splitSize", "-1m"),
        ("splitSize", "10 apples"),
        ("numPartitions", "0"),
        ("includeMetadata", "yes"),
        ("primaryKey", ","),
    ],
)
def test_an_impossible_value_is_refused_by_name(name: str, value: str) -> None:
    text = refused(**{name: value})
    assert text.startswith("[ES_INVALID_OPTION]")
    assert f"{name!r}={value!r} must be " in text


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("column", "columns"),
        ("versionAsOff", "versionAsOf"),
        ("snapshotTimestampAsOf", "timestampAsOf"),
        ("fetchBatchSize", "batchSize"),
        ("numPartition", "numPartitions"),
        ("where_filter", "filter"),
    ],
)
def test_an_unknown_option_names_the_nearest_right_one(typed: str, meant: str) -> None:
    assert f"there is no option {typed!r}; did you mean {meant!r}?" in refused(**{typed: "1"})


@pytest.mark.parametrize("typed", ["pushdown", "PushDown"])
def test_a_removed_option_names_what_to_use_instead(typed: str) -> None:
    text = refused(**{typed: "true"})
    assert f"there is no option {typed!r} any more; use the options 'filter' and 'columns', or attach" in text


def test_an_option_like_no_other_gets_the_whole_list() -> None:
    assert "numPartitions" in refused(qqqq="1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxRowsPerTrigger", "1"),
        ("maxbytespertrigger", "1g"),
        ("startingVersion", "1"),
        ("startingTimestamp", "2026-01-01"),
        ("endingVersion", "1"),
        ("skipChangeCommits", "true"),
        ("streamName", "nightly"),
    ],
)
def test_a_batch_read_refuses_what_only_streams_and_change_feeds_do(name: str, value: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        check_for_batch(parsed(**{name: value}))
    assert caught.value.fields["option"].lower() == name.lower()


def test_options_of_streams_have_defaults_and_values() -> None:
    assert parsed().changes == ChangeOptions()
    given = parsed(
        startingVersion="Earliest",
        readChangeFeed="true",
        skipChangeCommits="true",
        maxRowsPerTrigger="10",
        maxBytesPerTrigger="10g",
        minPartitions="3",
        failOnDataLoss="false",
        streamName="nightly",
    )
    assert check_for_stream(given).changes == ChangeOptions(
        feed=True,
        start="earliest",
        skip_change_commits=True,
        max_rows=10,
        max_bytes=10 << 30,
        min_partitions=3,
        fail_on_data_loss=False,
        stream_name="nightly",
    )
    assert parsed(startingVersion="7").changes.start == 7
    assert parsed(startingTimestamp="1970-01-02").changes.start_time == 86_400


def test_two_beginnings_or_two_ends_contradict() -> None:
    assert "give one of them" in refused(startingVersion="1", startingTimestamp="2026-01-01")
    assert "give one of them" in refused(endingVersion="1", endingTimestamp="2026-01-01")


def test_two_snapshots_contradict() -> None:
    assert "'versionAsOf' and 'timestampAsOf'" in refused(versionAsOf="1", timestampAsOf="2026-01-01")


def test_a_transaction_needs_both_of_its_options() -> None:
    assert "'txnAppId'" in refused(txnAppId="app")
    assert "'txnVersion'" in refused(txnVersion="1")
    assert parsed(txnAppId="app", txnVersion="1").txn == ("app", 1, None)


def test_a_shard_key_needs_a_primary_key() -> None:
    assert "'primaryKey'" in refused(shardKey="id")


def test_what_spark_adds_is_ignored() -> None:
    added = {"provider": "elasticscan", "owner": "me", "option.store": "/s", "spark.x": "1"}
    assert parsed(**added) == parsed()


@pytest.mark.parametrize(
    "narrowing", [{"filter": "id > 1"}, {"versionAsOf": "1"}, {"timestampAsOf": "2026-01-01"}]
)
def test_a_write_through_a_narrowed_view_is_refused(narrowing: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match="narrows what is read"):
        check_for_write(parsed(**narrowing))


def test_an_index_is_named_in_any_case() -> None:
    assert [parsed(index=text).index for text in ("AUTO", "none", "By_Delay", " i1 ")] == [
        "auto",
        "none",
        "by_delay",
        "i1",
    ]
    assert parsed().index == "auto"


def test_explain_is_off_unless_asked_for() -> None:
    assert (parsed().explain, parsed(EXPLAIN="True").explain) == (False, True)


def test_nothing_can_be_written_to_an_explanation() -> None:
    with pytest.raises(InvalidOption, match="'explain'"):
        check_for_write(parsed(explain="true"))


def test_order_is_left_to_spark() -> None:
    assert "there is no option 'order'" in refused(order="index")
    assert "there is no option 'descending'" in refused(descending="true")


def test_a_write_does_not_mind_how_reads_are_cut() -> None:
    options = parsed(numPartitions="2", batchSize="10", columns="id")
    assert check_for_write(options) is options


README = Path(__file__).resolve().parents[2] / "README.md"


def row(option: Option, default: Any) -> str:
    """An option as the README lists it; a batch read of changes is a read to its readers."""
    where = list(dict.fromkeys(READ if use == FEED else use for use in option.where))
    if default in (None, MISSING):
        shown = ""
    elif isinstance(default, bool):
        shown = str(default).lower()
    else:
        shown = f"{default >> 20}m" if isinstance(default, int) and default >= 1 << 20 else f"{default}"
    return f"| `{option.name}` | {', '.join(where)} | {shown} | {option.meaning} |"


def test_the_table_of_the_readme_is_the_table_of_options() -> None:
    """Where this fails, put what it expects into the README."""
    defaults = [one.default for kind in (Options, ChangeOptions) for one in fields(kind) if one.metadata]
    rows = [row(option, default) for option, default in zip(OPTIONS, defaults, strict=True)]
    text = README.read_text(encoding="utf-8")
    _, _, rest = text.partition("| option | for | default | meaning |\n|---|---|---|---|\n")
    assert rest.partition("\n\n")[0] == "\n".join(rows)
