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

OWN = "_elasticscan_"  # the prefix of columns that are added to a query
ACTION = f"{OWN}action"
_SOURCE = f"{OWN}source"  # true in rows of a MERGE that have a row of the source
DELETE, UPDATE, INSERT = "deleted", "updated", "inserted"
_TIMES_PAST = ("VERSION AS OF", "SYSTEM_VERSION AS OF", "TIMESTAMP AS OF", "SYSTEM_TIME AS OF")
_NO_ALIAS = frozenset({"SET", "WHERE", "ON", "WHEN", "USING", "FROM", "LIMIT", "ORDER", "RETURNING"})


@dataclass(frozen=True, slots=True)
class Target:
    """The table that a statement changes.

    Attributes:
        view: its name in SQL.
        columns, key: its columns, and those of its primary key.
    """

    view: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    def column(self, parts: Sequence[str], alias: str) -> str:
        """Return the assigned column: `a`, or behind the table's name or alias."""
        if len(parts) > 1 and (len(parts) > 2 or parts[0].lower() != alias.lower()):
            raise NotUnderstoodError(f"{'.'.join(parts)} is not a column; assign to whole columns")
        for name in self.columns:
            if name.lower() == parts[-1].lower():
                return name
        raise NotUnderstoodError(f"the table has no column {parts[-1]}; it has {', '.join(self.columns)}")


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


def read_change(statement: str, reader: StatementReader, target: Target) -> RowChange:
    """Read a DELETE, UPDATE or MERGE from behind the table's name.

    Raises:
        NotUnderstoodError: the text is no such statement, or changes a key.
    """
    change = CHANGES[statement](reader, target)
    reader.expect_end()
    return change


def _delete(reader: StatementReader, target: Target) -> RowChange:
    alias = reader.alias(_NO_ALIAS) or target.view
    where = _where(reader)
    key = [_column(alias, name) for name in target.key]
    return RowChange(_select([*key, f"0 AS {ACTION}"], target, alias, where), (DELETE,))


def _update(reader: StatementReader, target: Target) -> RowChange:
    alias = reader.alias(_NO_ALIAS) or target.view
    reader.expect("SET")
    new = _assignments(reader, target, alias, "WHERE")
    _check_keys_stay(new, target, {})
    where = _where(reader)
    columns = [
        _as(_value(new[name]), name) if name in new else _column(alias, name) for name in target.columns
    ]
    query = _select([*columns, f"0 AS {ACTION}"], target, alias, where)
    return RowChange(query, (UPDATE,), new)


def _where(reader: StatementReader) -> str | None:
    return reader.until() if reader.takes("WHERE") else None


def _assignments(reader: StatementReader, target: Target, alias: str, *stops: str) -> dict[str, str]:
    new: dict[str, str] = {}
    while True:
        name = target.column(reader.name(), alias)
        if name in new:
            raise NotUnderstoodError(f"column {name} is set twice")
        reader.expect("=")
        new[name] = reader.until(",", *stops)
        if not reader.takes(","):
            return new


def _check_keys_stay(new: Mapping[str, str], target: Target, equal: Mapping[str, str]) -> None:
    for name in target.key:
        if name in new and _folded(new[name]) != equal.get(name):
            raise NotUnderstoodError(
                f"column {name} belongs to the primary key; insert rows with new keys and delete the old rows"
            )


# MERGE


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

    def keeps(self, name: str, target: Target) -> bool:
        """Return True if a column that is not set keeps its value."""
        return self.action == UPDATE or (self.joins_target and name in target.key)


def _merge(reader: StatementReader, target: Target) -> RowChange:
    alias = reader.alias(_NO_ALIAS) or target.view
    reader.expect("USING")
    source, source_alias = _source(reader)
    reader.expect("ON")
    on = reader.until("WHEN")
    equal, nothing_else = _equal_keys(on, target, alias)
    clauses = []
    while reader.takes("WHEN"):
        clause = _clause(reader, target, alias, source_alias)
        if clause.action == UPDATE:
            _check_keys_stay(clause.new, target, equal)
            # Rows keep the table's own keys: those of the source may have another type.
            new = {name: text for name, text in clause.new.items() if name not in target.key}
            clause = replace(clause, new=new)
        elif clause.action == INSERT:
            keys = [_folded(clause.new.get(name, "")) == equal.get(name) for name in target.key]
            if not (nothing_else and all(keys)):
                raise NotUnderstoodError(
                    "it might insert an existing key; compare the primary key, and nothing else, in ON"
                )
        clauses.append(clause)
    if not clauses:
        raise reader.wrong("WHEN")
    query = _merge_query(target, alias, (source, source_alias), on, clauses)
    return RowChange(query, tuple(clause.action for clause in clauses))


def _source(reader: StatementReader) -> tuple[str, str]:
    """Return the text of the source, and the name that qualifies its columns."""
    start, alias = reader.at, None
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


def _clause(reader: StatementReader, target: Target, alias: str, source: str) -> _Clause:
    matched = not reader.takes("NOT")
    reader.expect("MATCHED")
    by_source = not matched and reader.takes("BY", "SOURCE")
    if not matched and not by_source:
        reader.takes("BY", "TARGET")
    joins_source, joins_target = not by_source, matched or by_source
    marks = [f"{_SOURCE} IS {'NOT ' if joins_source else ''}NULL"]
    marks.append(f"{quoted(alias)}.{quoted(target.key[0])} IS {'NOT ' if joins_target else ''}NULL")
    seen = None if matched else alias if by_source else source
    if reader.takes("AND"):
        marks.append(_value(_qualified(reader.until("THEN"), seen, target)))
    reader.expect("THEN")
    action, new = _action(reader, target, alias, source, joins_target)
    new = {name: _qualified(text, seen, target) for name, text in new.items()}
    return _Clause(" AND ".join(marks), joins_source, joins_target, action, new)


