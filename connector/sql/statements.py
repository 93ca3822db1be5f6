"""Statements about a table of the store, recognised in the text before Spark sees it.

To Spark the tables of a store are temporary views: `DROP TABLE t` would drop the view and leave the table.
`statement_about` reads the statement's first words and the name behind them. It finds the statements that the
store carries out, and leaves the rest to Spark.

Spark fills the missing columns of an INSERT with nulls, and its rows replace existing rows. So a statement
whose column list lacks columns of a table (`insertion`) is given a relation of the table that has the other
columns alone: under that name it is Spark's, with its casts and its errors, and the rows arrive without the
columns that they lack, which are kept (the option `partialUpdate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elasticscan.base.errors import InvalidCall
from elasticscan.connector.sql.tokens import (
    NotUnderstoodError,
    StatementReader,
    keyword,
    quoted,
    tokens_of,
)

if TYPE_CHECKING:
    from sqlglot.tokenizer_core import Token

# Statements that the store carries out, by their first words.
_KINDS = ("DROP TABLE", "TRUNCATE TABLE", "ALTER TABLE", "DELETE FROM", "UPDATE", "MERGE INTO")
# Words behind the name of a table of Spark's own, and words that begin a query.
_OF_SPARK = frozenset({"STORED", "ROW", "LIKE"})
_QUERY = frozenset({"AS", "SELECT", "WITH", "FROM", "VALUES", "TABLE"})
_ALONE = ("INSERT", "WITH", "FROM")
# Schemas under which Spark finds a temporary view, too.
_VIEW_SCHEMAS = ({"session"}, {"system", "session"})


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A statement about a table of the store, which Spark does not get.

    Attributes:
        kind: its first words: "DROP TABLE", "UPDATE", …
        view: the table's name here.
        is_lenient: whether a table to drop may be missing, and a new one be there.
        reader: continues behind the table's name.
    """

    kind: str
    view: str
    is_lenient: bool
    reader: StatementReader

    def with_text(self, text: str) -> Statement:
        """Return the statement with another text, whose words up to the table's name are the same."""
        return replace(self, reader=StatementReader(text, tokens_of(text), self.reader.at))

    def refused(self, why: str) -> NotSupported:
        why = f"{self.kind} of table {self.view!r} did nothing: {why}"
        return InvalidCall(why, statement=self.kind, table=self.view)


def statement_about(text: str, views: Iterable[str]) -> Statement | None:
    """Return the statement about a table of the views; None for statements that Spark carries out.

    Raises:
        InvalidCall: it is a CREATE TABLE with OR REPLACE, or with a schema's name.
    """
    try:
        tokens = tokens_of(text)
        reader = StatementReader(text, tokens)
        if reader.accept("CREATE"):
            return _creation(reader, tokens)
        kind = reader.choice(*_KINDS)
        is_lenient = reader.accept("IF", "EXISTS")
        view = None if kind is None else _view_of(reader.name_list("."), views)
    except NotUnderstoodError:
        return None
    if kind is None or view is None:
        return None
    return Statement(kind.removesuffix(" FROM").removesuffix(" INTO"), view, is_lenient, reader)


def _creation(reader: StatementReader, tokens: Sequence[Token]) -> Statement | None:
    """Return a CREATE TABLE of a table of the store."""
    replaces = reader.accept("OR", "REPLACE")
    reader.accept("EXTERNAL")
    reader.expect("TABLE")
    is_lenient = reader.accept("IF", "NOT", "EXISTS")
    name = reader.name_list(".")
    if not _is_of_the_store(name, tokens[reader.at :]):
        return None
    made = Statement("CREATE TABLE", name[-1], is_lenient, reader)
    if replaces:
        raise made.refused("OR REPLACE is not supported; drop the table first, or use INSERT OVERWRITE")
    if len(name) > 1:
        raise made.refused(f"tables of a store have no schema; write CREATE TABLE {name[-1]}")
    return made


def _is_of_the_store(name: Sequence[str], behind: Iterable[Token]) -> bool:
    """Return True for a new table of our format, or of a plain name without a format."""
    words, depth = list[str](), 0
    for word in map(keyword, behind):
        depth += (word == "(") - (word == ")")
        if not depth and word in _QUERY:
            break
        words += [] if depth else [word]
    if "USING" in words:
        return words[words.index("USING") :][1:2] == ["ELASTICSCAN"]
    return len(name) == 1 and name[0].upper() != "IDENTIFIER" and _OF_SPARK.isdisjoint(words)


def _view_of(name: Sequence[str], views: Iterable[str]) -> str | None:
    """Return the view that a name means; None if it means none."""
    if name[:-1] and {part.lower() for part in name[:-1]} not in _VIEW_SCHEMAS:
        return None
    return next((view for view in views if view.lower() == name[-1].lower()), None)


# INSERT INTO that leaves columns out


def insertion(
    text: str, tables: Mapping[str, Sequence[str]], relation: str
) -> tuple[str, tuple[str, ...], str] | None:
    """Return the table, the columns and the text of the INSERT that a text is, if it leaves columns out.

    Args:
        text: the statement.
        tables: columns by view.
        relation: the name that stands in the new text in the place of the table's.

    Raises:
        InvalidCall: its columns are unknown, or it stands among other statements; nothing was done.
    """
    try:
        tokens = tokens_of(text)
    except NotUnderstoodError:
        return None
    found = None
    for at in range(len(tokens)):
        reader = StatementReader(text, tokens, at)
        if not reader.accept("INSERT", "INTO"):
            continue
        try:
            reader.accept("TABLE")
            name = reader.at
            view, behind = _view_of(reader.name_list("."), tables), reader.at
            by_query = reader.accept("BY", "NAME")
            listed = [] if by_query else reader.names_in_parentheses()
        except NotUnderstoodError:
            continue
        if view is None or reader.at_end:
            continue
        lower = {each.lower() for each in listed}
        columns = tuple(each for each in tables[view] if each.lower() in lower)
        if not len(listed) == len(columns) < len(tables[view]):
            continue  # Spark knows what is wrong, or nothing is left out
        if by_query or keyword(tokens[0]) not in _ALONE or found is not None:
            hint = "list the columns" if by_query else "give all columns, or run it by itself"
            raise InvalidCall(
                f"INSERT INTO {view} might empty columns that it leaves out; {hint}",
                statement="INSERT",
                table=view,
            )
        new = f"{text[: tokens[name].start]}{quoted(relation)} {text[tokens[behind].start :]}"
        found = view, columns, new
    return found
