"""DELETE, UPDATE and MERGE as queries of the rows that they write.

    DELETE FROM t WHERE c              the keys of the rows that meet c
    UPDATE t SET a = x WHERE c         the rows that meet c, with x in place of a
    MERGE INTO t USING s ON c WHEN …   rows of a join of t and s, each as the first clause that fits says

A query has one more column, `ACTION`: the number of the action on the row. Conditions and values are copied
as they were written, so Spark gives them their meaning, and columns that they do not need are not read, as in
any query. The statement is the write of these rows, at the snapshot at which they were read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from elasticscan.connector.sql.joins import conjuncts
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader, quoted, tokens_of
from elasticscan.filters import STUMBLES, FilterSql
from elasticscan.metadata import TableInfo

OWN = "_elasticscan_"  # the prefix of columns that are added to a query
ACTION = f"{OWN}action"
_SOURCE = f"{OWN}source"  # true in rows of a MERGE that have a row of the source
DELETE, UPDATE, INSERT = "deleted", "updated", "inserted"
_TIMES_PAST = ("VERSION AS OF", "SYSTEM_VERSION AS OF", "TIMESTAMP AS OF", "SYSTEM_TIME AS OF")
_NO_ALIAS = frozenset({"SET", "WHERE", "ON", "WHEN", "USING", "FROM", "LIMIT", "ORDER", "RETURNING"})


@dataclass(frozen=True, slots=True)
class RowChange:
    """A statement as a query of the rows that it writes.

    Attributes:
        query: the columns to write and `ACTION`; rows in which that is null are not written.
        actions: the action of each number: `DELETE`, `UPDATE` or `INSERT`.
        set: the new values of an UPDATE as texts, by column.
    """

    query: str
    actions: tuple[str, ...]
    set: Mapping[str, str] | None = None


def read_change(statement: str, reader: StatementReader, view: str, table: TableInfo) -> RowChange:
    """Read a DELETE, UPDATE or MERGE from behind the table's name.

    Raises:
        NotUnderstoodError: the text is no such statement, or changes a key.
    """
    reading = _ChangeReading(reader, view, table)
    change = CHANGES[statement](reading)
    reader.expect_end()
    return change


@dataclass(frozen=True, slots=True)
class _Clause:
    """One WHEN of a MERGE: the action on some rows.

    Attributes:
        of: a condition that selects its rows.
        joins_source, joins_target: whether they have a row of the source, of the table.
        action: `DELETE`, `UPDATE` or `INSERT`.
        new: values by column.
    """

    of: str
    joins_source: bool
    joins_target: bool
    action: str
    new: Mapping[str, str]


class _ChangeReading:
    """The reading of a statement from behind the table's name, which may have an alias."""

    def __init__(self, reader: StatementReader, view: str, table: TableInfo) -> None:
        self.reader, self.view = reader, view
        self.columns: Sequence[str] = table.schema.names
        self.key = table.primary_key
        self.alias = reader.alias(_NO_ALIAS) or view

    def delete(self) -> RowChange:
        return RowChange(self.select([_as(self.own(name), name) for name in self.key]), (DELETE,))

    def update(self) -> RowChange:
        self.reader.expect("SET")
        new = self.assignments("WHERE")
        self.check_keys_stay(new, {})
        values = {name: _value(text) for name, text in new.items()}
        columns = [_as(values.get(name) or self.own(name), name) for name in self.columns]
        return RowChange(self.select(columns), (UPDATE,), new)

    def select(self, columns: Sequence[str]) -> str:
        """Return the query of rows of the table, with the statement's WHERE."""
        where = f" WHERE {_value(self.reader.until())}" if self.reader.takes("WHERE") else ""
        shown = ", ".join([*columns, f"0 AS {ACTION}"])
        return f"SELECT {shown} FROM {quoted(self.view)} AS {quoted(self.alias)}{where}"

    def own(self, name: str) -> str:
        return f"{quoted(self.alias)}.{quoted(name)}"

    def column(self, parts: Sequence[str]) -> str:
        """Return the assigned column: `a`, or behind the table's name or alias."""
        if len(parts) > 1 and (len(parts) > 2 or parts[0].lower() != self.alias.lower()):
            raise NotUnderstoodError(f"{'.'.join(parts)} is not a column; assign to whole columns")
        for name in self.columns:
            if name.lower() == parts[-1].lower():
                return name
        raise NotUnderstoodError(f"the table has no column {parts[-1]}; it has {', '.join(self.columns)}")

    def assignments(self, stop: str) -> dict[str, str]:
        new: dict[str, str] = {}
        while True:
            name = self.column(self.reader.name())
            if name in new:
                raise NotUnderstoodError(f"column {name} is set twice")
            self.reader.expect("=")
            new[name] = self.reader.until(",", stop)
            if not self.reader.takes(","):
                return new

    def check_keys_stay(self, new: Mapping[str, str], equal: Mapping[str, str]) -> None:
        for name in self.key:
            if name in new and _folded(new[name]) != equal.get(name):
                raise NotUnderstoodError(
                    f"column {name} belongs to the primary key; insert rows with new keys and delete the old "
                    "rows"
                )

    # MERGE

    def merge(self) -> RowChange:
        reader = self.reader
        reader.expect("USING")
        source, alias = self.source()
        reader.expect("ON")
        on = reader.until("WHEN")
        equal, nothing_else = self.equal_keys(on)
        clauses = []
        while reader.takes("WHEN"):
            clause = self.clause(alias)
            if clause.action == UPDATE:
                self.check_keys_stay(clause.new, equal)
                # Rows keep the table's own keys: those of the source may have another type.
                new = {name: text for name, text in clause.new.items() if name not in self.key}
                clause = replace(clause, new=new)
            elif clause.action == INSERT:
                keys = [_folded(clause.new.get(name, "")) == equal.get(name) for name in self.key]
                if not (nothing_else and all(keys)):
                    raise NotUnderstoodError(
                        "it might insert an existing key; compare the primary key, and nothing else, in ON"
                    )
            clauses.append(clause)
        if not clauses:
            raise reader.wrong("WHEN")
        joined = f"(SELECT *, TRUE AS {_SOURCE} FROM {source}\n) AS {quoted(alias)} ON {_value(on)}"
        return RowChange(self.merged(joined, clauses), tuple(clause.action for clause in clauses))

    def source(self) -> tuple[str, str]:
        """Return the text of the source, and the name that qualifies its columns."""
        reader, alias = self.reader, None
        start = reader.at
        if reader.takes("("):
            reader.until(")")
            reader.expect(")")
        else:
            alias = reader.name()[-1]
            reader.takes("FOR")
            if reader.takes_one(*_TIMES_PAST):
                reader.value()
        alias = reader.alias(_NO_ALIAS) or alias
        if alias is None:
            raise reader.wrong("a name for the source")
        if reader.sees("("):
            reader.names()  # of its columns
        return reader.text_since(start), alias

    def clause(self, source: str) -> _Clause:
        reader = self.reader
        matched = not reader.takes("NOT")
        reader.expect("MATCHED")
        by_source = not matched and reader.takes("BY", "SOURCE")
        if not matched and not by_source:
            reader.takes("BY", "TARGET")
        joins_source, joins_target = not by_source, matched or by_source
        marks = [f"{_SOURCE} IS {'NOT ' if joins_source else ''}NULL"]
        marks.append(f"{self.own(self.key[0])} IS {'NOT ' if joins_target else ''}NULL")
        seen = None if matched else self.alias if by_source else source
        if reader.takes("AND"):
            marks.append(_value(self.qualified(reader.until("THEN"), seen)))
        reader.expect("THEN")
        action, new = self.action(source, joins_target)
        new = {name: self.qualified(text, seen) for name, text in new.items()}
        return _Clause(" AND ".join(marks), joins_source, joins_target, action, new)

    def action(self, source: str, joins_target: bool) -> tuple[str, Mapping[str, str]]:
        reader = self.reader
        whole = {name: f"{quoted(source)}.{quoted(name)}" for name in self.columns}
        if joins_target and reader.takes("DELETE"):
            return DELETE, {}
        if joins_target and reader.takes("UPDATE", "SET"):
            return UPDATE, whole if reader.takes("*") else self.assignments("WHEN")
        if joins_target:
            raise reader.wrong("UPDATE SET or DELETE")
        reader.expect("INSERT")
        if reader.takes("*"):
            return INSERT, whole
        names = [self.column([name]) for name in reader.names()] if reader.sees("(") else self.columns
        reader.expect("VALUES", "(")
        new: dict[str, str] = {}
        for name in names:
            if new:
                reader.expect(",")
            new[name] = reader.until(",", ")")
        reader.expect(")")
        if len(new) < len(names):
            raise NotUnderstoodError("INSERT names a column twice")
        return INSERT, new

    def merged(self, source: str, clauses: Sequence[_Clause]) -> str:
        """Return the join, each of its rows with the number of the first clause that applies."""
        choice = " ".join(f"WHEN {clause.of} THEN {number}" for number, clause in enumerate(clauses))
        only_deletes = all(clause.action == DELETE for clause in clauses)
        once = only_deletes and len(clauses) == 1  # whichever row of the source it is that deletes
        columns = []
        for name in self.key if only_deletes else self.columns:
            values = []
            for number, clause in enumerate(clauses):
                keeps = clause.action == UPDATE or (clause.joins_target and name in self.key)
                text = clause.new.get(name, self.own(name) if keeps else None)
                values += [] if text is None else [f"WHEN {number} THEN {_value(text)}"]
            columns.append(_as(f"CASE {ACTION} {' '.join(values)} END" if values else "NULL", name))
        outer = "LEFT" * any(not clause.joins_source for clause in clauses)
        if any(not clause.joins_target for clause in clauses):
            outer = "FULL" if outer else "RIGHT"
        return (
            f"SELECT {'DISTINCT ' if once else ''}CASE {choice} END AS {ACTION}, {', '.join(columns)}\n"
            f"FROM {quoted(self.view)} AS {quoted(self.alias)} {outer or 'INNER'} JOIN {source}"
        )

    def equal_keys(self, on: str) -> tuple[dict[str, str], bool]:
        """Return the columns of the source that a condition compares with the primary key, folded, and
        whether it compares nothing else."""
        tree = _tree(on)
        parts = [] if tree is None else list(conjuncts(tree))
        equal = {}
        for part in parts:
            sides = [part.this.unnest(), part.expression.unnest()] if isinstance(part, exp.EQ) else []
            if not sides or not all(isinstance(side, exp.Column) for side in sides):
                continue
            for own, other in (sides, sides[::-1]):
                for name in self.key:
                    if (own.table.lower(), own.name.lower()) == (self.alias.lower(), name.lower()):
                        equal[name] = _folded(other.sql(dialect=FilterSql))
        return equal, len(equal) == len(self.key) == len(parts)

    def qualified(self, text: str, alias: str | None) -> str:
        """Put an alias before columns of both sides: a clause without a match sees one side alone."""
        tree = None if alias is None else _tree(text)
        if alias is None or tree is None:
            return text
        columns, places = {name.lower() for name in self.columns}, []
        for node in tree.find_all(exp.Column):
            at = node.this.meta.get("start")
            is_own = not node.table and not node.find_ancestor(exp.Query, exp.Lambda)
            if is_own and node.name.lower() in columns and isinstance(at, int):
                places.append(at)
        for at in sorted(places, reverse=True):
            text = f"{text[:at]}{quoted(alias)}.{text[at:]}"
        return text


def _tree(text: str) -> exp.Expr | None:
    try:
        return parse_one(text, dialect=FilterSql)
    except (SqlglotError, RecursionError, *STUMBLES):
        return None


def _folded(text: str) -> str:
    """Normalise a text for comparison: words and names without quotes, one space between them."""
    words = (token.word if token.kind == "text" else token.word.lower() for token in tokens_of(text))
    return " ".join(word.replace(" ", "\0") for word in words)


def _value(text: str) -> str:
    return "NULL" if text.upper() == "DEFAULT" else f"({text}\n)"  # a comment may be at its end


def _as(text: str, name: str) -> str:
    return f"{text} AS {quoted(name)}"


CHANGES = {"DELETE": _ChangeReading.delete, "UPDATE": _ChangeReading.update, "MERGE": _ChangeReading.merge}
