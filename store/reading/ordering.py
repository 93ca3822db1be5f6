"""The order of a scan: the terms of `order_by`, and the indexes whose entries have that order.

A scan returns rows in the order of a sorted index: by its columns, then by the primary key. So an index on
(carrier, delay) of a table with the key (id) serves `order_by="carrier"`, `order_by=["carrier", "delay"]` and
`order_by=["carrier", "delay", "id"]`, and each of them in reverse. The scan sorts only if there is no such
index, and only for a small limit (`FirstRows`):

    first = FirstRows(("delay DESC", "id"), 10, scan.schema)
    for rows in scan.batches():
        first.add(rows)
    first.rows()                    # ten rows at most, sorted

Rows of a page that sort after the last row kept are dropped by one comparison of the first column, so a page
costs little more than that. The order is that of Spark: nulls sort first, NaN above all numbers, -0.0 equals
0.0, texts and binary values sort by their bytes.
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

MOST_FIRST = 10_000  # the largest limit for which a scan sorts

_DIRECTIONS = {"ASC": False, "DESC": True}
_COMPARABLE = (
    *(pa.float32(), pa.float64(), pa.bool_(), pa.date32()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
)


def terms_of(order_by: Any, schema: pa.Schema) -> Terms:
    """Return (column, descending) for each term of an order such as "a, b DESC" or ["a", "b DESC"].

    Raises `NotFound` for an unknown column, `InvalidOption` if there are no terms, or a column occurs twice.
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
    """Return terms as text, in the form of `order_by`."""
    return [f"{name} DESC" if descending else name for name, descending in terms]


def _term(text: str, schema: pa.Schema) -> tuple[str, bool]:
    """Parse a term; return the column, and whether the order is descending."""
    name, descending = text.strip(), False
    words = name.rsplit(maxsplit=1)
    if name not in schema.names and len(words) == 2 and words[1].upper() in _DIRECTIONS:
        name, descending = words[0], _DIRECTIONS[words[1].upper()]
    if name not in schema.names:
        hint = suggest(name, schema.names) or "; a term is a column, or 'column DESC'"
        raise NotFound(
            f"order_by names a column {name!r}, which does not exist{hint}", column=name, kind="column"
        )
    return name, descending


def indexes_in_order(order: Terms, table: TableInfo, indexes: Sequence[IndexInfo], name: str) -> list[str]:
    """Return the names of ready indexes that have an order; `name` is AUTO or the only index to consider.

    Raises `NotFound` or `InvalidOption` if no index has the order, or the terms have both directions.
    """
    text, columns = ", ".join(written(order)), [column for column, _ in order]
    if len({descending for _, descending in order}) > 1:
        raise InvalidOption(
            f"order_by={text!r} needs one direction, or a limit of up to 10,000 rows", option="order_by"
        )
    ready = [i for i in indexes if i.ready and i.kind == SORTED and name in (AUTO, i.name)]
    orders = {i.name: [*dict.fromkeys((*i.columns, *table.primary_key))] for i in ready}
    matching = [index for index, its_order in orders.items() if its_order[: len(columns)] == columns]
    if matching:
        return matching
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


# The first rows of an order without an index


def total_order(terms: Terms, limit: int | None, table: TableInfo) -> list[str] | None:
    """Return an order extended by the primary key, for a scan that sorts; None if it cannot sort."""
    if limit is None or limit > MOST_FIRST:
        return None
    # The key's direction is that of an index: descending if all terms are.
    named, is_reverse = {name for name, _ in terms}, all(descending for _, descending in terms)
    total = written([*terms, *((name, is_reverse) for name in table.primary_key if name not in named)])
    return total if can_be_sorted(total, table.schema) else None


def can_be_sorted(order_by: Sequence[str], schema: pa.Schema) -> bool:
    """Return True if Arrow compares values of all columns of an order as Spark does. Raises `NotFound`."""
    kinds = [schema.field(name).type for name, _ in terms_of(order_by, schema)]
    # Not nanoseconds: Spark truncates them to microseconds, so that different values become equal.
    times = [kind for kind in kinds if pt.is_timestamp(kind) and kind.unit != "ns"]
    return all(k in (*_COMPARABLE, *times) or pt.is_integer(k) or pt.is_decimal128(k) for k in kinds)


class FirstRows:
    """The first `most` of all added rows, in an order; uses memory for these rows and a page.

    Args:
        order_by: terms such as "delay DESC", as for a scan; directions may differ.
        most: maximum number of rows.
        schema: the schema of the rows.

    Raises as `terms_of`.
    """

    def __init__(self, order_by: Sequence[str], most: int, schema: pa.Schema) -> None:
        self._terms, self._most = terms_of(order_by, schema), most
        self._rows = schema.empty_table()
        directions = (("ascending", "at_start"), ("descending", "at_end"))  # null is the lowest value
        self._sorted_by = [
            (str(place), *directions[descending]) for place, (_, descending) in enumerate(self._terms)
        ]

    def add(self, rows: pa.RecordBatch) -> None:
        table = pa.Table.from_batches([rows])
        if self._most and self._rows.num_rows == self._most:
            table = table.filter(self._before_last(table))
        if table.num_rows:
            table = pa.concat_tables([self._rows, table])
            columns = [_comparable(table.column(name)) for name, _ in self._terms]
            keys = pa.table(columns, names=[place for place, *_ in self._sorted_by]).combine_chunks()
            self._rows = table.take(pc.sort_indices(keys, sort_keys=self._sorted_by).slice(0, self._most))

    def rows(self) -> pa.Table:
        """Return the first rows, sorted."""
        return self._rows

    def _before_last(self, table: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the rows that may sort before the last row kept, by the first column."""
        is_only, (name, descending) = len(self._terms) == 1, self._terms[0]
        values, last = _comparable(table.column(name)), _comparable(self._rows.column(name)[-1:])[0]
        if not last.is_valid:
            return pc.if_else(values.is_null(), not is_only, descending)
        if descending:
            compare = pc.greater if is_only else pc.greater_equal
        else:
            compare = pc.less if is_only else pc.less_equal
        return pc.fill_null(compare(values, last), not descending)


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if pt.is_boolean(values.type):
        return values.cast(pa.uint8())
    return ordered_floats(values) if pt.is_floating(values.type) else values
