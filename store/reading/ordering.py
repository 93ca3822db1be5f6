"""The order of a scan: what `order_by` says, and the indexes whose entries lie in that order.

A scan does not sort, but for the first rows of a small limit (`first_rows`). Its rows leave in the order of
a sorted index, which is that of its columns and then of the primary key: an index on (carrier, delay) of a
table with the key (id) gives `order_by="carrier"`, `order_by=["carrier", "delay"]` and
`order_by=["carrier", "delay", "id"]`, and each of them backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, NotFound, NotReady
from elasticscan.base.suggestions import suggest
from elasticscan.metadata import SORTED, IndexInfo, TableInfo
from elasticscan.store import arguments

Terms: TypeAlias = list[tuple[str, bool]]

_DIRECTIONS = {"ASC": False, "DESC": True}


@dataclass(frozen=True, slots=True)
class Order:
    """The columns that rows are in the order of, the most significant first."""

    columns: tuple[str, ...]
    descending: bool

    def __str__(self) -> str:
        return ", ".join(self.terms())

    def terms(self) -> list[str]:
        """As `order_by` takes them."""
        return written([(name, self.descending) for name in self.columns])


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


def order_of(terms: Terms) -> Order:
    """Return an order that an index may give. Raises `InvalidOption` if the directions differ."""
    if len({descending for _, descending in terms}) > 1:
        raise InvalidOption(
            f"order_by={', '.join(written(terms))!r} needs one direction, or a limit of up to 10,000 rows",
            option="order_by",
        )
    return Order(tuple(name for name, _ in terms), terms[0][1])


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


def whole_order(index: IndexInfo, table: TableInfo, descending: bool) -> Order:
    """All columns that an index's entries are in the order of."""
    return Order(tuple(dict.fromkeys((*index.columns, *table.primary_key))), descending)


def not_ready(index: IndexInfo, table: TableInfo) -> NotReady:
    return NotReady(
        f"index {index.name!r} of table {table.name!r} is still being built; wait for it, or call "
        "create_index again if its build was killed",
        index=index.name,
        kind="index",
    )


def indexes_in_order(
    order: Order, table: TableInfo, indexes: Sequence[IndexInfo], name: str | None
) -> list[IndexInfo]:
    """Return the indexes that give an order, of all or of the one named; none if there is none of that name.

    Raises:
        NotFound, NotReady, InvalidOption: there is none, or not yet, or the one named has
            another order.
    """
    named = [index for index in indexes if name in (None, index.name)]
    fitting = [index for index in named if _gives(index, table, order)]
    ready = [index for index in fitting if index.ready]
    if fitting and not ready:
        raise not_ready(fitting[0], table)
    if named and name is not None and not ready:
        raise InvalidOption(
            f"order_by={str(order)!r} is not the order of index {name!r}; leave 'index' out", option="index"
        )
    if ready or name is not None:
        return ready
    columns, index = list(order.columns), "by_" + "_".join(order.columns)
    raise NotFound(
        f"order_by={str(order)!r} needs a sorted index or a limit of up to 10,000 rows; make it with "
        f"table.create_index({index!r}, {columns!r})",
        columns=columns,
        kind="index",
    )


def _gives(index: IndexInfo, table: TableInfo, order: Order) -> bool:
    has = whole_order(index, table, order.descending).columns
    return index.kind == SORTED and has[: len(order.columns)] == order.columns
