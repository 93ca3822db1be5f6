"""Random programs in which tables gain columns: the soup, with definitions that change below everything else.

Beside what `soup.Soup` does, a program adds columns, wherever others are let in: between the pages of scans,
between staging a write and committing it, in the middle of compactions and of moves. Half of that, and of
the writes, goes through a second `Store`, as another process would do it. A row is expected as it was
written, with nulls in the columns that came later.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa

from elasticscan.store import Store, Table
from tests.store.soup import WEIGHTS, Key, Kitchen, Row, Soup

KINDS: dict[pa.DataType, list[Any]] = {
    pa.int32(): [0, 1, -7],
    pa.string(): ["", "a", "äö"],
    pa.bool_(): [True, False],
    pa.float64(): [0.0, 2.5],
    pa.large_binary(): [b"", b"\0x"],
}
MOST_COLUMNS = 8

SCHEMA_WEIGHTS = {"add_column": 6}
SCHEMA_STYLES: dict[str, dict[str, int] | None] = {
    "mixture": None,
    "another mixture": None,
    "columns below compactions": {"write": 20, "delete": 2, "add_column": 5, "compact": 10, "start_scan": 2},
    "columns below movers": {
        "delete": 2,
        "add_column": 5,
        "suspended_move": 10,
        "move_and_return": 2,
        "start_scan": 3,
        "advance_one": 8,
    },
}


class SchemaKitchen(Kitchen):
    """Runs programs in which tables gain columns."""

    test_file: ClassVar[str] = "tests/store/test_schema_model.py"

    def _program(self, store: Store, rng: random.Random, style: str | None) -> Soup:
        return SchemaSoup(store, rng, style or rng.choice(list(SCHEMA_STYLES)))


class SchemaSoup(Soup):
    """One program in which tables gain columns."""

    def __init__(self, store: Store, rng: random.Random, style: str) -> None:
        super().__init__(store, rng, "mixture")
        wanted = SCHEMA_STYLES[style]
        if wanted is None:
            wanted = {name: w * rng.choice([0, 1, 1, 5]) for name, w in (WEIGHTS | SCHEMA_WEIGHTS).items()}
        self.weights = {"write": 10, "add_column": 4, "start_scan": 5, "advance_one": 16} | wanted
        self.schemas = {name: schema for name, (schema, _, _) in self.tables.items()}
        if "below" in style:
            self.noise, self.noise_left = 0.4, 50

    def run(self) -> None:
        checkpoint = self.store.context.checkpoint
        with Store.open(self.store.uri, clock=self.clock, checkpoint=checkpoint) as self.other:
            for _ in range(self.random.randint(10, 35)):
                self._operation()
            self.noise_left = 0
            for scan in list(self.scans):
                # Nothing moves any more: a page has a row, before the filter, or finishes a shard.
                most = max(len(rows) for _, _, rows in self.history[scan.table])
                for _ in range(most + len(self.store.context.shard_names()) + 1):
                    self._advance(scan)
                assert scan not in self.scans, "a scan did not end although nothing moved any more"
            self._check_everything()

    @property
    def some_store(self) -> Store:
        """This process, or another one."""
        return self.random.choice([self.store, self.other])

    def _add_column(self) -> None:
        table = self.random.choice(list(self.tables))
        schema = self.schemas[table]
        if self.random.random() < 0.1:  # as whoever did not hear that it went well
            assert self.some_store.table(table).add_columns(schema).names == schema.names
        elif len(schema) < MOST_COLUMNS:
            kinds = self.random.choices(list(KINDS), k=self.random.choice([1, 1, 2]))
            new = [pa.field(f"c{len(schema) + at}", kind) for at, kind in enumerate(kinds)]
            self.schemas[table] = pa.schema([*schema, *new])
            assert self.some_store.table(table).add_columns(new).names == self.schemas[table].names

    # Writing

    def _write(self) -> None:
        self._commit(Table.upsert, upserts=True)

    def _overwrite(self) -> None:
        self._commit(Table.overwrite, upserts=False)

    def _rows(self, table: str) -> dict[Key, Row]:
        added = list(self.schemas[table])[len(self.tables[table][0]) :]
        return {
            key: (*row, *(self.random.choice([None, *KINDS[field.type]]) for field in added))
            for key, row in super()._rows(table).items()
        }

    def _commit(self, write: Callable[[Table, Any], int], upserts: bool) -> None:
        table = self.random.choice(list(self.tables))
        rows, schema = self._rows(table), self.schemas[table]
        columns = zip(*rows.values(), strict=True)
        data = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
        number = self._try(lambda: write(self.some_store.table(table), data))
        if number is not None:
            self._note(table, number, (self.now_rows[table] if upserts else {}) | rows)

    def rows_at(self, table: str, snapshot: int) -> dict[Key, Row]:
        width = len(self.schemas[table])
        rows = super().rows_at(table, snapshot)
        return {key: (*row, *[None] * (width - len(row))) for key, row in rows.items()}

    # Reading

    def _start_scan(self) -> None:
        table = self.random.choice(list(self.tables))
        newest = self.store.context.catalog.versions()[1]
        snapshot = newest
        if self.random.random() < 0.4:
            snapshot = self.random.randint(self.store.table(table).definition.oldest_snapshot, newest)
        names = self.schemas[table].names
        columns = self.random.choice([names, names[-1:], self.random.sample(names, 2)])
        text, tested = self.random.choice([(None, None), (f"{names[-1]} IS NULL", names[-1])])
        scan = self.store.table(table).scan(
            columns=columns,
            filter=text,
            snapshot=snapshot,
            page_rows=self.random.choice([1, 2, 3, 10, 65_536]),
            page_bytes=self.random.choice([1, 50, 400, 16 << 20]),
        )
        rows = [dict(zip(names, row, strict=True)) for row in self.rows_at(table, snapshot).values()]
        kept = [row for row in rows if tested is None or row[tested] is None]
        expected = Counter(tuple(row[name] for name in columns) for row in kept)
        assert scan.key is not None
        self.scans.append(self._resumed(table, expected, scan.key, []))

    # The end

    def _check_everything(self) -> None:
        super()._check_everything()
        for table in self.tables:
            self._check_changes(table)

    def _check_changes(self, table: str) -> None:
        """The change feed tells every change with all columns that there are now."""
        info = self.store.table(table).definition
        before = self.rows_at(table, info.oldest_snapshot)
        after = self.rows_at(table, self.store.context.catalog.versions()[1])
        _, keys, _ = self.tables[table]
        places = [info.schema.names.index(name) for name in keys]
        for batch in self.store.table(table).changes(info.oldest_snapshot, page_rows=20).batches():
            for told in zip(*batch.to_pydict().values(), strict=True):
                row, kind = told[:-3], told[-3]
                key = tuple(row[at] for at in places)
                if kind in ("update_preimage", "delete"):
                    assert before.pop(key) == row, "a change of a row that was not so"
                else:
                    before[key] = row
        assert before == after, "the changes do not lead to the newest rows"
