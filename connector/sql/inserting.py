"""INSERT INTO that leaves columns out: existing rows keep them.

Spark fills the missing columns of an INSERT with nulls, and its rows replace existing rows. So a statement
whose column list lacks columns of a table is given a relation of the table that has the other columns alone:
under that name it is Spark's, with its casts and its errors, and the rows arrive without the columns that
they lack, which are kept (the option `partialUpdate`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elasticscan.base.errors import NotSupported
from elasticscan.connector.sql.statements import view_of
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader, quoted, tokens_of

_ALONE = ("INSERT", "WITH", "FROM")


@dataclass(frozen=True, slots=True)
class Insertion:
    """An INSERT INTO some columns of a table of the store.

    Attributes:
        view: the table's name here.
        columns: its column list, as the table spells it.
        text: the statement.
        name, behind: where in the text the table's name begins, and what follows that.
    """

    view: str
    columns: tuple[str, ...]
    text: str
    name: int
    behind: int

    def into(self, relation: str) -> str:
        """Return the statement with a relation of the columns in the place of the table."""
        return f"{self.text[: self.name]}{quoted(relation)} {self.text[self.behind :]}"


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
        found = Insertion(view, columns, text, tokens[name].start, tokens[behind].start)
    return found


def _as_spelt(listed: Sequence[str], columns: Sequence[str]) -> tuple[str, ...] | None:
    """Return the columns of a list; None unless they are some of the table's, each once, and not all."""
    by_name = {name.lower(): name for name in columns}
    named = {name.lower() for name in listed}
    if len(named) < len(listed) or not named < by_name.keys():
        return None
    return tuple(name for name in columns if name.lower() in named)
