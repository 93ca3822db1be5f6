"""Options, offsets and keys come from outside: whatever they are, a code says what is wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticscan.base.errors import (
    ContinuationKeyError,
    ElasticScanError,
    InvalidOffset,
    InvalidOption,
    StoreNotFound,
)
from elasticscan.connector import ElasticScanSource
from elasticscan.connector.conversion import spark_schema
from elasticscan.connector.options import OPTIONS, parse_options
from elasticscan.connector.streams.offsets import InChanges, Offset, OffsetFormat
from elasticscan.connector.streams.reader import ElasticScanStreamReader
from elasticscan.store import Store
from tests.connector.conftest import SCHEMA

NAMES = [*(option.name for option in OPTIONS), "path"]
NINES = "9" * 5_000
WORDS = [
    *("", " ", "0", "1", "-1", "1.5", NINES, f"-{NINES}", f"{NINES}g", "٣", "٣g", "²", "1e999", "nan", "inf"),
    *(
        "1e300",
        "-1e300",
        "0001-01-01",
        "9999-12-31T23:59:59.9999999Z",
        "2026-13-45",
        "earliest",
        "latest",
        "t",
    ),
    *(
        "true",
        "no",
        "id",
        "id,id",
        "id,",
        ",",
        "id,v",
        "id = 1",
        f"id = {NINES}",
        "map( 1",
        "\0",
        "é",
        "\ud800",
        "s1",
    ),
    *(
        "/",
        "//",
        "../..",
        "~",
        "file://",
        "s3://b?x",
        "sqlite:///x",
        "[]",
        "{}",
        '["a"]',
        "auto",
        "none",
        "x" * 99_999,
    ),
]


WAYS: list[Callable[[ElasticScanSource], Any]] = [
    lambda source: parse_options(source.options),
    lambda source: source.schema(),
    lambda source: source.reader(source.schema()).partitions(),
    lambda source: source.writer(spark_schema(SCHEMA), False),
    lambda source: source.streamReader(source.schema()).initialOffset(),
    lambda source: source.streamWriter(spark_schema(SCHEMA), True),
]


@pytest.mark.parametrize("seed", range(3))
def test_hostile_options_are_refused_with_a_code(store: Store, seed: int) -> None:
    dice = random.Random(seed)
    refused = 0
    for _ in range(150):
        given = {"store": store.uri, "table": "t"}
        given |= {
            dice.choice([*NAMES, "paths", "x", ""]): dice.choice(WORDS) for _ in range(dice.randint(1, 3))
        }
        try:
            dice.choice(WAYS)(ElasticScanSource(given))
        except ElasticScanError as error:
            str(error).encode()
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("name", NAMES)
def test_an_option_that_cannot_be_encoded_is_refused(store: Store, name: str) -> None:
    given = {"store": store.uri, "table": "t", name: '{"a": "b\ud800"}'}
    with pytest.raises(InvalidOption) as refused:
        parse_options(given)
    str(refused.value).encode()


def nested(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = {"a": found}
    return found


def test_hostile_offsets_are_refused_with_a_code(store: Store) -> None:
    options = parse_options({"store": store.uri, "table": "t"})
    reader = ElasticScanStreamReader(options, spark_schema(SCHEMA))
    good = reader.initialOffset()
    values: list[Any] = [
        None,
        True,
        -1,
        1.5,
        10**5_000,
        float("nan"),
        "x",
        b"x",
        [],
        {},
        nested(5_000),
        object(),
        {1: 2},
    ]
    hostile: list[Any] = [*values, json.dumps(good), [good]]
    hostile += [{**good, name: value} for name in [*good, "more"] for value in values]
    for given in hostile:
        if given == good:
            continue
        for start, end in ((given, good), (good, given)):
            with pytest.raises(InvalidOffset):
                reader.partitions(start, end)


def test_an_offset_of_a_store_is_read_by_its_own_format_only(store: Store) -> None:
    form = OffsetFormat("s", 4, lambda _: "0" * 16, lambda *_: False)
    with pytest.raises(InvalidOffset, match="altered"):
        form.read(form.write(Offset(1, InChanges(3, 0), None)))


@pytest.mark.parametrize("seed", range(2))
def test_hostile_keys_are_refused_with_a_code(store: Store, seed: int) -> None:
    dice = random.Random(seed)
    key = next(iter(store.table("t").scan(page_rows=10))).key
    assert key is not None
    for _ in range(300):
        altered = list(key)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(altered))
            altered[at : at + dice.randint(0, 3)] = dice.choice(
                ["", "A", "_", "=", "é", "\0", "-" * 9, NINES]
            )
        text = "".join(altered)
        if text != key:
            with pytest.raises(ContinuationKeyError):
                store.resume(text)


@pytest.mark.parametrize(
    "use", [lambda source: source.schema(), lambda source: source.writer(spark_schema(SCHEMA), False)]
)
def test_a_store_without_a_table_is_reported_with_its_tables(
    store: Store, use: Callable[[ElasticScanSource], Any]
) -> None:
    with pytest.raises(
        InvalidOption, match=r"is a store: name a table of it, too, .*/TABLE.*attach.* there are: t\b"
    ):
        use(ElasticScanSource({"path": store.uri}))


def test_a_path_that_is_not_whole_is_reported_where_it_begins(tmp_path: Path) -> None:
    for path, is_told in (("nowhere.store/t", True), (f"{tmp_path}/nowhere.store/t", False)):
        with pytest.raises(StoreNotFound) as error:
            ElasticScanSource({"path": path}).schema()
        assert ("begins in the directory of Spark's driver" in error.value.message) == is_told
