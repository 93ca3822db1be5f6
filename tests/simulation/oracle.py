"""The expected answers of a store: a dictionary of the rows of each snapshot, by table."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

import pyarrow as pa

from elasticscan.store import Page, Table
from tests.simulation.conditions import Means, Values
from tests.simulation.tables import TABLES

Key = tuple[Any, ...]
Row = tuple[Any, ...]
Rows = dict[Key, Row]


class TableOracle:
    """The rows of a table after each of its commits.

    A stored row has a value for each column that ever existed.

    Attributes:
        places: the positions of the current columns' values in a stored row.
        definitions: of each definition of the table, by its number, its schema and places.
        history: (commit, time, rows by primary key), oldest first. Rows of a commit are never changed.
        given_up: rows of commits that were lost with the catalog.
        touched: the keys that each commit wrote or deleted.
    """

    def __init__(self, handle: Table, time: float) -> None:
        self.name = handle.name
        self.schema, self.primary_key, _ = TABLES[handle.name]
        self.places = list(range(len(self.schema)))
        self.width = len(self.schema)
        self.definitions: dict[int, tuple[pa.Schema, list[int]]] = {}
        self.note_definition(handle)
        self.given_up: list[Rows] = []
        self.history: list[tuple[int, float, Rows]] = [(handle.definition.created_commit, time, {})]
        self.touched: list[tuple[int, frozenset[Key]]] = []
        self.overwrites: list[int] = []
        self.tags: dict[str, int] = {}

    def copied(self) -> TableOracle:
        """An oracle of a copy of the store."""
        made = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (list, dict)):
                setattr(made, name, copy(value))
        return made

    @property
    def added(self) -> list[str]:
        """The columns that were added to the table."""
        return list(self.schema.names[len(TABLES[self.name][0]) :])

    @property
    def created(self) -> int:
        return self.history[0][0]

    @property
    def newest(self) -> int:
        return self.history[-1][0]

    def data(self, rows: Rows) -> pa.Table:
        """Rows of the newest definition, to be written."""
        columns = zip(*rows.values(), strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)]
        return pa.table(arrays, schema=self.schema)

    def keys(self, keys: Iterable[Key]) -> pa.Table:
        """Primary keys, to be deleted."""
        schema = pa.schema([self.schema.field(name) for name in self.primary_key])
        return pa.Table.from_pylist([dict(zip(self.primary_key, k, strict=True)) for k in keys], schema)

    def whole(self, rows: Rows) -> Rows:
        """Rows with nulls for the columns that were dropped."""
        kept: Rows = {}
        for key, row in rows.items():
            values = dict(zip(self.places, row, strict=True))
            kept[key] = tuple(values.get(place) for place in range(self.width))
        return kept

    def before(self, number: int) -> Rows:
        """The rows before a commit; commits of others in the meantime are already included."""
        return next(rows for commit, _, rows in reversed(self.history) if commit < number)

    def ever(self) -> set[Row]:
        """Every version of every row so far, with the columns of the newest definition."""
        kept = [*(rows for _, _, rows in self.history), *self.given_up]
        return {comparable(row) for rows in kept for row in self._as(rows, self.places).values()}

    def note(self, number: int, time: float, rows: Rows, touched: Iterable[Key]) -> None:
        """Enter a commit."""
        assert number > self.newest, "commit numbers must grow"
        self.touched.append((number, frozenset(touched)))
        self.history.append((number, time, rows))

    def note_definition(self, handle: Table) -> None:
        """Enter the table's definition, as soon as it was changed."""
        self.definitions[handle.definition.definition] = (self.schema, list(self.places))

    def gain(self, new: list[pa.Field], handle: Table) -> None:
        """Enter columns that were added."""
        self.schema = pa.schema([*self.schema, *new])
        self.places += range(self.width, self.width + len(new))
        self.width += len(new)
        self.note_definition(handle)

    def touched_in(self, after: int, upto: int) -> frozenset[Key]:
        """The keys that commits in (after, upto] wrote or deleted."""
        some = (keys for number, keys in self.touched if after < number <= upto)
        return frozenset[Key]().union(*some)

    def at(self, snapshot: int, definition: int | None = None) -> Rows:
        """Rows with the columns of the newest or another definition; later columns are null."""
        rows = next(rows for number, _, rows in reversed(self.history) if number <= snapshot)
        return self._as(rows, self.places if definition is None else self.definitions[definition][1])

    def _as(self, rows: Rows, places: list[int]) -> Rows:
        nulls = (None,) * self.width
        return {
            key: tuple((*row, *nulls[len(row) :])[place] for place in places) for key, row in rows.items()
        }

    def where(self, snapshot: int, means: Means) -> list[Values]:
        """The rows of a snapshot for which a condition is true."""
        rows = [dict(zip(self.schema.names, row, strict=True)) for row in self.at(snapshot).values()]
        return [row for row in rows if means(row) is True]


def rows_of(page: Page | pa.Table | pa.RecordBatch) -> list[Row]:
    """Rows in which NaN equals NaN."""
    data = page.rows if isinstance(page, Page) else page
    return [comparable(row) for row in zip(*data.to_pydict().values(), strict=True)]


def comparable(row: Row) -> Row:
    """A row in which NaN equals NaN."""
    return tuple("NaN" if value != value else value for value in row)
