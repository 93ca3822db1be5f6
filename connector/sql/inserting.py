"""INSERT INTO that leaves columns out: existing rows keep them.

Spark fills the missing columns of an INSERT with nulls, and its rows replace existing rows. So a column list
that lacks columns of a table, or a query of BY NAME that does, is written into a relation of the table that
has the other columns alone: under that name the statement is Spark's, with its casts and its errors, and the
rows arrive without the columns that they lack, which are kept (the option `partialUpdate`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from elasticscan.base.errors import NotSupported
from elasticscan.connector.sql.query import Session
from elasticscan.connector.sql.statements import view_of
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader, quoted, tokens_of

_ALONE = ("INSERT", "WITH", "FROM")


@dataclass(frozen=True, slots=True)
class Insertion:
    """An INSERT INTO a table of the store, within a text.

    Attributes:
        view: the table's name here.
        columns: its column list, as the table spells it; None for the columns of its query, BY NAME.
        insert, name, behind, query: where in the text it, the table's name, what follows that, and its query
            begin.
    """

    view: str
    columns: tuple[str, ...] | None
    insert: int
    name: int
    behind: int
    query: int


def insertions(text: str, tables: Mapping[str, Sequence[str]], session: Session) -> list[Insertion]:
    """Return the INSERTs of a text, at any depth, that may leave columns out; `tables` are columns by view.

    Raises:
        NotSupported: its columns are unknown; nothing was done.
    """
    tokens, by_name = tokens_of(text), {session.folded(view): view for view in tables}
    found = list[Insertion]()
    if tokens and tokens[0].upper == "EXPLAIN":
        return found
    for at, token in enumerate(tokens):
        if (token.upper, *(after.upper for after in tokens[at + 1 : at + 2])) != ("INSERT", "INTO"):
            continue
        reader = StatementReader(text, tokens, at + 2)
        try:
            reader.takes("TABLE")
            name = reader.at
            view, behind = view_of(reader.name(), by_name, session), reader.at
            by_query = reader.takes("BY", "NAME")
            listed = None if by_query else reader.names()
            columns = None if view is None else _as_spelt(listed, tables[view], session)
        except NotUnderstoodError:
            continue
        if view is None or reader.at_end or (listed is not None and columns is None):
            continue
        if by_query and is_script(text):
            raise NotSupported(
                f"INSERT INTO {view} BY NAME works only as a statement of its own; list the columns",
                statement="INSERT",
                table=view,
            )
        begins = (tokens[place].start for place in (at, name, behind, reader.at))
        found.append(Insertion(view, columns, *begins))
    return found


def is_script(text: str) -> bool:
    """Return True unless a text that has an INSERT is that statement alone."""
    tokens = tokens_of(text)
    return not tokens or tokens[0].upper not in _ALONE


def _as_spelt(
    listed: Sequence[str] | None, columns: Sequence[str], session: Session
) -> tuple[str, ...] | None:
    """Return the columns of a list; None unless they are some of the table's, each once, and not all."""
    by_name = {session.folded(name): name for name in columns}
    named = {session.folded(name) for name in listed or ()}
    if not named or len(named) < len(listed or ()) or not named < by_name.keys():
        return None
    return tuple(name for name in columns if session.folded(name) in named)


@contextmanager
def into_some_columns(
    spark: SparkSession,
    text: str,
    args: dict[str, Any] | list[Any] | None,
    found: Sequence[Insertion],
    target: Callable[[str, Sequence[str]], DataFrame | None],
) -> Iterator[str]:
    """Yield the text with relations of some columns in the places of tables, which are there in the block."""
    made, pieces, at = list[str](), list[str](), 0
    try:
        for each in found:
            names = each.columns
            if names is None:
                names = tuple(spark.sql(text[: each.insert] + text[each.query :], args).columns)
            relation = target(each.view, names)
            if relation is None:
                continue
            made.append(f"elasticscan_{uuid.uuid4().hex}")
            relation.createOrReplaceTempView(made[-1])
            pieces += [text[at : each.name], quoted(made[-1]), " "]
            at = each.behind
        yield "".join([*pieces, text[at:]])
    finally:
        for name in made:
            spark.sql(f"DROP VIEW IF EXISTS {quoted(name)}")
