"""Random tables and conditions through every access path and kind of read.

Which rows meet a condition is what a plain function says; what they add up to, and their order, what DuckDB
makes of them. DuckDB orders values as Spark does: NaN equals itself and is above all numbers, -0.0 equals
0.0, texts compare by their bytes. Set ELASTICSCAN_SEEDS to one seed, or to a range (0-5000), to run others.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from elasticscan.base import limits
from elasticscan.base.errors import InvalidOption
from elasticscan.filters import folding
from elasticscan.optimizer import binding as access
from elasticscan.storage import fragment_writer
from elasticscan.storage.indexes import run as index_run
from elasticscan.store import Scan, Store
from elasticscan.store.reading import aggregating, ordering, rows_by_key
from tests.base.manual_clock import ManualClock
from tests.seeds import ranges_of_seeds
from tests.simulation.conditions import INFINITY, NAN, Condition, order_of, some_condition
from tests.simulation.oracle import comparable
from tests.simulation.programs import fast_store
from tests.simulation.world import START
from tests.store.copies_of_stores import copied_store


def moment(microseconds: int) -> datetime:
    """A time without a zone."""
    return datetime.fromtimestamp(0, UTC).replace(tzinfo=None) + timedelta(microseconds=microseconds)


SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("i", pa.int64()),
        ("j", pa.int16()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us")),
        ("n", pa.decimal128(10, 2)),
        ("b", pa.bool_()),
        ("w", pa.int32()),
    ]
)
DOMAINS: dict[str, Sequence[Any]] = {
    "i": [0, 1, 2, 5, -3, 1 << 62, -(1 << 63)],
    "j": [-2, -1, 0, 1, 2, 3, 32_767],
    "x": [NAN, -0.0, 0.0, INFINITY, -INFINITY, 1.5, 2.0, -2.5, 1e300, 5e-324],
    "f": [NAN, -0.0, 0.5, 1.0, INFINITY, -2.0],
    "s": ["", "a", "ab", "abc", "abd", "b", "B", "é", "\U0001f600", "\ufffd", "a b", "it's"],
    "d": [date(1969, 12, 31), date(1970, 1, 1), date(2020, 2, 29), date(2024, 12, 31)],
    "ts": [moment(0), moment(1), moment(-1), moment(1_577_836_800_000_000)],
    "n": [Decimal("-1.25"), Decimal("0.00"), Decimal("1.25"), Decimal("1.26"), Decimal("99999999.99")],
    "b": [True, False],
    "w": list(range(0, 400, 25)),
}
# Constants that no row has, some between two values that rows can have.
MORE: dict[str, Sequence[Any]] = {
    "i": [3, 2.5],
    "j": [40_000, 1.5, -1.5, 2.0],
    "x": [1, -1.0],
    "f": [0.75, 1],
    "s": ["ab%", "aa", "zz", "\U0010ffff"],
    "d": [date(1999, 1, 1)],
    "ts": [moment(2), moment(1_577_836_800_500_000)],
    "n": [Decimal("1.255"), Decimal("1.2"), 1, Decimal("100000000000")],
    "b": [],
    "w": [13, 1_000],
}
INDEXES: dict[str, tuple[list[str], str, list[str]]] = {
    **{f"by_{name}": ([name], "sorted", []) for name in DOMAINS},
    "by_sx": (["s", "x"], "sorted", ["i"]),
    "by_bnd": (["b", "n", "d"], "sorted", list(SCHEMA.names)),
    "by_jid": (["j", "id"], "sorted", []),
    **{f"hash_{name}": ([name], "hash", []) for name in ("i", "x", "s", "n", "ts")},
    "hash_db": (["d", "b"], "hash", ["x", "f"]),
}

Row = dict[str, Any]


def condition_for(chance: random.Random) -> Condition:
    """A condition on any columns, with what it means for a row."""
    constants = {name: [*DOMAINS[name], *DOMAINS[name], *MORE[name]] for name in DOMAINS}
    text, means = some_condition(chance, constants, 3)
    if chance.random() < 0.2:
        state = chance.random() < 0.5
        return f"({text}) IS {str(state).upper()}", lambda row: means(row) is state
    return text, means


class Case:
    """A random table in a store and in DuckDB."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self.store, self.chance = store, chance
        self.rows: dict[int, Row] = {}
        self.past: list[tuple[int | None, dict[int, Row]]] = []  # rows of snapshots; None for the newest
        nulls = chance.choice([0.0, 0.1, 0.5])
        if chance.random() < 0.5:
            self._make_indexes()
        for number in range(chance.randint(1, 4)):
            some = chance.sample(range(120), chance.randint(1, 90))
            rows = [self._row(key, number, nulls) for key in some]
            store.table("t").upsert(pa.Table.from_pylist(rows, schema=SCHEMA))
            self.rows |= {row["id"]: row for row in rows}
            gone = chance.sample(range(120), chance.choice([0, 0, 20]))
            if gone:
                store.table("t").delete(pa.table({"id": pa.array(gone, pa.int64())}))
                self.rows = {key: row for key, row in self.rows.items() if key not in gone}
            self.past.append((store.table("t").history(1)[0].number, dict(self.rows)))
        if not store.table("t").indexes():
            self._make_indexes()
        if chance.random() < 0.3:
            store.compact()
        self.past.append((None, self.rows))
        self.duck = duckdb.connect()

    def _make_indexes(self) -> None:
        for name in self.chance.sample(list(INDEXES), 7):
            columns, kind, include = INDEXES[name]
            self.store.table("t").create_index(name, columns, kind, include)

    def _row(self, key: int, number: int, nulls: float) -> Row:
        row = {name: self.chance.choice(domain) for name, domain in DOMAINS.items()}
        row["w"] = (
            100 * number + row["w"] % 100
        )  # each write has values of its own: whole fragments are skipped
        for name in row:
            if self.chance.random() < nulls:
                row[name] = None
        return {"id": key, **row}

    def check(self, moving: bool) -> None:
        condition, means = condition_for(self.chance)
        wanted = sorted(key for key, row in self.rows.items() if means(row) is True)
        paths: list[tuple[str, list[str] | None, bool]] = [("none", None, False), ("auto", None, False)]
        for info in self.chance.sample(self.store.table("t").indexes(), 3):
            if info.kind == "sorted":
                paths.append(
                    (info.name, self.chance.choice([None, list(info.columns)]), self.chance.random() < 0.5)
                )
            else:
                paths.append((info.name, None, False))
        for index, order, descending in paths:
            self._check_path(condition, wanted, index, order, descending, moving)
        self.store.context.sync_point = self._let_a_tablet_move if moving else lambda _: None
        for at in (len(self.past) - 1, self.chance.randrange(len(self.past))):
            number, then = self.past[at]
            counted = self.store.table("t").aggregate("count(*)", snapshot=number)
            assert counted.to_pylist() == [{"count(*)": len(then)}]
            rows = [row for row in then.values() if means(row) is True]
            self.duck.register("met", pa.Table.from_pylist(rows, SCHEMA))
            self._check_aggregates(condition, at)
            self._check_first_rows(condition, at)
            self._check_rows_by_key(at)
        self.store.context.sync_point = lambda _: None

    def _check_path(
        self,
        condition: str,
        wanted: list[int],
        index: str,
        order: list[str] | None,
        descending: bool,
        moving: bool,
    ) -> None:
        page_rows = self.chance.choice([1, 3, 1_000, 1_000, 1_000])
        columns = self.chance.choice([None, ["id", "s", "x"], ["id"]])
        what = f"{condition}; {index}, {order}, {descending}, {page_rows}, {columns}"
        try:
            scan = self.store.table("t").scan(
                columns,
                condition,
                index=index,
                page_rows=page_rows,
                order_by=[f"{name} DESC" if descending else name for name in order] if order else None,
            )
        except InvalidOption:
            assert INDEXES[index][1] == "hash", what
            return
        got = self._read(scan, moving)
        names = columns or SCHEMA.names
        assert sorted(row[0] for row in got) == wanted, what
        expected = [self.rows[row[0]] for row in got]
        assert [plain(tuple(row[name] for name in names)) for row in expected] == got, what
        if order:
            columns_of_order = [*INDEXES[index][0], "id"]
            ordered = sorted(expected, key=order_of(columns_of_order), reverse=descending)
            assert [row["id"] for row in ordered] == [row[0] for row in got], what

    def _read(self, scan: Scan, moving: bool) -> list[tuple[Any, ...]]:
        got: list[tuple[Any, ...]] = []
        moves = 6
        for page in scan:
            got += in_order(page.rows)
            if moving and moves and self.chance.random() < 0.3:
                moves -= 1
                self._move()
        return got

    def _move(self) -> None:
        tablet = self.chance.choice(self.store.context.placement().tablets)
        names = self.store.context.shard_names()
        self.store.move(tablet.id, self.chance.choice([n for s, n in names.items() if s != tablet.shard]))

    def _let_a_tablet_move(self, point: str) -> None:
        if point.startswith("page") and self.chance.random() < 0.1:
            interrupt, self.store.context.sync_point = self.store.context.sync_point, lambda _: None
            self._move()
            self.store.context.sync_point = interrupt

    def _check_aggregates(self, condition: str, at: int) -> None:
        number, by = self.past[at][0], self.chance.choice(GROUPS)
        values = self.chance.sample(VALUES, self.chance.randint(1, 5))
        text = f"SELECT {', '.join([*by, *values])} FROM met"
        expected = self.duck.execute(f"{text} GROUP BY {', '.join(by)}" if by else text).fetchall()
        result = self.store.table("t").aggregate(values, by, condition, number)
        assert result.schema.names == [*by, *values]
        assert sorted(in_order(result), key=repr) == sorted(map(plain, expected), key=repr), (condition, text)

    def _check_first_rows(self, condition: str, at: int) -> None:
        """An order without an index is that of a sort; here rows that are equal are in the order of keys."""
        number, limit = self.past[at][0], self.chance.choice([0, 1, 3, 100])
        down = self.chance.choice(["", " DESC"])
        order = [f"{name}{down}" for name in [*self.chance.sample(list(DOMAINS), 2), "id"]]
        terms = ", ".join(f"{term} NULLS {'LAST' if down else 'FIRST'}" for term in order)
        text = f"SELECT id, s, x FROM met ORDER BY {terms} LIMIT {limit}"
        scan = self.store.table("t").scan(
            ["id", "s", "x"], condition, snapshot=number, order_by=order, limit=limit, page_rows=7
        )
        expected = [*map(plain, self.duck.execute(text).fetchall())]
        assert in_order(scan.to_table()) == expected, (condition, text)

    def _check_rows_by_key(self, at: int) -> None:
        (number, rows), table = self.past[at], self.store.table("t")
        asked = self.chance.choices(range(130), k=self.chance.randint(0, 30))
        got = table.get(asked, ["id", "s", "x"], number, keep_missing=True)
        nothing = dict.fromkeys(SCHEMA.names)
        expected = [tuple(rows.get(key, nothing)[name] for name in ("id", "s", "x")) for key in asked]
        assert in_order(got) == [*map(plain, expected)]
        assert table.get(asked, ["id"], number)["id"].to_pylist() == [key for key in asked if key in rows]


