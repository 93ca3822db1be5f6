"""Lines of JSON in the types of a table, in every block of a file."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from elasticscan.base.errors import SchemaMismatch
from elasticscan.store import Store
from elasticscan.store.rows import json_lines, sources

BEGIN = 1 << 20
HALF_PAST = datetime(2024, 3, 1, 10, 30, 0, 250_000, UTC)
ZONED, BARE = "2024-03-01T12:00:00+02:00", "2024-03-01T10:00"


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def read(path: Path, schema: pa.Schema, block_bytes: int = BEGIN) -> list[dict[str, Any]]:
    batches = json_lines.rows_of(fs.LocalFileSystem(), str(path), schema, block_bytes, BEGIN)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("kind", "typed", "value"),
    [
        (pa.int32(), 7, 7),
        (pa.float64(), 1, 1.0),
        (pa.decimal128(10, 2), 1.5, Decimal("1.50")),
        (pa.decimal128(10, 2), "1.5", Decimal("1.50")),
        (pa.date32(), "2024-03-05", date(2024, 3, 5)),
        (pa.string(), "2024-03-05", "2024-03-05"),
        (pa.timestamp("us", "UTC"), ZONED, datetime(2024, 3, 1, 10, tzinfo=UTC)),
        (pa.timestamp("us"), "2024-03-01T10:30:00.25", HALF_PAST.replace(tzinfo=None)),
        (pa.list_(pa.int16()), [1, None], [1, None]),
        (pa.struct({"days": pa.list_(pa.date32())}), {"days": ["2024-03-05"]}, {"days": [date(2024, 3, 5)]}),
    ],
)
def test_values_are_read_in_the_types_of_the_table(
    tmp_path: Path, kind: pa.DataType, typed: Any, value: Any
) -> None:
    path = written(tmp_path / "rows.jsonl", {"v": typed}, {"v": None}, {})
    assert read(path, pa.schema([("v", kind)])) == [{"v": value}, {"v": None}, {"v": None}]


@pytest.mark.parametrize(
    ("kind", "typed"),
    [(pa.timestamp("us"), ZONED), (pa.timestamp("us", "UTC"), BARE), (pa.int8(), 300), (pa.int64(), 1.5)],
)
def test_what_a_type_does_not_hold_as_it_is_is_refused(tmp_path: Path, kind: pa.DataType, typed: Any) -> None:
    path = written(tmp_path / "rows.jsonl", {"v": typed})
    with pytest.raises(pa.ArrowInvalid):
        read(path, pa.schema([("v", kind)]))


@pytest.mark.parametrize(("first", "last"), [(None, "late"), ("2024-03-05", "late"), ("x", "y")])
def test_a_value_may_look_otherwise_in_a_later_block(tmp_path: Path, first: Any, last: Any) -> None:
    rows = [{"id": n, "v": first} for n in range(99)] + [{"id": 99, "v": last}]
    path = written(tmp_path / "rows.jsonl", *rows)
    assert read(path, pa.schema([("id", pa.int64()), ("v", pa.string())]), block_bytes=256) == rows


def test_a_field_that_comes_late_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", 256)
    monkeypatch.setattr(sources, "GUESS_BYTES", 512)
    late = [*({"id": n} for n in range(99)), {"id": 99, "v": 1}]
    with Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store:
        table = store.create_table("t", pa.schema([("id", pa.int64()), ("w", pa.int64())]), ["id"])
        for rows in ([{"w": 1} | row for row in late], [{"w": {"x": 1}, "id": 1}]):
            with pytest.raises(SchemaMismatch):
                store.load("t", written(tmp_path / "rows.jsonl", *rows))
        late_field = r"rows.jsonl, line 100: it has a field 'v', .*add_columns"
        with pytest.raises(SchemaMismatch, match=late_field) as refused:
            store.load("u", written(tmp_path / "rows.jsonl", *late), primary_key="id")
        assert refused.value.fields["line"] == 100
        assert table.scan().count() == 0


def test_columns_are_of_named_types_and_moments_keep_their_zone(tmp_path: Path) -> None:
    path = written(
        tmp_path / "rows.jsonl",
        {"at": ZONED, "bare": BARE, "mixed": ZONED, "n": 1, "in": {"at": [None, ZONED]}, "day": "2024-03-05"},
        {"at": "2024-03-01 10:00Z", "bare": BARE, "mixed": BARE, "n": 2, "in": None, "day": None},
    )
    found = json_lines.columns_of(fs.LocalFileSystem(), str(path), {"n": pa.int8(), "gone": pa.int8()}, BEGIN)
    moment = pa.timestamp("us", "UTC")
    assert found == pa.schema(
        {
            "at": moment,
            "bare": pa.timestamp("us"),
            "mixed": pa.string(),
            "n": pa.int8(),
            "in": pa.struct({"at": pa.list_(moment)}),
            "day": pa.date32(),
        }
    )


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("2024-03-01T10:00:00.125Z", "2024-03-01T10:00:00+02:00", pa.timestamp("us", "UTC")),
        ("2024-03-01T10:00:00.125", "2024-03-01", pa.timestamp("us")),
        ("2024-03-01T10:00:00", "2024-03-01", pa.timestamp("us")),
        ("2024-03-01", None, pa.date32()),
        ("2024-03-01", "2024-02-30", pa.string()),
        ("2024-03-01T10:00:00.125Z", "2024-03-01T10:00:00.125", pa.string()),
        ("2024-03-01T10:00:00.1234567Z", None, pa.string()),
        ("2024-03-01T10:00:00.125Z", "soon", pa.string()),
        ("20240301", None, pa.string()),
        ("", None, pa.string()),
    ],
)
def test_times_with_fractions_of_seconds_are_no_text(
    tmp_path: Path, first: str, second: str | None, kind: pa.DataType
) -> None:
    path = written(tmp_path / "rows.jsonl", {"v": first}, {"v": second})
    found = json_lines.columns_of(fs.LocalFileSystem(), str(path), {}, BEGIN)
    assert found == pa.schema([("v", kind)])
    assert len(read(path, found)) == 2


def test_directories_and_packed_files_are_read_so_too(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "year=2024"
    folder.mkdir(parents=True)
    with gzip.open(folder / "rows.jsonl.gz", "wt") as file:
        file.write('{"id": 1, "day": "2024-03-05"}\n')
    with Store.create(tmp_path / "made.store", ["s1"], tablets=2) as store:
        store.load("t", tmp_path / "in", primary_key="id", types={"day": "date32"})
        assert store.table("t").to_arrow().to_pylist() == [{"id": 1, "day": date(2024, 3, 5), "year": 2024}]
