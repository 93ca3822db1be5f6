"""Statements about a table of the store, recognised in the text before Spark sees it.

To Spark the tables of a store are temporary views: `DROP TABLE t` would drop the view and leave the table.
`statement_about` reads the statement's first words and the name behind them. It finds the statements that the
store carries out, refuses others that would change or hide the view of a table, and leaves the rest to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elasticscan.base.errors import NotSupported
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader, Token, tokens_of

_IF = r"(?:IF (?:NOT )?EXISTS )?"
# Statements, and what each begins with, up to the name of the table; the first match counts.
_STATEMENTS = (
    ("DROP TABLE", rf"DROP TABLE {_IF}"),
    ("TRUNCATE TABLE", r"TRUNCATE TABLE "),
    ("ALTER TABLE", rf"ALTER TABLE {_IF}"),
    ("ALTER VIEW", rf"ALTER VIEW {_IF}"),
    ("DELETE", r"DELETE FROM "),
    ("UPDATE", r"UPDATE "),
    ("MERGE", r"MERGE INTO "),
    ("CREATE",
        rf"CREATE (?:OR REPLACE )?(?:GLOBAL )?(?:TEMPORARY |TEMP )?(?:EXTERNAL )?(?:TABLE|VIEW) {_IF}"),
)  # fmt: skip
# Spark would carry these out on the view, or put another view in its place.
_HIDING = frozenset({"ALTER VIEW", "CREATE"})
_NEW_TABLE = re.compile(r"CREATE (?:OR REPLACE )?(?:EXTERNAL )?TABLE .*\bUSING ELASTICSCAN ")
_NEW = re.compile(rf"CREATE (?:OR REPLACE )?TABLE {_IF}")
# Words behind the name of a table of Spark's own, and words that begin a query.
_OF_SPARK = frozenset({"USING", "STORED", "ROW", "LIKE"})
_QUERY = frozenset({"AS", "SELECT", "WITH", "FROM", "VALUES", "TABLE"})
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
    by_name = {view.lower(): view for view in views}
    tokens = tokens_of(text)
    line = " ".join(token.word if token.kind == "word" else "" for token in tokens).upper() + " "
    if _NEW_TABLE.match(line) or _is_of_no_format(line, tokens):
        return Statement("CREATE TABLE", "", False, StatementReader(text, tokens))
    for kind, beginning in _STATEMENTS:
        match = re.match(beginning, line)
        if match is None:
            continue
        reader = StatementReader(text, tokens, match.group().count(" "))
        try:
            view = view_of(reader.name(), by_name)
        except NotUnderstoodError:
            break
        if view is None:
            continue
        statement = Statement(kind, view, "IF EXISTS" in match.group(), reader)
        if kind in _HIDING:
            raise statement.refused("the store has a table of this name; choose another name")
        return statement
    return None


def _is_of_no_format(line: str, tokens: Sequence[Token]) -> bool:
    """Return True for a CREATE TABLE of a plain name without a format: it makes a table of the store."""
    match = _NEW.match(line)
    if match is None:
        return False
    reader, depth = StatementReader(line, tokens, match.group().count(" ")), 0
    try:
        name = reader.name()
    except NotUnderstoodError:
        return False
    if len(name) != 1 or (name[0].upper() == "IDENTIFIER" and reader.sees("(")):
        return False
    for token in tokens[reader.at :]:
        depth += (token.upper == "(") - (token.upper == ")")
        if depth == 0 and token.upper in _OF_SPARK | _QUERY:
            return token.upper in _QUERY
    return True


def view_of(name: Sequence[str], by_name: Mapping[str, str]) -> str | None:
    """Return the view that a name means; None if it means none."""
    if not name or (name[:-1] and {part.lower() for part in name[:-1]} not in _VIEW_SCHEMAS):
        return None
    return by_name.get(name[-1].lower())
