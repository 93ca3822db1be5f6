"""The files of a table as a value: one Arrow table and the few changes since it was made.

A store can have a hundred thousand fragments, and every process that opens it holds them. As columns each
takes some 200 bytes, and those of a checkpoint are used as they were read; as objects they would take four
times that, and a hundred times as long to make. A change copies the changes before it, never the table; once
they are an eighth of it, the next table is made.

A process that plans asks for all of a table's files as objects, after each commit again. The objects that it
made of the Arrow table are kept with that, for all sets that share it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.metadata import Fragment, IndexRun
from elasticscan.topology import SlotSet

F = TypeVar("F", Fragment, IndexRun)

_FEW_CHANGES = 64  # are never merged into the table


_TYPES: Final[Mapping[Any, pa.DataType]] = {
    int: pa.int64(), int | None: pa.int64(), str: pa.string(), bool: pa.bool_(), SlotSet: pa.string()
}  # fmt: skip


def columns_of(kind: type[Fragment | IndexRun]) -> pa.Schema:
    """Return the columns of files of a class: its fields, of which optional ones may be null."""
    hints = get_type_hints(kind)
    fields = [pa.field(name, _TYPES[hint], nullable=hint == int | None) for name, hint in hints.items()]
    return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class FileSet(Generic[F]):
    """Fragments, or runs of indexes, each with an id of its own.

    Attributes:
        kind: the class of the files; its fields are the columns.
        base: the files as they were at the newest merge.
        changed: files that came since, or are others now, by id; None for those that are gone.
    """

    kind: type[F]
    base: pa.Table
    changed: Mapping[int, F | None] = field(default_factory=dict)
    _decoded: list[dict[int, F]] = field(default_factory=list, repr=False, compare=False)  # `base`, if asked

    @classmethod
    def empty(cls, kind: type[F]) -> FileSet[F]:
        return cls(kind, pa.Table.from_batches([], columns_of(kind)))

    def with_added(self, files: Iterable[F]) -> FileSet[F]:
        """Return the set with some files, which are new, or others than those with their ids."""
        return self._with({file.id: file for file in files})

    def with_removed(self, ids: Iterable[int]) -> FileSet[F]:
        return self._with(dict.fromkeys(ids))

    def by_id(self) -> Mapping[int, F]:
        """Return all files, ascending; not to be changed."""
        if not self._decoded:
            self._decoded.append({file.id: file for file in self._files(self.base)})
        if not self.changed:
            return self._decoded[0]
        every = dict(self._decoded[0])
        for number, file in self.changed.items():  # ids only grow, so what is new comes last
            if file is None:
                every.pop(number, None)
            else:
                every[number] = file
        return every

    def where(self, column: str, values: Collection[int]) -> list[F]:
        """Return the files whose column has one of some values, ascending; of the others none is decoded."""
        asked = pa.array(sorted(values), self.base.schema.field(column).type)
        base = self._unchanged()
        files = list(self._files(base.filter(pc.is_in(base[column], asked))))
        files += [file for file in self._came() if getattr(file, column) in values]
        return sorted(files, key=lambda file: file.id)  # the same, however much of them was merged

    def merged(self) -> pa.Table:
        """Return all files as one table, ascending by id."""
        kept = self._unchanged()
        rows = [_row(file, kept.schema) for file in self._came()]
        if rows:
            kept = pa.concat_tables([kept, pa.Table.from_pylist(rows, schema=kept.schema)]).sort_by("id")
        return kept.combine_chunks()

    def _came(self) -> list[F]:
        return [file for file in self.changed.values() if file is not None]

    def _unchanged(self) -> pa.Table:
        """Return the files of `base` that are as they were."""
        if not self.changed:
            return self.base
        changed = pa.array(sorted(self.changed), pa.int64())
        return self.base.filter(pc.invert(pc.is_in(self.base["id"], changed)))

    def _files(self, rows: pa.Table) -> Iterable[F]:
        columns: dict[str, Any] = {name: rows[name].to_pylist() for name in rows.schema.names}
        if "slots" in columns:
            columns["slots"] = map(_parse_slots, columns["slots"])
        names, make = tuple(columns), self.kind
        return (make(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True))

    def _with(self, changes: Mapping[int, F | None]) -> FileSet[F]:
        """Return the set with these changes, merged if they are many."""
        if not changes:
            return self
        changed = FileSet(self.kind, self.base, {**self.changed, **changes}, self._decoded)
        if len(changed.changed) <= max(_FEW_CHANGES, self.base.num_rows // 8):
            return changed
        decoded = [dict(changed.by_id())] if self._decoded else []
        return FileSet(self.kind, changed.merged(), _decoded=decoded)


def _row(file: Fragment | IndexRun, schema: pa.Schema) -> dict[str, Any]:
    row = {name: getattr(file, name) for name in schema.names}
    return row | {"slots": _slots_text(row["slots"])} if "slots" in row else row


# Fragments at one shard have nearly all the same slots, thousands of ranges where there are as many tablets.
_parse_slots = lru_cache(maxsize=64)(SlotSet.parse)
_slots_text = lru_cache(maxsize=64)(SlotSet.__str__)