GROUPS = [[], ["b"], ["s"], ["d", "b"], ["j"], ["x"], ["n"]]
VALUES = [
    *("count(*)", "count(w)", "count(DISTINCT s)", "count(DISTINCT n)", "sum(w)", "sum(n)", "avg(j)"),
    *("min(i)", "max(i)", "max(s)", "min(d)", "max(ts)", "max(n)", "min(x)", "max(x)"),
]


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row in which NaN equals NaN, and zeros are written alike."""
    return comparable(tuple(value + 0.0 if isinstance(value, float) else value for value in row))


def in_order(rows: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [*map(plain, zip(*rows.to_pydict().values(), strict=True))]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("oracle") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        with Store.create(place, ["a", "b", "c"], tablets=6, slots=32) as made:
            made.create_table("t", SCHEMA, ["id"])
        yield place


def check_seed(template: Path, place: Path, seed: int) -> None:
    chance = random.Random(seed)
    copied_store(template, place, ManualClock(START))
    try:
        with pytest.MonkeyPatch.context() as patch, fast_store(place, ManualClock(START)) as store:
            patch.setattr(fragment_writer, "BATCH_ROWS", chance.choice([3, 65_536]))
            patch.setattr(index_run, "BATCH_ROWS", chance.choice([3, 65_536]))
            patch.setattr(index_run, "RUN_ROWS", chance.choice([20, 1 << 22]))
            patch.setattr(access, "MAX_RANGES", chance.choice([3, 1_000]))
            patch.setattr(aggregating, "DEFAULT_PAGE_ROWS", chance.choice([7, 65_536]))
            patch.setattr(folding, "FOLDED_ROWS", chance.choice([1, 65_536]))
            patch.setattr(rows_by_key, "MOST_KEYS", chance.choice([1, 7, 1_000]))
            patch.setattr(limits, "INLINE_BYTES", chance.choice([0, limits.INLINE_BYTES]))
            case = Case(store, chance)
            for number in range(10):
                case.check(moving=number % 3 == 0)
    except BaseException as error:
        error.add_note(f"replay with: ELASTICSCAN_SEEDS={seed} pytest tests/store/test_index_oracle.py")
        raise
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize("seeds", ranges_of_seeds(6, 1, short=1), ids=str)
def test_every_access_path_returns_what_duckdb_returns(template: Path, tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        check_seed(template, tmp_path / f"store{seed}", seed)


# Planted faults of first rows


def zeros_differ(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ordering, "ordered_floats", lambda values: values)


def nulls_never_enter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ordering, "pc", SimpleNamespace(**vars(pc) | {"fill_null": lambda values, _: values}))


def equal_rows_never_enter(patch: pytest.MonkeyPatch) -> None:
    less = {"greater_equal": pc.greater, "less_equal": pc.less}
    patch.setattr(ordering, "pc", SimpleNamespace(**vars(pc) | less))


@pytest.mark.parametrize("plant", [zeros_differ, nulls_never_enter, equal_rows_never_enter])
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch,
    template: Path,
    tmp_path: Path,
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_seed(template, tmp_path / "store", 0)
