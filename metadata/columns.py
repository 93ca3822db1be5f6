"""The columns of all definitions of a table: names and types may change, the stored name never does.

The definitions of a table are numbered from 1. Each change of columns makes the next definition. Files
use the *stored name* of a column. It never changes, and no other column of the table ever has it:

    definition    1           2 rename     3 widen      4 drop      5 add
    columns       k, v        k, w         k, w         k           k, w
    types         v int32     w int32      w int64                  w text
    stored names  k, v        k, v         k, v         k           k, w

So a file of any definition can be read in the columns of any other. A column that is missing in the file is
null: the file is older than the column, or was written after the column was dropped. A narrower type is cast.
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
DROPPED = "\0"  # no name of a user's column begins with it


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table, in all definitions.

    Attributes:
        stored: its name in files.
        names: (definition, name), ascending: its name from this definition on. The first one added it.
        types: (definition, type), ascending; each type can hold all values of the types before it.
        nullable: whether it may be null.
        until: the definition that dropped it; None if it was not dropped.
        last_commit: the newest commit when it was dropped. Scans that began before read no later snapshot.
    """

    stored: str
    names: tuple[tuple[int, str], ...]
    types: tuple[tuple[int, pa.DataType], ...]
    nullable: bool
    until: int | None = None
    last_commit: int = 0

    @property
    def since(self) -> int:
        """The definition that added it."""
        return self.names[0][0]

    @property
    def type(self) -> pa.DataType:
        """The newest type."""
        return self.types[-1][1]

    @property
    def mark(self) -> str:
        """Its name in statistics, with a changed type: bounds of different types are not comparable."""
        return self.stored if len(self.types) == 1 else f"{self.stored}\0{self.type}"

    @property
    def dropped_name(self) -> str:
        """The name of the dropped column in copies, which keep it for older scans."""
        return DROPPED + self.stored

    def at(self, definition: int) -> TableColumn | None:
        """Return the column as it was at a definition; None if it was added later."""
        if definition < self.since:
            return None
        is_dropped = self.until is not None and self.until <= definition
        return replace(
            self,
            names=tuple(name for name in self.names if name[0] <= definition),
            types=tuple(kind for kind in self.types if kind[0] <= definition),
            until=self.until if is_dropped else None,
            last_commit=self.last_commit if is_dropped else 0,
        )

    def name_at(self, definition: int) -> str | None:
        """Return its name in a definition; None if the definition does not have it."""
        if self.until is not None and self.until <= definition:
            return None
        return next((name for since, name in reversed(self.names) if since <= definition), None)

    def may_lack(self, definition: int) -> bool:
        """Return True if files of this definition may be without the column."""
        return definition < self.since or (self.until is not None and definition >= self.until)


def columns_of_schema(schema: pa.Schema) -> tuple[TableColumn, ...]:
    """Return the columns of a table's first definition."""
    return tuple(TableColumn(f.name, ((1, f.name),), ((1, f.type),), f.nullable) for f in schema)


def schema_at(columns: Iterable[TableColumn], definition: int) -> pa.Schema:
    """Return the columns of a definition with their names in it, but in their newest types."""
    named = ((column.name_at(definition), column) for column in columns)
    return pa.schema([pa.field(name, c.type, c.nullable) for name, c in named if name is not None])


def new_column(columns: Sequence[TableColumn], field: pa.Field, definition: int) -> TableColumn:
    """Return a column that a definition adds, with a stored name that no column of the table ever had."""
    taken = {column.stored for column in columns}
    stored, number = field.name, definition
    while stored in taken:
        stored, number = f"{field.name}.{number}", number + 1
    return TableColumn(stored, ((definition, field.name),), ((definition, field.type),), field.nullable)


def is_widening(old: pa.DataType, new: pa.DataType) -> bool:
    """Return True if the new type is of the same kind and wider, so it can hold each value of the old."""
    if old.id == new.id and _t.is_decimal(old):
        return bool(old.scale == new.scale and old.precision < new.precision)
    return any(old in family and new in family[family.index(old) + 1 :] for family in _FAMILIES)
