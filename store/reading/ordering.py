"""The order of a scan: what `order_by` says, and the indexes whose entries lie in that order.

A scan does not sort, but for the first rows of a small limit (`FirstRows`). Its rows leave in the order of
a sorted index, which is that of its columns and then of the primary key: an index on (carrier, delay) of a
table with the key (id) gives `order_by="carrier"`, `order_by=["carrier", "delay"]` and
`order_by=["carrier", "delay", "id"]`, and each of them backwards.

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
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from elasticscan.base.errors import InvalidOption, NotFound
from elasticscan.base.suggestions import suggest
from elasticscan.filters import ordered_floats
from elasticscan.metadata import AUTO, SORTED, IndexInfo, TableInfo
from elasticscan.store import arguments

Terms: TypeAlias = list[tuple[str, bool]]

# Rows that a reader keeps while the others pass.
MOST_FIRST = 10_000

_DIRECTIONS = {"ASC": False, "DESC": True}
_COMPARABLE = (
    *(pa.float32(), pa.float64(), pa.bool_(), pa.date32()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
)


def terms_of(order_by: Any, schema: pa.Schema) -> Terms:
    """Return the columns of an order, and which of them go down: of "a, b DESC", or of a list of such terms.

    Raises:
        NotFound: a column is not there.
        InvalidOption: there are none, or one is named twice.
    """
    if isinstance(order_by, str) and order_by not in schema.names:
        order_by = order_by.split(",")
    terms = [_term(text, schema) for text in arguments.names("order_by", order_by)]
    if not terms or len({name for name, _ in terms}) < len(terms):
        raise InvalidOption(
            f"order_by={order_by!r} must name at least one column, and each once", option="order_by"
        )
    return terms


def written(terms: Terms) -> list[str]:
    """Return terms as `order_by` takes them."""
    return [f"{name} DESC" if descending else name for name, descending in terms]


def _term(text: str, schema: pa.Schema) -> tuple[str, bool]:
    """Return a column, and whether its values come from the highest to the lowest."""
    name, descending = text.strip(), False
    words = name.rsplit(maxsplit=1)
    if name not in schema.names and len(words) == 2 and words[1].upper() in _DIRECTIONS:
        name, descending = words[0], _DIRECTIONS[words[1].upper()]
    if name not in schema.names:
        hint = suggest(name, schema.names) or "; a term is a column, or 'column DESC'"
        raise NotFound(
            f"order_by names a column {name!r}, which is not there{hint}", column=name, kind="column"
        )
    return name, descending


def indexes_in_order(order: Terms, table: TableInfo, indexes: Sequence[IndexInfo], name: str) -> list[str]:
    """Return the names of the ready indexes that give an order, of all or of the one named.

    Raises:
        NotFound, InvalidOption: there is none, the one named has another order, or columns go both ways.
    """
    text, columns = ", ".join(written(order)), [column for column, _ in order]
    if len({descending for _, descending in order}) > 1:
        raise InvalidOption(
            f"order_by={text!r} needs one direction, or a limit of up to 10,000 rows", option="order_by"
        )
    ready = [i for i in indexes if i.ready and i.kind == SORTED and name in (AUTO, i.name)]
    in_order = {i.name: [*dict.fromkeys((*i.columns, *table.primary_key))] for i in ready}
    fitting = [index for index, first in in_order.items() if first[: len(columns)] == columns]
    if fitting:
        return fitting
    if name != AUTO:
        raise InvalidOption(
            f"order_by={text!r} is not the order of index={name!r}; leave 'index' out", option="index"
        )
    raise NotFound(
        f"order_by={text!r} needs a sorted index or a limit of up to 10,000 rows; make it with "
        f"table.create_index({'by_' + '_'.join(columns)!r}, {columns!r})",
        columns=columns,
        kind="index",
    )


# The first rows of an order that no index gives


def kept_order(terms: Terms, limit: int | None, table: TableInfo) -> list[str] | None:
    """Return an order down to the primary key, of a scan that sorts its first rows; None if it cannot."""
    if limit is None or limit > MOST_FIRST:
        return None
    # As an index that is read backwards gives it.
    given, down = {name for name, _ in terms}, all(descending for _, descending in terms)
    whole = written([*terms, *((name, down) for name in table.primary_key if name not in given)])
    return whole if can_be_sorted(whole, table.schema) else None


def can_be_sorted(order_by: Sequence[str], schema: pa.Schema) -> bool:
    """Return True if the columns of an order have types that Arrow compares as Spark does.

    Raises:
        NotFound: one is not there.
    """
    kinds = [schema.field(name).type for name, _ in terms_of(order_by, schema)]
    # Spark cuts nanoseconds to microseconds, so that other rows are equal.
    times = [kind for kind in kinds if pt.is_timestamp(kind) and kind.unit != "ns"]
    return all(k in (*_COMPARABLE, *times) or pt.is_integer(k) or pt.is_decimal128(k) for k in kinds)


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
        directions = (("ascending", "at_start"), ("descending", "at_end"))  # null is below everything
        self._sorted_by = [
            (str(place), *directions[descending]) for place, (_, descending) in enumerate(self._terms)
        ]

    def add(self, rows: pa.RecordBatch) -> None:
        table = pa.Table.from_batches([rows])
        if self._most and self._rows.num_rows == self._most:
            table = table.filter(self._entering(table))
        if table.num_rows:
            table = pa.concat_tables([self._rows, table])
            columns = [_comparable(table.column(name)) for name, _ in self._terms]
            keys = pa.table(columns, names=[place for place, *_ in self._sorted_by]).combine_chunks()
            self._rows = table.take(pc.sort_indices(keys, sort_keys=self._sorted_by).slice(0, self._most))

    def rows(self) -> pa.Table:
        """Return the rows, in their order."""
        return self._rows

    def _entering(self, table: pa.Table) -> pa.ChunkedArray:
        """Return which rows may come before the last one kept, by the first column."""
        alone, (name, descending) = len(self._terms) == 1, self._terms[0]
        values, last = _comparable(table.column(name)), _comparable(self._rows.column(name)[-1:])[0]
        if not last.is_valid:
            return pc.if_else(values.is_null(), not alone, descending)
        if descending:
            compare = pc.greater if alone else pc.greater_equal
        else:
            compare = pc.less if alone else pc.less_equal
        return pc.fill_null(compare(values, last), not descending)


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if pt.is_boolean(values.type):
        return values.cast(pa.uint8())
    return ordered_floats(values) if pt.is_floating(values.type) else values
