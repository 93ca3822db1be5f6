"""Aggregates that statistics tell: never another value than a scan gives, whatever happens to a table."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from elasticscan.filters import Aggregate, Fold
from elasticscan.store import Store, Table, known_values
from tests.store.reading.test_plain import happen as happen_to_numbers

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "n": (pa.int64(), [-(2**63), -7, 0, 2**63 - 1]),
    "i8": (pa.int8(), [-128, 0, 127]),
    "u": (pa.uint32(), [0, 7, 2**32 - 1]),
    "b": (pa.bool_(), [True, False]),
    "f": (pa.float32(), [float("nan"), -0.0, 0.0, 1.5, -2.25, float("inf")]),
    "g": (pa.float64(), [-3.5, 1.5, 2.25]),
    "d": (pa.decimal128(38, 10), [Decimal(1).scaleb(-10), Decimal(10**20), Decimal(-(10**20))]),
    "s": (pa.string(), ["", "a", "ü" * 40, "a" * 29, "a" * 30, "a" * 31, "a\0" * 20, "\uffee" * 12, "zz"]),
    "y": (pa.binary(), [b"", b"\0", b"\xff" * 40, b"\0" * 31, b"\xff" * 28]),
    "t": (pa.date32(), [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)]),
    "m": (pa.timestamp("us", "UTC"), [datetime(1900, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)]),
}
SCHEMA = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in VALUES.items())])
CONDITIONS = [
    None, "id >= 0", "id < 0", "id < 200", "n IS NOT NULL", "n <= 9223372036854775807", "s >= 'a'", "s < 'b'",
    "t >= DATE '0001-01-01' OR t IS NULL", "b IS NULL", "id + 1 > 0", "id >= 0 AND t IS NULL",
    "id >= 0 AND id < 1000000", "id < 0 OR n > 3", "f >= 0", "i8 IN (-128, 0, 127) OR i8 IS NULL",
]  # fmt: skip


def rows_of(draw: random.Random, ids: list[int]) -> pa.Table:
    """Rows some of whose columns are null or the same everywhere."""
    chances = {name: draw.choice([0, 0, 0.3, 1]) for name in VALUES}
    some = {name: draw.sample(values, draw.randint(1, len(values))) for name, (_, values) in VALUES.items()}
    columns = [
        pa.array([None if draw.random() < chances[name] else draw.choice(some[name]) for _ in ids], kind)
        for name, (kind, _) in VALUES.items()
    ]
    return pa.Table.from_arrays([pa.array(ids, pa.int64()), *columns], schema=SCHEMA)


def happen(store: Store, table: Table, draw: random.Random) -> None:
    if draw.random() < 0.3:
        table.overwrite(rows_of(draw, draw.sample(range(400), 60)))
    happen_to_numbers(store, table, draw, lambda ids: rows_of(draw, ids))


def _shown(values: list[pa.Array]) -> str:
    return repr([(value.type, value.to_pylist()) for value in values])


def run(place: Path, seed: int) -> tuple[int, int]:
    """The program of a seed: how many aggregates were asked for, and how many statistics reported."""
    draw, made, message = random.Random(seed), 0, 0
    texts = ["count(*)", *(f"{f}({name})" for f in ("count", "min", "max") for name in SCHEMA.names)]
    with Store.create(place, ["s1", "s2"], tablets=3, slots=16, upkeep="off") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        for _ in range(12):
            happen(store, table, draw)
            snapshot = draw.choice([None, *(commit.number for commit in table.history())])
            condition = draw.choice(CONDITIONS)
            aggregates = [Aggregate.parse(text, SCHEMA) for text in texts]
            with table.scan(filter=condition, snapshot=snapshot) as scan:
                known = [known_values(store.context, scan.standing, [one]) for one in aggregates]
                fold = Fold(aggregates, [], scan.schema)
                for page in scan:
                    fold.add(page.rows)
            expected = fold.result()
            made += len(texts)
            for text, value, column in zip(texts, known, expected.columns, strict=True):
                if value is not None:
                    message += 1
                    assert _shown(value) == _shown([column.combine_chunks()]), (text, condition)
    return made, message


def test_what_statistics_tell_is_what_a_scan_gives(tmp_path: Path) -> None:
    made, message = (
        sum(counts) for counts in zip(*(run(tmp_path / str(s), s) for s in range(2)), strict=True)
    )
    assert made > message > 100


def are_known(store: Store, table: Table, texts: list[str]) -> bool:
    """Return whether statistics alone give these aggregates."""
    with table.scan() as scan:
        aggregates = [Aggregate.parse(text, SCHEMA) for text in texts]
        return known_values(store.context, scan.standing, aggregates) is not None


def test_a_table_that_was_merged_tells_its_extremes_without_a_look_at_a_file(tmp_path: Path) -> None:
    with Store.create(tmp_path / "store", ["s1", "s2"], tablets=4, slots=16, upkeep="off") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        asked = ["min(id)", "max(t)", "count(n)", "count(*)"]
        empty = table.aggregate(asked)
        assert empty.to_pylist() == [{"min(id)": None, "max(t)": None, "count(n)": 0, "count(*)": 0}]
        table.upsert(rows_of(random.Random(1), list(range(100))))
        table.compact()
        table.add_columns(pa.schema({"later": pa.int32()}))
        assert table.aggregate([*asked, "max(later)"])["max(later)"].to_pylist() == [None]
        expected, moved = (
            table.aggregate(asked, filter="id + 0 >= 0"),
            table.aggregate(asked, filter="id >= 0"),
        )
        assert expected == moved
        for file in Path(store.uri).glob("shards/**/*.arrow"):
            file.unlink()
        assert table.aggregate(asked, filter="id BETWEEN -5 AND 200") == expected
        assert are_known(store, table, asked)
        assert not are_known(store, table, [*asked, "sum(n)"])


def test_values_that_statistics_have_not_exactly_are_read(tmp_path: Path) -> None:
    with Store.create(tmp_path / "store", ["s1"], tablets=1, slots=16, upkeep="off") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        texts, floats = ["a" * 60, "b" * 60], [-0.0, float("nan")]
        rows = rows_of(random.Random(2), [1, 2])
        for name, values in {"s": texts, "y": [text.encode() for text in texts], "f": floats}.items():
            at = SCHEMA.get_field_index(name)
            rows = rows.set_column(at, SCHEMA.field(name), pa.array(values, SCHEMA.field(name).type))
        table.upsert(rows)
        for text in ("min(s)", "max(s)", "min(y)", "max(y)", "min(f)", "max(f)", "min(u)"):
            assert not are_known(store, table, [text])
        message = table.aggregate(["min(s)", "max(s)", "min(y)", "max(y)"])
        assert list(message.to_pylist()[0].values()) == [texts[0], texts[1], b"a" * 60, b"b" * 60]
