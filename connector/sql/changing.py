"""DELETE, UPDATE and MERGE as queries of the rows that they write.

    DELETE FROM t WHERE c              the keys of the rows that meet c
    UPDATE t SET a = x WHERE c         the rows that meet c, with x instead of a
    MERGE INTO t USING s ON c WHEN …   rows of a join of t and s, changed by the first clause that matches

The query has an additional column `ACTION`, the number of the action on the row. Conditions and values are
copied as they were written, so Spark evaluates them. As in any query, only columns that are needed are read.
The rows are then written, under the condition that none was changed since the query's snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from elasticscan.connector.sql.joins import conjuncts
from elasticscan.connector.sql.statements import Statement
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader, quoted
from elasticscan.filters import STUMBLES, FilterSql
from elasticscan.metadata import TableInfo

OWN = "_elasticscan_"  # the prefix of additional columns of a query
ACTION = f"{OWN}action"
_SOURCE = f"{OWN}source"  # true in rows of a MERGE with a row of the source
DELETE, UPDATE, INSERT = "deleted", "updated", "inserted"
_NO_ALIAS = frozenset({"SET", "WHERE", "ON", "WHEN", "USING", "FROM", "LIMIT", "ORDER", "RETURNING"})
_SNAPSHOTS = ("VERSION AS OF", "SYSTEM_VERSION AS OF", "TIMESTAMP AS OF", "SYSTEM_TIME AS OF")
_MATCHED, _BY_SOURCE, _BY_TARGET = "MATCHED", "NOT MATCHED BY SOURCE", "NOT MATCHED BY TARGET"


@dataclass(frozen=True, slots=True)
class RowChange:
    """A statement as a query of the rows that it writes.

    Attributes:
        query: returns the columns to write and `ACTION`; rows with a null action are not written.
        actions: `DELETE`, `UPDATE` or `INSERT`, by the number of the action.
        set: the new values of an UPDATE as texts, by column.
    """

    query: str
    actions: tuple[str, ...]
    set: Mapping[str, str] | None = None


def read_change(statement: Statement, table: TableInfo) -> RowChange:
    """Read a DELETE, UPDATE or MERGE after the table's name; it must not change a key."""
    change = CHANGES[statement.kind](_ChangeReading(statement.reader, statement.view, table))
    statement.reader.expect_end()
    return change


