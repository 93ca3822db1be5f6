"""The line of what Arrow refuses in a file of JSON."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from elasticscan.base.errors import SchemaMismatch
from elasticscan.store import Store
from elasticscan.store.rows import faults, json_lines

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("cost", pa.decimal128(5, 2)),
        ("in", pa.struct({"a": pa.list_(pa.int8())})),
    ]
)
GOOD = {"id": 1, "day": "2024-03-05", "at": "2024-03-05T10:00Z", "cost": 1.5, "in": {"a": [1]}}


def message(path: Path, block_bytes: int = 1 << 20) -> str:
    with pytest.raises((SchemaMismatch, pa.ArrowInvalid)) as refused:
        list(json_lines.rows_of(fs.LocalFileSystem(), str(path), SCHEMA, block_bytes, 256))
    return str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ('{"id": 2, "day": }', "line 100: it is no JSON: Expecting value"),
        ("[1]", "line 100: it has an array in place of an object"),
        ("7", "line 100: it has a number in place of an object"),
        ({"id": 2, "nmae": 1}, "line 100: it has a field 'nmae'"),
        ({"id": 2, "in": {"b": 1}}, "line 100: it has a field 'in.b'"),
        ({"id": 2, "in": 3}, "line 100: JSON parse error: field 'in' changed from object to number"),
        ({"id": 2.5}, "line 100: field 'id' has 2.5, which is no value of type int64"),
        ({"id": 2, "day": "soon"}, "line 100: field 'day' has 'soon', which is no value of type date32"),
        ({"id": 2, "at": "2024-03-05T10:00"}, "line 100: field 'at' has .* expected a zone offset"),
        ({"id": 2, "cost": 1.234}, r"line 100: field 'cost' has 1.234, .*\(5, 2\): requires scale 3"),
        ({"id": 2, "in": {"a": [1, 300]}}, "line 100: field 'in.a' has 300, which is no value of type int8"),
    ],
)
@pytest.mark.parametrize("block_bytes", [256, 1 << 20])
def test_a_value_that_is_refused_is_reported_with_its_line(
    tmp_path: Path, wrong: Any, expected: str, block_bytes: int
) -> None:
    path = tmp_path / "rows.jsonl"
    line = wrong if isinstance(wrong, str) else json.dumps(wrong)
    path.write_text("".join(f"{json.dumps(GOOD)}\n" for _ in range(99)) + f"{line}\n{json.dumps(GOOD)}\n")
    assert re.search(expected, message(path, block_bytes))


def test_a_value_that_a_key_lacks_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{json.dumps(GOOD)}\n{{"day": null}}\n')
    assert "line 2: field 'id' has no value, and its column takes no null" in message(path)


def test_lines_are_those_of_the_file_whatever_lies_between_values(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    good = json.dumps(GOOD)
    text = f"\ufeff{good}\n\n\r\n{good}{good}\n{json.dumps(GOOD, indent=1)}\n"
    path.write_bytes(gzip.compress(f'{text}{{"id": 4,\n"x": 1}}'.encode()))
    assert f"line {text.count(chr(10)) + 1}: it has a field 'x'" in message(path)


@pytest.mark.parametrize("size", [1, 3, 64])
def test_values_are_found_however_the_file_is_cut(
    size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(faults, "CHUNK_CHARACTERS", size)
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{json.dumps({"id": 123, "day": None, "name": "åäö"})}\n{{"id": 12345678, "day": nul}}')
    system = fs.LocalFileSystem()
    found = faults.fault_in(system, str(path), pa.schema([("id", pa.int64()), ("day", pa.date32())]), "", 0)
    assert found == faults.Fault(1, "it has a field 'name'", "name")
    assert faults.fault_in(system, str(path), None, "", 0) == faults.Fault(
        2, "it is no JSON: Expecting value"
    )


def test_what_is_too_deep_or_too_long_is_reported_as_arrow_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "MAX_CHARACTERS", 1000)
    path = tmp_path / "rows.jsonl"
    for value in (f'{{"a":{"[" * 100_000}', f'{{"a": "{"x" * 5000}"}}'):
        path.write_text(value)
        found = faults.fault_in(fs.LocalFileSystem(), str(path), None, "", 0)
        assert found is None or "no JSON" in found.why


def test_values_of_two_kinds_are_reported_to_be_of_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1, "v": 1}\n{"id": 2, "v": "x"}\n')
    with Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store:
        for types in (None, {"v": "string"}):
            with pytest.raises(
                SchemaMismatch, match=r"line 2: .*'v' changed .* of one kind in all"
            ) as message:
                store.load("t", path, primary_key="id", types=types)
            assert "--type" not in message.value.message, "it would not help"


def test_a_file_that_is_refused_is_named_with_the_line_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1}\n{"id": "x"}\n')
    with Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store:
        table = store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        with pytest.raises(
            SchemaMismatch, match=r"rows.jsonl cannot be read: line 2: .* of one kind in all objects"
        ):
            store.load("t", path)
        assert table.scan().count() == 0
