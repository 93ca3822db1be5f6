"""Statements about a table of the store, recognised in the text before Spark sees it.

To Spark the tables of a store are temporary views: `DROP TABLE t` would drop the view and leave the table.
`statement_about` reads the statement's first words and the name behind them. It finds the statements that the
store carries out, refuses others that would change or hide the view of a table, and leaves the rest to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elasticscan.base.errors import NotSupported
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader, Token, tokens_of

# Statements that the store carries out, by their first words.
_KINDS = ("DROP TABLE", "TRUNCATE TABLE", "ALTER TABLE", "ALTER VIEW", "DELETE FROM", "UPDATE", "MERGE INTO")
# Words behind the name of a table of Spark's own, and words that begin a query.
_OF_SPARK = frozenset({"STORED", "ROW", "LIKE"})
_QUERY = frozenset({"AS", "SELECT", "WITH", "FROM", "VALUES", "TABLE"})
_HIDDEN = "the store has a table of this name; choose another name"
# Schemas under which Spark finds a temporary view, too.
_VIEW_SCHEMAS = ({"session"}, {"system", "session"})


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A statement about a table of the store, which Spark does not get.

    Attributes:
        kind: its first words: "DROP TABLE", "UPDATE", …
        view: the table's name here; empty for a new table.
        if_exists: whether the table may be missing.
        reader: continues behind the table's name; for a new table at the first word.
    """

    kind: str
    view: str
    if_exists: bool
    reader: StatementReader

    def refused(self, why: str) -> NotSupported:
        about = f" of table {self.view!r}" if self.view else ""
        return NotSupported(f"{self.kind}{about} did nothing: {why}", statement=self.kind, table=self.view)


def statement_about(text: str, views: Iterable[str]) -> Statement | None:
    """Return the statement about a table of the views; None for statements that Spark carries out.

    Raises:
        NotSupported: Spark would change or hide the view of a table, and not the table.
    """
    tokens, by_name = tokens_of(text), {view.lower(): view for view in views}
    reader = StatementReader(text, tokens)
    try:
        if reader.takes("CREATE"):
            return _creation(reader, text, tokens, by_name)
        kind = next((words for words in _KINDS if reader.takes(*words.split())), None)
        if_exists = reader.takes("IF", "EXISTS")
        view = None if kind is None else view_of(reader.name(), by_name)
    except NotUnderstoodError:
        return None
    if kind is None or view is None:
        return None
    statement = Statement(kind.removesuffix(" FROM").removesuffix(" INTO"), view, if_exists, reader)
    if kind == "ALTER VIEW":
        raise statement.refused(_HIDDEN)
    return statement


def _creation(
    reader: StatementReader, text: str, tokens: Sequence[Token], by_name: Mapping[str, str]
) -> Statement | None:
    """Return a CREATE TABLE of a table of the store; refuse what would hide one."""
    reader.takes("OR", "REPLACE")
    of_session = reader.takes_one("GLOBAL TEMPORARY", "GLOBAL TEMP", "TEMPORARY", "TEMP")
    reader.takes("EXTERNAL")
    is_table = reader.takes("TABLE")
    if not is_table:
        reader.expect("VIEW")
    reader.takes("IF", "NOT", "EXISTS")
    name = reader.name()
    if is_table and not of_session and _is_of_the_store(name, tokens[reader.at :]):
        return Statement("CREATE TABLE", "", False, StatementReader(text, tokens))
    view = view_of(name, by_name)
    if view is not None:
        raise Statement("CREATE", view, False, reader).refused(_HIDDEN)
    return None


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