def _action(
    reader: StatementReader, target: Target, alias: str, source: str, joins_target: bool
) -> tuple[str, Mapping[str, str]]:
    whole = {name: f"{quoted(source)}.{quoted(name)}" for name in target.columns}
    if joins_target and reader.takes("DELETE"):
        return DELETE, {}
    if joins_target and reader.takes("UPDATE", "SET"):
        return UPDATE, whole if reader.takes("*") else _assignments(reader, target, alias, "WHEN")
    if joins_target:
        raise reader.wrong("UPDATE SET or DELETE")
    reader.expect("INSERT")
    if reader.takes("*"):
        return INSERT, whole
    names = [target.column([name], alias) for name in reader.names()] if reader.sees("(") else target.columns
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


def _merge_query(
    target: Target, alias: str, source: tuple[str, str], on: str, clauses: Sequence[_Clause]
) -> str:
    """Return the join, each of its rows with the number of the first clause that applies."""
    choice = " ".join(f"WHEN {clause.of} THEN {number}" for number, clause in enumerate(clauses))
    columns = []
    only_deletes = all(clause.action == DELETE for clause in clauses)
    once = only_deletes and len(clauses) == 1  # whichever row of the source it is that deletes
    for name in target.key if only_deletes else target.columns:
        own = f"{quoted(alias)}.{quoted(name)}"
        values = [
            f"WHEN {number} THEN {_value(text)}"
            for number, clause in enumerate(clauses)
            if (text := clause.new.get(name, own if clause.keeps(name, target) else None)) is not None
        ]
        columns.append(
            f"CASE {ACTION} {' '.join(values)} END AS {quoted(name)}" if values else _as("NULL", name)
        )
    joined = f"(SELECT *, TRUE AS {_SOURCE} FROM {source[0]}\n) AS {quoted(source[1])}"
    kind = {(False, False): "INNER", (True, False): "RIGHT", (False, True): "LEFT", (True, True): "FULL"}[
        any(not clause.joins_target for clause in clauses), any(not clause.joins_source for clause in clauses)
    ]
    return (
        f"SELECT {'DISTINCT ' if once else ''}CASE {choice} END AS {ACTION}, {', '.join(columns)}\n"
        f"FROM {quoted(target.view)} AS {quoted(alias)} {kind} JOIN {joined} ON {_value(on)}"
    )


def _equal_keys(on: str, target: Target, alias: str) -> tuple[dict[str, str], bool]:
    """Return the columns of the source that a condition compares with the primary key, folded, and
    whether it compares nothing else."""
    try:
        parts = list(conjuncts(parse_one(on, dialect=FilterSql)))
    except (SqlglotError, RecursionError, *STUMBLES):
        return {}, False
    equal = {}
    for part in parts:
        sides = [part.this.unnest(), part.expression.unnest()] if isinstance(part, exp.EQ) else []
        if not all(isinstance(side, exp.Column) for side in sides):
            continue
        for own, other in (sides, sides[::-1]) if sides else ():
            for name in target.key:
                if (own.table.lower(), own.name.lower()) == (alias.lower(), name.lower()):
                    equal[name] = _folded(other.sql(dialect=FilterSql))
    return equal, len(equal) == len(target.key) == len(parts)


# Texts


def _qualified(text: str, alias: str | None, target: Target) -> str:
    """Put an alias before columns of both sides: a clause without a match sees one side alone."""
    if alias is None:
        return text
    try:
        tree = parse_one(text, dialect=FilterSql)
    except (SqlglotError, RecursionError, *STUMBLES):
        return text
    columns, places = {name.lower() for name in target.columns}, []
    for node in tree.find_all(exp.Column):
        at = node.this.meta.get("start")
        is_own = not node.table and not node.find_ancestor(exp.Query, exp.Lambda)
        if is_own and node.name.lower() in columns and isinstance(at, int):
            places.append(at)
    for at in sorted(places, reverse=True):
        text = f"{text[:at]}{quoted(alias)}.{text[at:]}"
    return text


def _folded(text: str) -> str:
    """Normalise a text for comparison: words and names without quotes, one space between them."""
    words = (token.word if token.kind == "text" else token.word.lower() for token in tokens_of(text))
    return " ".join(word.replace(" ", "\0") for word in words)


def _column(alias: str, name: str) -> str:
    return f"{quoted(alias)}.{quoted(name)} AS {quoted(name)}"


def _value(text: str) -> str:
    return "NULL" if text.upper() == "DEFAULT" else f"({text}\n)"  # a comment may be at its end


def _as(text: str, name: str) -> str:
    return f"{text} AS {quoted(name)}"


def _select(columns: Sequence[str], target: Target, alias: str, where: str | None) -> str:
    condition = "" if where is None else f" WHERE {_value(where)}"
    return f"SELECT {', '.join(columns)} FROM {quoted(target.view)} AS {quoted(alias)}{condition}"


CHANGES = {"DELETE": _delete, "UPDATE": _update, "MERGE": _merge}