class _ChangeReading:
    """A parser of a statement after the table's name."""

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
        """Return a query of columns of the table, with the statement's WHERE."""
        where = f" WHERE {_value(self.reader.until())}" if self.reader.accept("WHERE") else ""
        shown = ", ".join([*columns, f"0 AS {ACTION}"])
        return f"SELECT {shown} FROM {quoted(self.view)} AS {quoted(self.alias)}{where}"

    def own(self, name: str) -> str:
        return f"{quoted(self.alias)}.{quoted(name)}"

    def column(self, parts: Sequence[str]) -> str:
        """Return the column of an assignment: `a`, or `t.a` with the table's name or alias."""
        if len(parts) > 1 and (len(parts) > 2 or parts[0].lower() != self.alias.lower()):
            raise NotUnderstoodError(f"{'.'.join(parts)} is not a column; assign to whole columns")
        for name in self.columns:
            if name.lower() == parts[-1].lower():
                return name
        raise NotUnderstoodError(f"the table has no column {parts[-1]}; it has {', '.join(self.columns)}")

    def assignments(self, stop: str) -> dict[str, str]:
        new: dict[str, str] = {}
        for _ in self.reader.items():
            name = self.column(self.reader.name_list("."))
            if name in new:
                raise NotUnderstoodError(f"column {name} is set twice")
            self.reader.expect("=")
            new[name] = self.reader.until(",", stop)
        return new

    def check_keys_stay(self, new: Mapping[str, str], equal: Mapping[str, list[str]]) -> None:
        for name in self.key:
            if name in new and _column(_tree(new[name])) != equal.get(name):
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
        kinds, choice, actions = set[str](), list[str](), list[str]()
        values: dict[str, list[str]] = {name: [] for name in self.columns}
        while reader.accept("WHEN"):
            kind, condition, action, new = self.clause(alias)
            if action == UPDATE:
                self.check_keys_stay(new, equal)
                # Rows keep the table's own keys: those of the source may have another type.
                new = {name: text for name, text in new.items() if name not in self.key}
            elif action == INSERT:
                keys = [_column(_tree(new.get(name, ""))) == equal.get(name) for name in self.key]
                if not (nothing_else and all(keys)):
                    raise NotUnderstoodError(
                        "it might insert an existing key; compare the primary key, and nothing else, in ON"
                    )
            kept = {UPDATE: self.columns, DELETE: self.key}.get(action, ())
            for name, text in ({name: self.own(name) for name in kept} | new).items():
                values[name].append(f"WHEN {len(actions)} THEN {_value(text)}")
            kinds.add(kind)
            choice.append(f"WHEN {condition} THEN {len(actions)}")
            actions.append(action)
        if not actions:
            raise reader.wrong("WHEN")
        shown = self.key if {DELETE}.issuperset(actions) else self.columns
        columns = [
            _as(f"CASE {ACTION} {' '.join(values[name])} END" if values[name] else "NULL", name)
            for name in shown
        ]
        outer = {(False, False): "INNER", (True, False): "LEFT", (False, True): "RIGHT", (True, True): "FULL"}
        once = "DISTINCT " * (actions == [DELETE])  # several rows of the source may delete the same row
        query = (
            f"SELECT {once}CASE {' '.join(choice)} END AS {ACTION}, {', '.join(columns)}\n"
            f"FROM {quoted(self.view)} AS {quoted(self.alias)} "
            f"{outer[_BY_SOURCE in kinds, _BY_TARGET in kinds]} JOIN "
            f"(SELECT *, TRUE AS {_SOURCE} FROM {source}\n) AS {quoted(alias)} ON {_value(on)}"
        )
        return RowChange(query, tuple(actions))

    def source(self) -> tuple[str, str]:
        """Read the source; return its text, and the name that qualifies its columns."""
        reader, alias, start = self.reader, None, self.reader.at
        if reader.accept("("):
            reader.until(")")
            reader.expect(")")
        else:
            alias = reader.name_list(".")[-1]
            reader.accept("FOR")
            if reader.choice(*_SNAPSHOTS) and not reader.at_end:
                reader.at += 1  # a number or a string
        alias = reader.alias(_NO_ALIAS) or alias
        if alias is None:
            raise reader.wrong("a name for the source")
        if reader.peek("("):
            reader.names_in_parentheses()  # of its columns
        return reader.text_since(start), alias

    def clause(self, source: str) -> tuple[str, str, str, dict[str, str]]:
        """Read a clause after WHEN; return its kind, condition, action, and new values by column."""
        reader = self.reader
        kind = reader.choice(_MATCHED, _BY_SOURCE, _BY_TARGET, "NOT MATCHED")
        if kind is None:
            raise reader.wrong(_MATCHED)
        kind = _BY_TARGET if kind == "NOT MATCHED" else kind
        seen = {_BY_SOURCE: self.alias, _BY_TARGET: source}.get(kind)
        marks = [f"{_SOURCE} IS {'NOT ' * (kind != _BY_SOURCE)}NULL"]
        marks.append(f"{self.own(self.key[0])} IS {'NOT ' * (kind != _BY_TARGET)}NULL")
        if reader.accept("AND"):
            marks.append(_value(self.qualified(reader.until("THEN"), seen)))
        reader.expect("THEN")
        action, new = self.action(source, kind)
        new = {name: self.qualified(text, seen) for name, text in new.items()}
        return kind, " AND ".join(marks), action, new

    def action(self, source: str, kind: str) -> tuple[str, dict[str, str]]:
        reader = self.reader
        whole = {name: f"{quoted(source)}.{quoted(name)}" for name in self.columns}
        if kind != _BY_TARGET:
            if reader.accept("DELETE"):
                return DELETE, {}
            if not reader.accept("UPDATE", "SET"):
                raise reader.wrong("UPDATE SET or DELETE")
            return UPDATE, whole if reader.accept("*") else self.assignments("WHEN")
        reader.expect("INSERT")
        if reader.accept("*"):
            return INSERT, whole
        names = self.columns
        if reader.peek("("):
            names = [self.column([name]) for name in reader.names_in_parentheses()]
        reader.expect("VALUES", "(")
        values = [reader.until(",", ")") for _ in reader.items(end=")")]
        if not len(set(names)) == len(names) == len(values):
            raise NotUnderstoodError(f"{len(values)} values are for columns {', '.join(names)}, each once")
        return INSERT, dict(zip(names, values, strict=True))

    def equal_keys(self, on: str) -> tuple[dict[str, list[str]], bool]:
        """Return the columns of the source that ON compares with columns of the primary key, and whether it
        compares the whole key and nothing else."""
        tree = _tree(on)
        parts = [] if tree is None else list(conjuncts(tree))
        equal = dict[str, list[str]]()
        for part in parts:
            sides = [_column(side) for side in (part.this, part.expression) if isinstance(part, exp.EQ)]
            for left, right in zip(sides, sides[::-1], strict=True) if all(sides) else ():
                equal |= {name: right for name in self.key if left == [self.alias.lower(), name.lower()]}
        return equal, len(equal) == len(self.key) == len(parts)

    def qualified(self, text: str, alias: str | None) -> str:
        """Qualify columns that both sides have: in a clause without a match they are those of one side."""
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


def _column(node: exp.Expr | None) -> list[str]:
    """Return the parts of a column's name in lower case; an empty list for another expression."""
    bare = None if node is None else node.unnest()
    return [part.name.lower() for part in bare.parts] if isinstance(bare, exp.Column) else []


def _value(text: str) -> str:
    return "NULL" if text.upper() == "DEFAULT" else f"({text}\n)"  # a comment may be at its end


def _as(text: str, name: str) -> str:
    return f"{text} AS {quoted(name)}"


CHANGES = {"DELETE": _ChangeReading.delete, "UPDATE": _ChangeReading.update, "MERGE": _ChangeReading.merge}
