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
from dataclasses import dataclass

from elasticscan.base.errors import NotSupported
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader, Token, quoted, tokens_of

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

    def refused(self, why: str) -> NotSupported:
        why = f"{self.kind} of table {self.view!r} did nothing: {why}"
        return NotSupported(why, statement=self.kind, table=self.view)


def statement_about(text: str, views: Iterable[str]) -> Statement | None:
    """Return the statement about a table of the views; None for statements that Spark carries out.

    Raises:
        NotSupported: it is a CREATE TABLE with OR REPLACE, or with a schema's name.
    """
    tokens, by_name = tokens_of(text), {view.lower(): view for view in views}
    reader = StatementReader(text, tokens)
    try:
        if reader.takes("CREATE"):
            return _creation(reader, tokens)
        kind = next((words for words in _KINDS if reader.takes(*words.split())), None)
        is_lenient = reader.takes("IF", "EXISTS")
        view = None if kind is None else view_of(reader.name(), by_name)
    except NotUnderstoodError:
        return None
    if kind is None or view is None:
        return None
    return Statement(kind.removesuffix(" FROM").removesuffix(" INTO"), view, is_lenient, reader)


def _creation(reader: StatementReader, tokens: Sequence[Token]) -> Statement | None:
    """Return a CREATE TABLE of a table of the store."""
    replaces = reader.takes("OR", "REPLACE")
    reader.takes("EXTERNAL")
    reader.expect("TABLE")
    is_lenient = reader.takes("IF", "NOT", "EXISTS")
    name = reader.name()
    if not _is_of_the_store(name, tokens[reader.at :]):
        return None
    made = Statement("CREATE TABLE", name[-1], is_lenient, reader)
    if replaces:
        raise made.refused("OR REPLACE is not supported; drop the table first, or use INSERT OVERWRITE")
    if len(name) > 1:
        raise made.refused(f"tables of a store have no schema; write CREATE TABLE {name[-1]}")
    return made


def _is_of_the_store(name: Sequence[str], behind: Sequence[Token]) -> bool:
    """Return True for a new table of our format, or of a plain name without a format."""
    words, depth = [token.upper for token in behind], 0
    is_plain = len(name) == 1 and not (name[0].upper() == "IDENTIFIER" and words[:1] == ["("])
    for word, following in zip(words, [*words, ""][1:], strict=True):
        depth += (word == "(") - (word == ")")
        if depth == 0 and word == "USING":
            return following == "ELASTICSCAN"
        if depth == 0 and word in _OF_SPARK:
            is_plain = False
        if depth == 0 and word in _QUERY:
            break
    return is_plain


def view_of(name: Sequence[str], by_name: Mapping[str, str]) -> str | None:
    """Return the view that a name means; None if it means none."""
    if not name or (name[:-1] and {part.lower() for part in name[:-1]} not in _VIEW_SCHEMAS):
        return None
    return by_name.get(name[-1].lower())


# INSERT INTO that leaves columns out


@dataclass(frozen=True, slots=True)
class Insertion:
    """An INSERT INTO some columns of a table of the store.

    Attributes:
        view: the table's name here.
        columns: its column list, as the table spells it.
        before, behind: the statement's text up to the table's name, and after it.
    """

    view: str
    columns: tuple[str, ...]
    before: str
    behind: str

    def into(self, relation: str) -> str:
        """Return the statement with a relation of the columns in the place of the table."""
        return f"{self.before}{quoted(relation)} {self.behind}"


def insertion(text: str, tables: Mapping[str, Sequence[str]]) -> Insertion | None:
    """Return the INSERT that a text is, if it leaves columns out; `tables` are columns by view.

    Raises:
        NotSupported: its columns are unknown, or it stands among other statements; nothing was done.
    """
    tokens, by_name = tokens_of(text), {view.lower(): view for view in tables}
    found: Insertion | None = None
    if tokens and tokens[0].upper == "EXPLAIN":
        return None
    for at in range(len(tokens)):
        reader = StatementReader(text, tokens, at)
        if not reader.takes("INSERT", "INTO"):
            continue
        try:
            reader.takes("TABLE")
            name = reader.at
            view, behind = view_of(reader.name(), by_name), reader.at
            by_query = reader.takes("BY", "NAME")
            listed = None if by_query else reader.names()
        except NotUnderstoodError:
            continue
        if view is None or reader.at_end:
            continue
        columns = () if listed is None else _as_spelt(listed, tables[view])
        if columns is None:
            continue
        if by_query or tokens[0].upper not in _ALONE or found is not None:
            hint = "list the columns" if by_query else "give all columns, or run it by itself"
            raise NotSupported(
                f"INSERT INTO {view} might empty columns that it leaves out; {hint}",
                statement="INSERT",
                table=view,
            )
        found = Insertion(view, columns, text[: tokens[name].start], text[tokens[behind].start :])
    return found


def _as_spelt(listed: Sequence[str], columns: Sequence[str]) -> tuple[str, ...] | None:
    """Return the columns of a list; None unless they are some of the table's, each once, and not all."""
    by_name = {name.lower(): name for name in columns}
    named = {name.lower() for name in listed}
    if len(named) < len(listed) or not named < by_name.keys():
        return None
    return tuple(name for name in columns if name.lower() in named)
