"""Columns through all definitions of their table: names and types come and go, the stored name stays.

A table's definitions are numbered from 1 on, and each change of columns makes the next one. Files know a
column by its *stored name*, which it keeps for ever and which no other column of the table ever has:

    definition    1           2 rename     3 widen      4 drop      5 add
    columns       k, v        k, w         k, w         k           k, w
    types         v int32     w int32      w int64                  w text
    stored names  k, v        k, v         k, v         k           k, w

So a file of any definition can be read as any other has it: what it has not, since it is older than a column
or was made after that was dropped, is null; what it has in a narrower type is cast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

_t = pa.types
_FAMILIES = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    (pa.float16(), pa.float32(), pa.float64()),
)
# No name of a user's column begins so.
DROPPED = "\0"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table, in all definitions.

    Attributes:
        stored: its name in files.
        names: (definition, name), ascending: its name from that definition on. The first made the column.
        types: (definition, type), as with names; each holds all values of those before it.
        nullable: whether it may be null.
        until: the definition that dropped it; None while it is there.
        last_commit: the newest commit when it was dropped. Scans that began before it read no later snapshot.
    """

    stored: str
    names: tuple[tuple[int, str], ...]
    types: tuple[tuple[int, pa.DataType], ...]
    nullable: bool
    until: int | None = None
    last_commit: int = 0

    @property
    def since(self) -> int:
        """The definition that made it."""
        return self.names[0][0]

    @property
    def type(self) -> pa.DataType:
        """The newest type."""
        return self.types[-1][1]

    @property
    def mark(self) -> str:
        """Its name in statistics: bounds of another type do not compare with those of this one."""
        return self.stored if len(self.types) == 1 else f"{self.stored}\0{self.type}"

    @property
    def dropped_name(self) -> str:
        """The name by which copies take it along once it is dropped."""
        return DROPPED + self.stored

    def at(self, definition: int) -> TableColumn | None:
        """Return the column as it was known at a definition; None before it was made."""
        if definition < self.since:
            return None
        gone = self.until is not None and self.until <= definition
        return replace(
            self,
            names=tuple(name for name in self.names if name[0] <= definition),
            types=tuple(kind for kind in self.types if kind[0] <= definition),
            until=self.until if gone else None,
            last_commit=self.last_commit if gone else 0,
        )

    def name_at(self, definition: int) -> str | None:
        """Its name in a definition; None where that does not have it."""
        if self.until is not None and self.until <= definition:
            return None
        return next((name for since, name in reversed(self.names) if since <= definition), None)

    def may_lack(self, definition: int) -> bool:
        """Return True if a file that was written by a definition may be without it."""
        return definition < self.since or (self.until is not None and definition >= self.until)


def columns_of_schema(schema: pa.Schema) -> tuple[TableColumn, ...]:
    """Return the columns of a first definition."""
    return tuple(TableColumn(f.name, ((1, f.name),), ((1, f.type),), f.nullable) for f in schema)


def schema_at(columns: Iterable[TableColumn], definition: int) -> pa.Schema:
    """Return the columns that a definition has, by their names in it, in their newest types."""
    named = ((column.name_at(definition), column) for column in columns)
    return pa.schema([pa.field(name, c.type, c.nullable) for name, c in named if name is not None])


def new_column(columns: Sequence[TableColumn], field: pa.Field, definition: int) -> TableColumn:
    """Return a column that a definition adds, with a stored name that no other column had."""
    taken = {column.stored for column in columns}
    stored, number = field.name, definition
    while stored in taken:
        stored, number = f"{field.name}.{number}", number + 1
    return TableColumn(stored, ((definition, field.name),), ((definition, field.type),), field.nullable)


def is_widening(old: pa.DataType, new: pa.DataType) -> bool:
    """Return True if each value of a type is one of another, of the same kind and larger."""
    if old.id == new.id and _t.is_decimal(old):
        return bool(old.scale == new.scale and old.precision < new.precision)
    return any(old in family and new in family[family.index(old) + 1 :] for family in _FAMILIES)
