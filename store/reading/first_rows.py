"""The first rows of an order that no index gives: kept while the others pass.

    first = FirstRows(("delay DESC", "id"), 10, scan.schema)
    for rows in scan.batches():
        first.add(rows)
    first.rows()                    # ten rows at most, sorted

Of a page only rows that come before the last one kept are looked at further, so a page costs little more than
one comparison of its first column. The order is Spark's by default: null is below everything, NaN above all
numbers, -0.0 equals 0.0, texts and bytes go by their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from elasticscan.filters import ordered_floats
from elasticscan.metadata import TableInfo
from elasticscan.store.reading.ordering import Terms, terms_of, written

# Rows that a reader keeps while the others pass.
MOST_FIRST = 10_000

_COMPARABLE = (
    *(pa.float32(), pa.float64(), pa.bool_(), pa.date32()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
)


@dataclass(frozen=True, slots=True)
class KeptOrder:
    """The order of a scan that keeps its first rows: what was asked for, and then that of the primary key.

    Attributes:
        terms: such as "delay DESC"; each column once.
        columns: those of the terms.
        rows: how many are kept.
    """

    terms: tuple[str, ...]
    columns: tuple[str, ...]
    rows: int


def kept_order(terms: Terms, limit: int | None, table: TableInfo) -> KeptOrder | None:
    """Return the order of a scan that could sort its first rows itself; None of one that could not."""
    if limit is None or limit > MOST_FIRST:
        return None
    # As an index that is read backwards gives it.
    given, down = {name for name, _ in terms}, all(descending for _, descending in terms)
    whole = [*terms, *((name, down) for name in table.primary_key if name not in given)]
    names = tuple(name for name, _ in whole)
    if not all(_is_comparable(table.schema.field(name).type) for name in names):
        return None
    return KeptOrder(tuple(written(whole)), names, limit)


def can_be_sorted(order_by: Sequence[str], schema: pa.Schema) -> bool:
    """Return True if the columns of an order have types that Arrow compares as Spark does.

    Raises:
        NotFound: one is not there.
    """
    return all(_is_comparable(schema.field(name).type) for name, _ in terms_of(order_by, schema))


def _is_comparable(kind: pa.DataType) -> bool:
    if pt.is_timestamp(kind):
        return bool(kind.unit != "ns")  # which Spark cuts to microseconds, so that other rows are equal
    return kind in _COMPARABLE or pt.is_integer(kind) or pt.is_decimal128(kind)


class FirstRows:
    """The first `most` rows of all that were added; memory is that of so many rows and a page.

    Args:
        order_by: terms such as "delay DESC", as a scan takes them; directions may differ.
        most: how many.
        schema: of the rows.

    Raises:
        NotFound, InvalidOption: there is no such order.
    """

    def __init__(self, order_by: Sequence[str], most: int, schema: pa.Schema) -> None:
        self._terms, self._most = terms_of(order_by, schema), most
        self._rows = schema.empty_table()
        self._keys = self._keys_of(self._rows)
        # Whether there is a value is compared first, in the same direction: null is below everything.
        self._sorted_by = [
            (f"{part} {place}", "descending" if descending else "ascending")
            for place, (_, descending) in enumerate(self._terms)
            for part in ("valid", "value")
        ]

    def add(self, rows: pa.RecordBatch) -> None:
        table = pa.Table.from_batches([rows])
        keys = self._keys_of(table)
        if self._rows.num_rows >= self._most:
            entering = self._entering(keys)
            if not pc.any(entering).as_py():
                return
            table, keys = table.filter(entering), keys.filter(entering)
        candidates = pa.concat_tables([self._keys, keys]).combine_chunks()
        places = pc.sort_indices(candidates, sort_keys=self._sorted_by).slice(0, self._most)
        self._keys = candidates.take(places)
        self._rows = pa.concat_tables([self._rows, table]).take(places)

    def rows(self) -> pa.Table:
        """Return the rows, in their order."""
        return self._rows

    def _keys_of(self, rows: pa.Table) -> pa.Table:
        keys = {}
        for place, (name, _) in enumerate(self._terms):
            values = rows.column(name)
            keys[f"valid {place}"] = values.is_valid().cast(pa.uint8())
            keys[f"value {place}"] = _comparable(values)
        return pa.table(keys)

    def _entering(self, keys: pa.Table) -> pa.ChunkedArray:
        """Return the rows that may come before the last one kept, by the first column."""
        if not self._most:
            return pa.chunked_array([pa.nulls(keys.num_rows, pa.bool_())])
        valid, values = keys.column("valid 0").cast(pa.bool_()), keys.column("value 0")
        last = self._keys.column("value 0")[self._most - 1]
        alone, descending = len(self._terms) == 1, self._terms[0][1]
        if not last.is_valid:
            if descending:
                return valid if alone else pc.or_(valid, True)
            return pc.and_(valid, False) if alone else pc.invert(valid)
        if descending:
            compare = pc.greater if alone else pc.greater_equal
            return pc.fill_null(compare(values, last), False)
        compare = pc.less if alone else pc.less_equal
        return pc.fill_null(compare(values, last), True)


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if pt.is_boolean(values.type):
        return values.cast(pa.uint8())
    return ordered_floats(values) if pt.is_floating(values.type) else values
