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
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from elasticscan.metadata import Fragment, IndexRun
from elasticscan.topology import SlotSet

F = TypeVar("F", Fragment, IndexRun)

_FEW_CHANGES = 64  # are never merged into the table


def _columns(optional: str = "", **types: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=name == optional) for name, kind in types.items()])


_INT, _SHORT, _TEXT, _FLAG = pa.int64(), pa.int32(), pa.string(), pa.bool_()
FRAGMENT_COLUMNS: Final = _columns(
    id=_INT, table=_INT, shard=_SHORT, path=_TEXT, slots=_TEXT, slots_written=_SHORT, rows=_INT, bytes=_INT,
    unique=_FLAG, tombstones=_INT, versioned=_FLAG, tail=_INT, digest=_INT, superseded_at=_INT,
    min_commit=_INT, max_commit=_INT, optional="superseded_at",
)  # fmt: skip
RUN_COLUMNS: Final = _columns(
    id=_INT, index=_INT, fragment=_INT, path=_TEXT, rows=_INT, bytes=_INT, tail=_INT, digest=_INT
)
_COLUMNS: Final[Mapping[type, pa.Schema]] = {Fragment: FRAGMENT_COLUMNS, IndexRun: RUN_COLUMNS}


@dataclass(frozen=True, slots=True)
class FileSet(Generic[F]):
    """Fragments, or runs of indexes, each with an id of its own.

    Attributes:
        kind: the class of the files; its fields are the columns.
        base: the files as they were at the newest merge.
        added: files that came since, or changed, by id.
        removed: ids of files of `base` that are gone, or changed.
    """

    kind: type[F]
    base: pa.Table
    added: Mapping[int, F] = field(default_factory=dict)
    removed: frozenset[int] = frozenset()
    _decoded: list[dict[int, F]] = field(default_factory=list, repr=False, compare=False)  # `base`, if asked

    @classmethod
    def empty(cls, kind: type[F]) -> FileSet[F]:
        return cls(kind, pa.Table.from_batches([], _COLUMNS[kind]))

    def __len__(self) -> int:
        return int(self.base.num_rows) - len(self.removed) + len(self.added)

    def with_added(self, files: Iterable[F]) -> FileSet[F]:
        new = {file.id: file for file in files}
        return self._changed({**self.added, **new}, self.removed) if new else self

    def with_removed(self, ids: Collection[int]) -> FileSet[F]:
        """Return the set without some files; the caller has checked that they are there."""
        if not ids:
            return self
        added = {number: file for number, file in self.added.items() if number not in ids}
        return self._changed(added, self.removed.union(set(ids) - self.added.keys()))

    def with_slots(self, slots: Mapping[int, SlotSet]) -> FileSet[F]:
        """Return the set with other slots of some fragments."""
        if not slots:
            return self
        there: list[Any] = self.where("id", slots.keys())  # runs have no slots of their own
        changed = {file.id: replace(file, slots=slots[file.id]) for file in there}
        return self._changed({**self.added, **changed}, self.removed.union(slots.keys() - self.added.keys()))

    def missing(self, ids: Collection[int]) -> set[int]:
        """Return those of some ids that are not in the set."""
        return set(ids) - {file.id for file in self.where("id", ids)} if ids else set()

    def by_id(self) -> Mapping[int, F]:
        """Return all files, ascending; not to be changed."""
        if not self._decoded:
            self._decoded.append({file.id: file for file in self._files(self.base)})
        base = self._decoded[0]
        if not self.removed:
            return {**base, **self.added} if self.added else base  # ids only grow
        kept = {number: file for number, file in base.items() if number not in self.removed}
        return dict(sorted({**kept, **self.added}.items()))

    def where(self, column: str, values: Collection[int]) -> list[F]:
        """Return the files whose column has one of some values, ascending; of the others none is decoded."""
        asked = pa.array(sorted(values), self.base.schema.field(column).type)
        chosen = pc.is_in(self.base[column], asked)
        if self.removed:
            chosen = pc.and_(chosen, pc.invert(pc.is_in(self.base["id"], self._gone)))
        files = list(self._files(self.base.filter(chosen)))
        files += [file for file in self.added.values() if getattr(file, column) in values]
        return sorted(files, key=lambda file: file.id)  # the same, however much of them was merged

    def merged(self) -> pa.Table:
        """Return all files as one table, ascending by id."""
        kept = self.base
        if self.removed:
            kept = kept.filter(pc.invert(pc.is_in(kept["id"], self._gone)))
        if self.added:
            rows = [_row(file, kept.schema) for file in self.added.values()]
            kept = pa.concat_tables([kept, pa.Table.from_pylist(rows, schema=kept.schema)]).sort_by("id")
        return kept.combine_chunks()

    @property
    def _gone(self) -> pa.Array:
        return pa.array(sorted(self.removed), pa.int64())

    def _files(self, rows: pa.Table) -> Iterable[F]:
        columns: dict[str, Any] = {name: rows[name].to_pylist() for name in rows.schema.names}
        if "slots" in columns:
            columns["slots"] = map(_parse_slots, columns["slots"])
        names, make = tuple(columns), self.kind
        return (make(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True))

    def _changed(self, added: Mapping[int, F], removed: frozenset[int]) -> FileSet[F]:
        """Return the set with these changes, merged if they are many."""
        changed = FileSet(self.kind, self.base, added, removed, self._decoded)
        if len(added) + len(removed) <= max(_FEW_CHANGES, self.base.num_rows // 8):
            return changed
        decoded = [dict(changed.by_id())] if self._decoded else []
        return FileSet(self.kind, changed.merged(), _decoded=decoded)


def _row(file: Fragment | IndexRun, schema: pa.Schema) -> dict[str, Any]:
    row = {name: getattr(file, name) for name in schema.names}
    return row | {"slots": _slots_text(row["slots"])} if "slots" in row else row


# Fragments at one shard have nearly all the same slots, thousands of ranges where there are as many tablets.
_parse_slots = lru_cache(maxsize=64)(SlotSet.parse)
_slots_text = lru_cache(maxsize=64)(SlotSet.__str__)
