"""Statements about a table of the store, found in the text before Spark reads it.

In Spark the tables of a store are temporary views: `DROP TABLE t` would drop the view and keep the table.
`statement_about` reads the first words of a statement and the name after them. It returns statements that the
store executes; Spark executes all others.

Spark fills the missing columns of an INSERT with nulls, and the new rows would replace existing rows. So an
INSERT whose column list lacks columns of the table (`insertion`) goes to Spark with another name of the
table: a relation that has only the listed columns, with the option `partialUpdate`. Existing rows keep the
others.
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

# The first words of statements that the store executes.
_KINDS = ("DROP TABLE", "TRUNCATE TABLE", "ALTER TABLE", "DELETE FROM", "UPDATE", "MERGE INTO")
# Words in a CREATE TABLE that only tables of Spark have, and words that begin a query.
_OF_SPARK = frozenset({"STORED", "ROW", "LIKE"})
_QUERY = frozenset({"AS", "SELECT", "WITH", "FROM", "VALUES", "TABLE"})
_ALONE = ("INSERT", "WITH", "FROM")
# Qualifiers under which Spark finds a temporary view, too.
_VIEW_SCHEMAS = ({"session"}, {"system", "session"})


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A statement about a table, which the store executes.

    Attributes:
        kind: the first words: "DROP TABLE", "UPDATE", …
        view: the name of the table's view.
        is_lenient: whether the statement has IF EXISTS or IF NOT EXISTS.
        reader: the reader of the statement, after the table's name.
    """

    kind: str
    view: str
    is_lenient: bool
    reader: StatementReader

    def with_text(self, text: str) -> Statement:
        """Return the statement with another text, which has the same words up to the table's name."""
        return replace(self, reader=StatementReader(text, tokens_of(text), self.reader.at))

    def refused(self, why: str) -> InvalidCall:
        why = f"{self.kind} of table {self.view!r} did nothing: {why}"
        return InvalidCall(why, statement=self.kind, table=self.view)


def statement_about(text: str, views: Iterable[str]) -> Statement | None:
    """Return a statement that the store executes; None for a statement that Spark executes.

    Raises:
        InvalidCall: a CREATE TABLE has OR REPLACE, or the name of a schema.
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
    """Return a CREATE TABLE that the store executes."""
    replaces = reader.accept("OR", "REPLACE")
    reader.accept("EXTERNAL")
    reader.expect("TABLE")
    is_lenient = reader.accept("IF", "NOT", "EXISTS")
    name = reader.name_list(".")
    if not _is_of_the_store(name, tokens[reader.at :]):
        return None
    creation = Statement("CREATE TABLE", name[-1], is_lenient, reader)
    if replaces:
        raise creation.refused("OR REPLACE is not supported; drop the table first, or use INSERT OVERWRITE")
    if len(name) > 1:
        raise creation.refused(f"tables of a store have no schema; write CREATE TABLE {name[-1]}")
    return creation


def _is_of_the_store(name: Sequence[str], following: Iterable[Token]) -> bool:
    """Return True for a table USING elasticscan, or a plain name without USING."""
    words, depth = list[str](), 0
    for word in map(keyword, following):
        depth += (word == "(") - (word == ")")
        if not depth and word in _QUERY:
            break
        words += [] if depth else [word]
    if "USING" in words:
        return words[words.index("USING") :][1:2] == ["ELASTICSCAN"]
    return len(name) == 1 and name[0].upper() != "IDENTIFIER" and _OF_SPARK.isdisjoint(words)


def _view_of(name: Sequence[str], views: Iterable[str]) -> str | None:
    """Return the view with a name, or None."""
    if name[:-1] and {part.lower() for part in name[:-1]} not in _VIEW_SCHEMAS:
        return None
    return next((view for view in views if view.lower() == name[-1].lower()), None)


# INSERT INTO that leaves columns out


def insertion(
    text: str, tables: Mapping[str, Sequence[str]], relation: str
) -> tuple[str, tuple[str, ...], str] | None:
    """Return (view, listed columns, new text) of an INSERT without all columns; None for another statement.

    Args:
        text: the statement.
        tables: columns by view.
        relation: the name of the table in the new text.

    Raises:
        InvalidCall: the statement is BY NAME, or has several parts that write; nothing was done.
    """
    try:
        tokens = tokens_of(text)
    except NotUnderstoodError:
        return None
    insert = None
    for at in range(len(tokens)):
        reader = StatementReader(text, tokens, at)
        if not reader.accept("INSERT", "INTO"):
            continue
        try:
            reader.accept("TABLE")
            name = reader.at
            view, after_name = _view_of(reader.name_list("."), tables), reader.at
            by_query = reader.accept("BY", "NAME")
            listed = [] if by_query else reader.names_in_parentheses()
        except NotUnderstoodError:
            continue
        if view is None or reader.at_end:
            continue
        lower = {each.lower() for each in listed}
        columns = tuple(each for each in tables[view] if each.lower() in lower)
        if not len(listed) == len(columns) < len(tables[view]):
            continue  # all columns are listed, or Spark will report an error
        if by_query or keyword(tokens[0]) not in _ALONE or insert is not None:
            hint = "list the columns" if by_query else "give all columns, or run it by itself"
            raise InvalidCall(
                f"INSERT INTO {view} might empty columns that it leaves out; {hint}",
                statement="INSERT",
                table=view,
            )
        new = f"{text[: tokens[name].start]}{quoted(relation)} {text[tokens[after_name].start :]}"
        insert = view, columns, new
    return insert
