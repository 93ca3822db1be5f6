"""Random programs with secondary indexes: the soup, in which scans go through indexes too.

Beside what `soup.Soup` does, a program makes indexes (and kills who builds them), builds those on
that were left behind, and drops them; its scans have filters and go through any access path, in
either direction, also merged into one order over all shards. Others are let in between building a
run and entering it, too. Runs are short, batches and rounds of a page small, so that few rows are
enough to meet their borders.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from elasticscan import storage
from elasticscan.base.errors import IndexChanged, IndexNotReady, InvalidOption, SnapshotExpired
from elasticscan.base.limits import LEASE_SECONDS
from elasticscan.metadata import IndexInfo
from elasticscan.optimizer import binding as access
from elasticscan.storage.indexes import iterator as index_iterator
from elasticscan.storage.indexes import pages as index_pages
from elasticscan.storage.indexes import run as index_run
from elasticscan.store import Page, Scan, Store, indexing
from tests.store.conditions import INFINITY, NAN, always, literal, order_of, some_condition
from tests.store.soup import WEIGHTS, Key, Kitchen, Row, Soup, SoupScan, Tables, comparable, rows_of

ONE = pa.schema(
    [
        ("id", pa.int64()),
        ("k", pa.int32()),
        ("d", pa.float64()),
        ("s", pa.string()),
        ("v", pa.int64()),
    ]
)
TWO = pa.schema([("a", pa.int64()), ("b", pa.string()), ("k", pa.int64()), ("v", pa.int64())])
TABLES: Tables = {"one": (ONE, ["id"], ["id"]), "two": (TWO, ["a", "b"], ["a"])}

# The values that a column has, besides nulls.
DOMAINS: dict[str, dict[str, list[Any]]] = {
    "one": {
        "id": [0, 3, 10, 50],
        "k": [0, 1, 2, 3, 7, -1],
        "d": [NAN, -0.0, 0.0, INFINITY, -INFINITY, 0.5, -2.25],
        "s": ["", "a", "ab", "abc", "b", "é", "a%", "Z", "\U0001f600"],
        "v": [0, 100, 500, 900],
    },
    "two": {"a": [0, 1, 3], "b": ["k0", "k1", "k12", "k9"], "k": [0, 1, 2, 1 << 40], "v": [0, 100, 900]},
}
# Columns, kind, included columns.
Definition = tuple[list[str], str, list[str]]
DEFINITIONS: dict[str, dict[str, Definition]] = {
    "one": {
        "by_k": (["k"], "sorted", []),
        "by_kd": (["k", "d"], "sorted", ["v"]),
        "by_d": (["d"], "sorted", ["s", "v"]),
        "by_sk": (["s", "k"], "sorted", []),
        "all_by_v": (["v"], "sorted", ["k", "d", "s"]),
        "hash_k": (["k"], "hash", ["v"]),
        "hash_sk": (["s", "k"], "hash", []),
        "hash_d": (["d"], "hash", []),
    },
    "two": {
        "by_k": (["k"], "sorted", []),
        "by_ka": (["k", "a"], "sorted", ["v"]),
        "by_bk": (["b", "k"], "sorted", []),
        "hash_k": (["k"], "hash", ["v"]),
    },
}

INDEX_WEIGHTS = {"create_index": 5, "drop_index": 1, "build_on": 1, "start_scan": 10, "advance_one": 24}
INDEX_STYLES: dict[str, dict[str, int] | None] = {
    "mixture": None,
    "another mixture": None,
    "indexes come and go": {"delete": 3, "create_index": 10, "drop_index": 5, "start_scan": 6, "move": 3},
    "index scans beside movers": {
        "delete": 4,
        "create_index": 1,
        "start_scan": 8,
        "advance_one": 20,
        "hand_over": 4,
        "suspended_move": 8,
        "move_and_return": 6,
        "compact": 2,
        "collect_garbage": 2,
    },
    "merged scans beside movers": {
        "write": 4,
        "delete": 2,
        "create_index": 3,
        "start_scan": 6,
        "advance_one": 24,
        "hand_over": 8,
        "move": 6,
        "move_and_return": 6,
        "suspended_move": 4,
        "compact": 4,
    },
    "indexes beside writes": {
        "write": 14,
        "delete": 3,
        "create_index": 14,
        "build_on": 4,
        "drop_index": 2,
        "move": 2,
        "start_scan": 4,
        "advance_one": 6,
    },
    "builds beside changes": {
        "delete": 4,
        "overwrite": 1,
        "create_index": 8,
        "build_on": 4,
        "drop_index": 2,
        "suspended_move": 6,
        "compact": 5,
        "collect_garbage": 4,
        "start_scan": 4,
    },
}


class BuilderKilled(BaseException):
    """The process that built an index died here; so nobody catches it by name."""


@dataclass(slots=True)
class IndexScan(SoupScan):
    """A scan that may go through an index, and whose rows may have to come in one order."""

    index: int | None = None
    what: str = ""
    ordered: list[Row] | None = field(default=None)

    def check(self) -> None:
        try:
            SoupScan.check(self)
            assert self.ordered is None or self.got == self.ordered, "rows in a wrong order"
        except AssertionError as error:
            error.add_note(self.what)
            raise


class _OneAfterAnother:
    """A pool without threads, so that one seed gives one schedule."""

    def __init__(self, _threads: int) -> None:
        pass

    def __enter__(self) -> _OneAfterAnother:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, work: Callable[[Any], Any], each: Iterable[Any]) -> Iterator[Any]:
        return map(work, each)


class IndexKitchen(Kitchen):
    """Runs programs with indexes."""

    tables: ClassVar[Tables] = TABLES
    test_file: ClassVar[str] = "tests/store/test_index_model.py"
    _building = False

    def _program(self, store: Store, rng: random.Random, style: str | None) -> Soup:
        patch = self._patch.setattr
        patch(index_run, "BATCH_ROWS", rng.choice([2, 5, 65_536]))
        patch(index_run, "RUN_ROWS", rng.choice([12, 40, 1 << 22]))
        patch(index_pages, "LEAST_ENTRIES", rng.choice([1, 20, 65_536]))
        patch(index_pages, "_LEAST_SHARE", rng.choice([1, 16]))
        patch(index_pages, "_FIRST_ROUND", rng.choice([1, 8, 4_096]))
        patch(index_iterator, "RANGES_PER_ROUND", rng.choice([1, 256]))
        patch(access, "MAX_RANGES", rng.choice([2, 1_000]))
        return IndexSoup(store, rng, style or rng.choice(list(INDEX_STYLES)))

    def __enter__(self) -> IndexKitchen:
        """Let others in between the steps of building, too."""
        build_one, build_runs = indexing._build_one, storage.build_runs

        def as_builder(*args: Any) -> Any:
            with self._built(True):
                return build_one(*args)

        def before_entering(*args: Any) -> Any:
            runs = build_runs(*args)
            if self._building:  # else the catalog may be locked, or it is the work of a writer
                with self._built(False):
                    self._point()
                    assert isinstance(self._soup, IndexSoup)
                    self._soup.die_if_it_is_time()
            return runs

        self._patch.setattr(indexing, "ThreadPoolExecutor", _OneAfterAnother)
        self._patch.setattr(indexing, "_build_one", as_builder)
        self._patch.setattr(indexing, "build_runs", before_entering)
        super().__enter__()
        return self

    @contextmanager
    def _built(self, building: bool) -> Iterator[None]:
        before, self._building = self._building, building
        try:
            yield
        finally:
            self._building = before


class IndexSoup(Soup):
    """One program with indexes."""

    tables: ClassVar[Tables] = TABLES

    def __init__(self, store: Store, rng: random.Random, style: str) -> None:
        super().__init__(store, rng, "mixture")
        wanted = INDEX_STYLES[style]
        if wanted is None:
            wanted = {name: w * rng.choice([0, 1, 1, 5]) for name, w in (WEIGHTS | INDEX_WEIGHTS).items()}
        self.weights = {"write": 10, "start_scan": 5, "advance_one": 20} | wanted
        self.lives: list[int | None] = []  # of builders, innermost last: runs until it dies
        self.versions = 0  # rows written in all
        self.dropped: set[int] = set()  # ids of indexes
        # How many of the scans through a sorted index are merged, and how many scans take no index.
        self.merged, self.direct = rng.choice([0.3, 0.7]), 0.35
        if style.startswith("merged"):
            self.merged, self.direct = 1.0, 0.1
        if "beside" in style:
            self.noise, self.noise_left = 0.4, 50

    def run(self) -> None:
        noise, self.noise = self.noise, 0.0
        for _ in range(self.random.randint(0, 3)):
            self._write()
        for _ in range(self.random.randint(0, 3)):
            self._create_index()
        self.noise = noise
        for _ in range(self.random.randint(10, 35)):
            self._operation()
        self.noise_left = 0
        for scan in list(self.scans):
            # Nothing moves any more: a page has a row, finishes a shard, or had to skip many.
            for _ in range(2 * self.versions + 4 * len(self.store.context.shard_names()) + 4):
                self._advance(scan)
            assert scan not in self.scans, f"it did not end although nothing moved: {scan}"
        self._check_everything()

    # Writing

    def _rows(self, table: str) -> dict[Key, Row]:
        chosen = self.random.sample(range(self.keys), self.random.randint(1, min(self.keys, 40)))
        self.versions += len(chosen)
        value = self.random.randrange(1_000)
        rows: dict[Key, Row] = {}
        for key in chosen:
            k = self._value(table, "k")
            if table == "one":
                rows[key,] = (key, k, self._value(table, "d"), self._value(table, "s"), value)
            else:
                rows[key % 4, f"k{key}"] = (key % 4, f"k{key}", k, value if key % 3 else None)
        return rows

    def _value(self, table: str, column: str) -> Any:
        return self.random.choice([None, *DOMAINS[table][column]])

    # Indexes

    def _index(self, table: str, name: str) -> IndexInfo | None:
        return next((i for i in self.store.table(table).indexes() if i.name == name), None)

    def _create_index(self) -> None:
        table = self.random.choice(list(self.tables))
        name = self.random.choice(list(DEFINITIONS[table]))
        known = self._index(table, name)
        if known is None or not known.ready:
            self._build(table, name, self.random.choice([None, None, 1, 2]))

    def _build_on(self) -> None:
        left = [
            (table, i.name) for table in self.tables for i in self.store.table(table).indexes() if not i.ready
        ]
        if left:
            self._build(*self.random.choice(left), self.random.choice([None, 1]))

    def _build(self, table: str, name: str, life: int | None) -> None:
        columns, kind, include = DEFINITIONS[table][name]
        self.lives.append(life)
        try:
            made = self.store.table(table).create_index(name, columns, kind, include)
        except BuilderKilled:
            return
        finally:
            self.lives.pop()
        found = self._index(table, name)
        assert found is None or found.id != made.id or found.ready, "it was built and cannot be used"

    def die_if_it_is_time(self) -> None:
        life = self.lives[-1]
        if life is not None:
            if life <= 1:
                raise BuilderKilled
            self.lives[-1] = life - 1

    def _drop_index(self) -> None:
        known = [(table, index.name) for table in self.tables for index in self.store.table(table).indexes()]
        if known:
            table, name = self.random.choice(known)
            found = self._index(table, name)
            assert found is not None
            self.store.table(table).drop_index(name)
            self.dropped.add(found.id)

    # Reading

    def _start_scan(self) -> None:
        table = self.random.choice(list(self.tables))
        schema, primary_key, _ = self.tables[table]
        newest = self.store.context.catalog.versions()[1]
        snapshot = newest
        if self.random.random() < 0.3:
            snapshot = self.random.randint(self.store.table(table).definition.oldest_snapshot, newest)
        columns = self.random.sample(schema.names, self.random.randint(1, len(schema.names)))
        index, order, descending = self._some_path(table)
        tested = list(DOMAINS[table])
        if index in DEFINITIONS[table] and self.random.random() < 0.6:
            tested = DEFINITIONS[table][index][0]  # what the index decides alone
        text, means = some_condition(self.random, {name: DOMAINS[table][name] for name in tested})
        if self.random.random() < 0.3:
            text, means = "", always
        pages: dict[str, Any] = {
            "page_rows": self.random.choice([1, 1, 2, 3, 10, 65_536]),
            "page_bytes": self.random.choice([1, 50, 400, 16 << 20, 16 << 20]),
        }
        what = (
            f"{table} at {snapshot}: {columns} where {text or 'all'}; {index}, {order}, {descending}, {pages}"
        )
        try:
            scan = self.store.table(table).scan(
                columns,
                text or None,
                index=index,
                snapshot=snapshot,
                order_by=[f"{name} DESC" if descending else name for name in order] if order else None,
                **pages,
            )
        except InvalidOption:
            assert index in DEFINITIONS[table], what
            assert DEFINITIONS[table][index][1] == "hash", what
            return
        except IndexNotReady:
            found = self._index(table, index)
            assert found is not None, what
            assert not found.ready, what
            return
        names = schema.names
        rows = [dict(zip(names, row, strict=True)) for row in self.rows_at(table, snapshot).values()]
        rows = [row for row in rows if means(row) is True]
        if order:
            rows.sort(key=order_of([*DEFINITIONS[table][index][0], *primary_key]), reverse=descending)
        wanted = [comparable(tuple(row[name] for name in columns)) for row in rows]
        assert scan.key is not None
        self._resume(table, Counter(wanted), scan.key, [], what, wanted if order else None)

    def _some_path(self, table: str) -> tuple[str, list[str] | None, bool]:
        known = self.store.table(table).indexes()
        if not known or self.random.random() < self.direct:
            return self.random.choice(["none", "auto"]), None, False
        index = self.random.choice(known)
        if index.kind == "hash":
            return index.name, None, False
        order = list(index.columns) if self.random.random() < self.merged else None
        return index.name, order, self.random.random() < 0.5

    def _resume(
        self,
        table: str,
        expected: Counter[Row],
        key: str,
        got: list[Row],
        what: str,
        ordered: list[Row] | None,
    ) -> None:
        """Go on from a key, in another object."""
        opened = self.store.context.sealer.open(key)
        read_only = self.random.random() < 0.5
        scan: Scan = self.store.resume_part(opened, ends_lease=not read_only)
        self.lease_ends[opened.lease] = self.clock.now() + LEASE_SECONDS
        pages: Iterator[Page] = iter(scan)
        plain = (table, scan, opened.lease, expected, self.clock.now(), read_only, pages, list(got))
        self.scans.append(IndexScan(*plain, index=opened.index, what=what, ordered=ordered))

    def _advance(self, scan: SoupScan) -> None:
        assert isinstance(scan, IndexScan)
        there = scan.index not in self.dropped
        before = scan.scan.stats.pages
        try:
            super()._advance(scan)
        except IndexChanged:
            assert scan.index in self.dropped, "its index is still there"
            self._forget(scan)
            return
        assert there or scan.scan.stats.pages == before, "it read an index that was dropped before"

    def _hand_over(self) -> None:
        if not self.scans:
            return
        scan = self.random.choice(self.scans)
        assert isinstance(scan, IndexScan)
        key = scan.scan.key
        marks = list(scan.marks)
        if key is not None and scan.scan._reader is None:
            marks.append((key, len(scan.got)))
        if not marks:
            return
        key, returned = self.random.choice(marks)
        try:
            self._resume(scan.table, scan.expected, key, scan.got[:returned], scan.what, scan.ordered)
        except SnapshotExpired:
            assert self.clock.now() > self.lease_ends[scan.lease], "a leased snapshot expired"
        except IndexChanged:
            assert scan.index in self.dropped, "its index is still there"

    # The end

    def _check_everything(self) -> None:
        for table in self.tables:
            for index in self.store.table(table).indexes():
                if not index.ready:
                    self._build(table, index.name, None)
        super()._check_everything()
        for table, (schema, primary_key, _) in self.tables.items():
            newest = self.store.context.catalog.versions()[1]
            for index in self.store.table(table).indexes():
                oldest = self.store.table(table).definition.oldest_snapshot
                snapshot = self.random.choice([newest, oldest])
                self._check_index(table, index, snapshot, schema.names, primary_key)

    def _check_index(
        self, table: str, index: IndexInfo, snapshot: int, names: list[str], primary_key: list[str]
    ) -> None:
        """Every row is found through every index, in its order."""
        rows = [dict(zip(names, row, strict=True)) for row in self.rows_at(table, snapshot).values()]
        if index.kind == "hash":
            values = {name: self._value(table, name) for name in index.columns}
            found = Counter(
                comparable(tuple(row.values()))
                for row in rows
                if all(order_of([name])(row) == order_of([name])(values) for name in values)
            )
            text = " AND ".join(
                f"{name} IS NULL" if value is None else f"{name} = {literal(value)}"
                for name, value in values.items()
            )
            scan = self.store.table(table).scan(None, text, index=index.name, snapshot=snapshot)
            assert Counter(row for page in scan for row in rows_of(page)) == found, (index, text)
            return
        rows.sort(key=order_of([*index.columns, *primary_key]))
        domains = {name: DOMAINS[table][name] for name in index.columns}
        for text, means in (
            ("", always),
            *(some_condition(self.random, domains) for _ in range(2)),
        ):
            descending = self.random.random() < 0.5
            scan = self.store.table(table).scan(
                filter=text or None,
                index=index.name,
                snapshot=snapshot,
                order_by=[f"{name} DESC" if descending else name for name in index.columns],
                page_rows=self.random.choice([25, 100, 1_000]),
            )
            got = [row for page in scan for row in rows_of(page)]
            wanted = [comparable(tuple(row.values())) for row in rows if means(row) is True]
            assert got == (wanted[::-1] if descending else wanted), (index, descending, text)
