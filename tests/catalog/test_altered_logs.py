"""Parts in the place of others: they can be read, and their digests alone tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import msgpack
import pyarrow as pa
import pytest

from elasticscan.catalog import checkpoints
from elasticscan.catalog.appending import Append
from elasticscan.catalog.entries import STATISTICS
from elasticscan.catalog.log import Log
from elasticscan.metadata import (
    MAX_FILES,
    AddedFragment,
    FileChanges,
    RowsCommitted,
    Secret,
    SecretChanged,
    StagedFragment,
    StoreCreated,
    TableDefined,
    TableInfo,
)
from elasticscan.topology import Shard, SlotSet, Tablet
from tests.base.manual_clock import ManualClock
from tests.catalog.logs import FileHome, append, begin
from tests.catalog.programs import picture

CREATED = StoreCreated("s", 8, "murmur3", 60.0, (Shard(1, "a", "/a"),), (Tablet(1, 0, 8, 1, 1),))
INFO = TableInfo(1, "t", pa.schema([("k", pa.int64())]), ("k",), ("k",), None, 0, 0)
CLOCK = ManualClock(1_700_000_000.0)
ONE, OTHER = Secret(1, "keys", b"one", 1.0), Secret(1, "keys", b"other", 1.0)

EVERY_PART = "SELECT number, part, bytes FROM checkpoint"


def rows_in_file(log: Log, path: str) -> int:
    statistics = path.encode()
    file = StagedFragment(1, path, SlotSet.span(0, 8), 1, 10, True, 0, False, 1, 1, statistics=statistics)
    files = FileChanges((AddedFragment(file),))
    return append(log, Append(RowsCommitted(1, "write", INFO.definition, 1, 10, files=files)))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with closing(FileHome.create(tmp_path / "log.db", CLOCK)) as home:
        made = begin(home, CREATED)
        append(made, Append(TableDefined(INFO, 0, "create")))
        yield made


def put(log: Log, number: int, part: str, content: bytes) -> None:
    """Put other bytes in the place of a part of a record."""
    asked = {"number": number, "part": part, "content": content}
    with log.home.writing() as sql:
        sql.execute("UPDATE payload SET bytes = :content WHERE number = :number AND part = :part", asked)


@pytest.mark.parametrize("is_in_checkpoint", [False, True])
def test_the_statistics_of_another_file_are_left_out(log: Log, is_in_checkpoint: bool) -> None:
    one, other = rows_in_file(log, "one"), rows_in_file(log, "other")
    files = one * MAX_FILES, other * MAX_FILES
    assert log.statistics_of(1, files) == {files[0]: b"one", files[1]: b"other"}
    if is_in_checkpoint:
        assert log.write_checkpoint()
        assert log.statistics_of(1, files) == {files[0]: b"one", files[1]: b"other"}
        replace_statistics(log, {files[0]: b"other", files[1]: b"one"})
        assert log.statistics_of(1, files) == {files[0]: b"one", files[1]: b"other"}, "as they came"
    put(log, one, STATISTICS, msgpack.packb({0: b"other"}))
    assert log.statistics_of(1, files) == {files[1]: b"other"}


def replace_statistics(log: Log, bodies: dict[int, bytes]) -> None:
    """Put other statistics in the place of those of a checkpoint, with their digest."""
    rows = [{"id": file, "body": body} for file, body in bodies.items()]
    content = checkpoints._stream(pa.Table.from_pylist(rows, schema=checkpoints._STATISTICS))
    with log.home.writing() as sql:
        sql.execute(
            "UPDATE checkpoint SET digest = :digest, bytes = :bytes WHERE part = 'statistics/1'",
            {"digest": sha256(content).digest(), "bytes": content},
        )


def test_a_checkpoint_with_a_part_of_another_one_is_passed_over_for_the_one_before(log: Log) -> None:
    for secret, name in ((ONE, "a"), (OTHER, "b"), (ONE, "c")):
        rows_in_file(log, name)
        append(log, Append(SecretChanged(1, secret)))
        assert log.write_checkpoint()
    expected = picture(log.state)
    newest, before = checkpoints.manifests(log.home)
    older = {part.name: part.number for part in before.parts}
    shared = [part for part in newest.parts if part.name in older]
    assert len(shared) > 1
    put = "UPDATE checkpoint SET bytes = :bytes WHERE number = :number AND part = :part"
    parts = {(number, part): content for number, part, content in log.home.execute(EVERY_PART)}
    for part in shared:
        for content in (parts[older[part.name], part.name], parts[part.number, part.name]):
            with log.home.writing() as sql:
                sql.execute(put, {"bytes": content, "number": part.number, "part": part.name})
            assert picture(Log(log.home).follow()) == expected, part.name


def test_whichever_part_of_a_checkpoint_is_lost_another_one_leads_to_the_state(log: Log) -> None:
    """When the values of all records below the newest were dropped."""
    for step in range(4):
        rows_in_file(log, f"f{step // 2}")
        append(log, Append(SecretChanged(1, replace(ONE, made_at=step))))
        assert log.write_checkpoint()
    append(log, Append(SecretChanged(1, OTHER)))
    assert log.drop_payloads(1 << 62)
    expected = picture(log.state)
    every = log.home.execute(EVERY_PART)
    change = "UPDATE checkpoint SET bytes = :bytes WHERE number = :number AND part = :part"
    for number, part, content in every:
        for instead in (b"\0", content):
            assert picture(Log(log.home).follow()) == expected, (number, part)
            with log.home.writing() as sql:
                sql.execute(change, {"number": number, "part": part, "bytes": instead})
            assert picture(Log(log.home).follow()) == expected, (number, part)
