"""Definitions that are refused; columns of all other types are written, read and copied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import pyarrow as pa
import pytest

from elasticscan.base.errors import InvalidOption, SchemaMismatch
from elasticscan.base.key_encoding import PRIMARY_ENCODERS
from elasticscan.metadata import Bounds, Fragment, TableInfo
from elasticscan.storage import patch as patch_module
from elasticscan.storage.conform import conform
from elasticscan.storage.copying import Keep, copy_slots
from elasticscan.storage.definition import check_definition, stored_schema
from elasticscan.storage.fragment_writer import Destination
from elasticscan.storage.ingest import stage_rows
from elasticscan.storage.pages import read_page
from elasticscan.store.rows.conversion import tombstones_of
from elasticscan.topology import SlotSet, initial_placement
from tests.storage.columns import NESTED, PLAIN, REFUSED, column, forms, sample_rows
from tests.storage.versions import ORIGIN, Shelf, read_all

ID = pa.field("id", pa.int64(), nullable=False)
ROWS = 9


class Trial:
    """A table of some columns, and of its rows' numbers, at a shard in memory."""

    def __init__(self, columns: Iterable[pa.Field], key: str = "id") -> None:
        schema, keys = pa.schema([ID, *columns]), [*{key: 0, "id": 0}]
        check_definition(schema, keys, keys)
        stored = stored_schema(schema, keys)
        self.shelf = Shelf(
            TableInfo(7, "t", stored, tuple(keys), tuple(keys), None, 0, 0), ORIGIN.store_slots
        )

    def run(self, values: pa.RecordBatch | None = None) -> None:
        """Write rows, replace some and delete all; read each snapshot, also from copies as made by moves."""
        table = self.shelf.table
        assert pa.ipc.read_schema(table.schema.serialize()).equals(table.schema, check_metadata=True)
        rows = conform(sample_rows(table.schema, ROWS) if values is None else values, table.schema)
        self.write(rows, commit=1)
        assert self.read(snapshot=1).equals(pa.table(rows))
        # Some rows are laid over with values of other rows.
        turned, keys = rows.take(pa.array([*range(3, ROWS), 0, 1, 2])), len(table.primary_key)
        columns = [*rows.columns[:keys], *turned.columns[keys:]]
        newer = pa.RecordBatch.from_arrays(columns, schema=table.schema)[::2]
        self.write(newer, commit=2)
        both = [newer.slice(n // 2, 1) if n % 2 == 0 else rows.slice(n, 1) for n in range(ROWS)]
        self.write(tombstones_of(rows.select(list(table.primary_key)), table), commit=3)
        for _ in range(2):
            assert self.read(snapshot=1).equals(pa.table(rows))
            for most_joined in (64, 0):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(patch_module, "_MOST_JOINED", most_joined)
                    assert self.read(snapshot=2).equals(pa.Table.from_batches(both))
            assert self.read(snapshot=3).num_rows == 0
            self.shelf.fragments = self.copied(Keep())
        assert self.copied(Keep(horizon=3, drop_tombstones=True)) == []

    def write(self, rows: pa.RecordBatch, commit: int) -> None:
        placement = initial_placement(ORIGIN.store_slots, 1, [1])
        for staged in stage_rows(self.shelf.table, [rows], placement, lambda _: self.shelf.disk, ORIGIN):
            self.shelf.register(staged, commit)

    def copied(self, keep: Keep) -> list[Fragment]:
        slots, to = SlotSet.span(0, ORIGIN.store_slots), Destination(self.shelf.disk, 1, ORIGIN)
        copies = copy_slots(self.shelf.source(), slots, Bounds(0, 3), keep, to)
        return [copy.entered(number, self.shelf.table.id) for number, copy in enumerate(copies)]

    def read(self, snapshot: int) -> pa.Table:
        """Read rows, in the order of their numbers."""
        source, names = self.shelf.source(), self.shelf.table.schema.names
        pages = read_all(read_page, source, self.shelf.everything(), snapshot, names, repeat((4, 1 << 20)))
        found = pa.Table.from_batches([page.rows for page in pages], self.shelf.table.schema)
        numbers = found["id"].to_pylist()
        return found.take(pa.array(sorted(range(len(numbers)), key=numbers.__getitem__), pa.int64()))


def test_every_type_of_arrow_is_tried() -> None:
    tried = [*PLAIN, *REFUSED, *(nested(column("part", pa.int8())) for nested in NESTED.values())]
    never = {pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME}  # Python has no such values
    known = {number for name, number in vars(pa.lib).items() if name.startswith("Type_")}
    assert known - never <= {kind.id for kind in tried}


@pytest.mark.parametrize("kind", PLAIN, ids=str)
def test_columns_of_a_type_work_alone_and_as_a_part_of_every_other(kind: pa.DataType) -> None:
    Trial(
        column(f"c{at}{nullable}", each, nullable)
        for at, each in enumerate(forms(kind))
        for nullable in (True, False)
    ).run()


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_columns_of_other_types_are_refused_alone_and_as_a_part_of_every_other(kind: pa.DataType) -> None:
    for each in forms(kind):
        with pytest.raises(SchemaMismatch, match="which a table cannot hold"):
            Trial([column("c", each)])


@pytest.mark.parametrize("kind", [kind for kind in PLAIN if kind.id in PRIMARY_ENCODERS], ids=str)
def test_keys_of_a_type_work(kind: pa.DataType) -> None:
    Trial([column("k", kind), column("v", pa.list_(kind))], key="k").run()


@pytest.mark.parametrize(
    "kind",
    [kind for kind in PLAIN if pa.types.is_decimal(kind) and abs(kind.scale) == kind.precision],
    ids=str,
)
def test_decimals_of_the_largest_scale_work_whatever_their_digits(kind: pa.DataType) -> None:
    most = 10**kind.precision - 1
    numbers = [most, -most, 7, -7, 0, 1, -1, 2, -2]
    data = b"".join(number.to_bytes(kind.byte_width, "little", signed=True) for number in numbers)
    values = pa.Array.from_buffers(kind, ROWS, [None, pa.py_buffer(data)])
    Trial([column("d", kind)]).run(pa.record_batch({"id": range(ROWS), "d": values}))


# --------------------------------------------------------------------------------- names and keys

ABX = (("a", pa.int64()), ("b", pa.string()), ("x", pa.float64()))


@pytest.mark.parametrize(
    ("columns", "primary_key", "shard_key", "error", "says"),
    [
        ((*ABX, ("A", pa.int64())), "a", "a", SchemaMismatch, "differ at most in case"),
        ((), "a", "a", SchemaMismatch, "at least one column"),
        (ABX, "", "", InvalidOption, None),
        (ABX, "aa", "a", InvalidOption, None),
        (ABX, "ab", "b", InvalidOption, None),
        (ABX, "a", "ab", InvalidOption, None),
        (ABX, "a", "", InvalidOption, None),
        (ABX, "c", "c", SchemaMismatch, None),
        (ABX, "x", "x", SchemaMismatch, None),
    ],
)
def test_names_and_keys_that_cannot_be_are_refused(
    columns: Sequence[tuple[str, pa.DataType]],
    primary_key: str,
    shard_key: str,
    error: type[Exception],
    says: str | None,
) -> None:
    with pytest.raises(error, match=says):
        check_definition(pa.schema(columns), list(primary_key), list(shard_key))


def test_the_stored_schema_has_keys_without_nulls_and_no_metadata() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), metadata={"x": "y"}), ("b", pa.string())], {"p": "q"})
    kept = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])
    assert stored_schema(schema, ["a"]).equals(kept, check_metadata=True)
