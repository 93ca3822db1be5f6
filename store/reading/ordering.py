"""The order of a scan: what `order_by` says, and the indexes whose entries lie in that order.

A scan does not sort, but for the first rows of a small limit (`first_rows`). Its rows leave in the order of
a sorted index, which is that of its columns and then of the primary key: an index on (carrier, delay) of a
table with the key (id) gives `order_by="carrier"`, `order_by=["carrier", "delay"]` and
`order_by=["carrier", "delay", "id"]`, and each of them backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, NotFound, NotReady
from elasticscan.base.suggestions import suggest
from elasticscan.metadata import SORTED, IndexInfo, TableInfo
from elasticscan.store import arguments

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
        return [f"{name} DESC" if self.descending else name for name in self.columns]


def order_of(order_by: Any, schema: pa.Schema) -> Order | None:
    """Return the order that a user asked for: "a", "a DESC", "a, b", or a list of such terms.

    Raises:
        NotFound, InvalidOption: it cannot be had.
    """
    if order_by is None:
        return None
    terms = terms_of(listed_terms(order_by, schema), schema)
    columns = tuple(name for name, _ in terms)
    if not columns or len(set(columns)) < len(columns):
        raise InvalidOption(
            f"order_by={order_by!r} must name at least one column, and each once", option="order_by"
        )
    if len({descending for _, descending in terms}) > 1:
        raise InvalidOption(
            f"order_by={order_by!r} needs one direction, or a limit of up to 10,000 rows",
            option="order_by",
        )
    return Order(columns, terms[0][1])


def listed_terms(order_by: Any, schema: pa.Schema) -> Any:
    """Return the terms of an order that may be one text."""
    if not isinstance(order_by, str):
        return order_by
    return [order_by] if order_by in schema.names else order_by.split(",")


def terms_of(order_by: Any, schema: pa.Schema) -> list[tuple[str, bool]]:
    """Return the columns of a list of terms, and which of them go down. Raises as `order_of` does."""
    return [_term(text, schema) for text in arguments.names("order_by", order_by)]


def _term(text: str, schema: pa.Schema) -> tuple[str, bool]:
    """Return a column, and whether its values come from the highest to the lowest."""
    name, descending = text.strip(), False
    words = name.rsplit(maxsplit=1)
    if name not in schema.names and len(words) == 2 and words[1].upper() in _DIRECTIONS:
        name, descending = words[0], _DIRECTIONS[words[1].upper()]
    name = _without_quotes(name, schema)
    if name not in schema.names:
        hint = suggest(name, schema.names) or "; a term is a column, or 'column DESC'"
        raise NotFound(
            f"order_by names a column {name!r}, which is not there{hint}", column=name, kind="column"
        )
    return name, descending


def _without_quotes(name: str, schema: pa.Schema) -> str:
    """Return a column's name that may stand between backquotes, as in a condition."""
    bare = name[1:-1].replace("``", "`")
    quoted = len(name) > 2 and name[0] == name[-1] == "`"
    return bare if quoted and name not in schema.names and bare in schema.names else name


def whole_order(index: IndexInfo, table: TableInfo, descending: bool) -> Order:
    """All columns that an index's entries are in the order of."""
    return Order(tuple(dict.fromkeys((*index.columns, *table.primary_key))), descending)


def indexes_in_order(
    order: Order, table: TableInfo, indexes: Sequence[IndexInfo], name: str | None
) -> list[IndexInfo]:
    """Return the indexes that give an order, of all or of the one named; never none.

    Raises:
        NotFound, NotReady, InvalidOption: there is none, or not yet, or the one named has
            another order.
    """
    fitting = [index for index in indexes if name in (None, index.name) and _gives(index, table, order)]
    if any(index.ready for index in fitting):
        return [index for index in fitting if index.ready]
    if fitting:
        raise NotReady(
            f"index {fitting[0].name!r} of table {table.name!r} is still being built; wait for it, or call "
            "create_index again if its build was killed",
            index=fitting[0].name,
            kind="index",
        )
    named = next((index for index in indexes if index.name == name), None)
    if named is not None:
        has = "has no order, as it is a hash index"
        if named.kind == SORTED:
            has = f"is in the order of {whole_order(named, table, False)}"
        raise InvalidOption(
            f"order_by={str(order)!r} cannot be had by index {name!r}, which {has}; leave 'index' out to "
            "have the fitting one taken",
            option="index",
        )
    if name is not None:
        return []  # the look-up of that name raises, and lists the indexes
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
