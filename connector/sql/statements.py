"""Statements that would change a table of the store: carried out, or refused by name before anything happens.

To Spark the tables of a store are temporary views. So `DROP TABLE t` would drop the view and leave the table,
`CREATE TEMPORARY VIEW t` would hide it, and what Spark refuses it refuses with words about views. Here the
statement and the name that it is about are read from the text; all else is Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elasticscan.base.errors import UnsupportedStatement
from elasticscan.connector.sql.query import Session

# Strings, quoted names, words, and single other characters; comments and spaces are skipped.
TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?\*/|\s+
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<quoted>`(?:[^`]|``)*`)|(?P<word>\w+)|(?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)
_IF = r"(?:IF (?:NOT )?EXISTS )?"
_UPSERT = "INSERT INTO {name} replaces rows of the same primary key"
# Statements, what each begins with, up to the name that it is about, and what to do instead; the first that
# fits counts.
_STATEMENTS = (
    ("DROP TABLE", rf"DROP TABLE {_IF}", "leave it out"),
    ("TRUNCATE TABLE", r"TRUNCATE TABLE ",
        "empty it with INSERT OVERWRITE {name} SELECT * FROM {name} WHERE false"),
    ("ALTER TABLE", rf"ALTER (?:TABLE|VIEW) {_IF}",
        "columns are added by writes with the option 'mergeSchema', or by Table.add_columns"),
    ("DELETE", r"DELETE FROM ",
        "use Table.delete or `elasticscan delete`, or write the keys with the option 'deleteColumn'"),
    ("UPDATE", r"UPDATE ", "use Table.update or `elasticscan update`; " + _UPSERT),
    ("MERGE", r"MERGE (?:WITH SCHEMA EVOLUTION )?INTO ", f"{_UPSERT}; the option 'deleteColumn' deletes"),
    ("CREATE",
        rf"CREATE (?:OR REPLACE )?(?:GLOBAL )?(?:TEMPORARY |TEMP )?(?:EXTERNAL )?(?:TABLE|VIEW) {_IF}",
        "the store has a table of this name: choose another name"),
    ("REPLACE TABLE", r"REPLACE TABLE ",
        "replace its rows with INSERT OVERWRITE {name}, or drop it and make it anew"),
    ("COMMENT", r"COMMENT ON (?:TABLE|COLUMN) ", "leave it out"),
    ("ANALYZE", r"ANALYZE TABLE ", "leave it out"),
    ("REPAIR", r"(?:MSCK )?REPAIR TABLE ", "leave it out"),
    ("LOAD DATA", r"LOAD DATA .* INTO TABLE ", "leave it out"),
    ("DESCRIBE HISTORY", r"(?:DESCRIBE|DESC) HISTORY ",
        "Table.history or `elasticscan history` lists its commits"),
    ("OPTIMIZE", r"OPTIMIZE ", "Table.compact or `elasticscan compact` merges its fragments"),
    ("VACUUM", r"VACUUM ", "Store.collect_garbage or `elasticscan gc` removes files that nobody needs"),
    ("RESTORE TABLE", r"RESTORE (?:TABLE )?", "use Table.restore or `elasticscan restore-table`"),
)  # fmt: skip
# Times past in SQL, with what stands before a name there: as an alias, such words cannot be followed by AS.
_BEFORE_NAMES = frozenset({"FROM", "JOIN", ",", "("})
_AS_OF = re.compile(r"(?:FOR )?(?P<what>VERSION|SYSTEM_VERSION|TIMESTAMP|SYSTEM_TIME) AS OF ")
_CHANGES = "TABLE_CHANGES"
_SPARK_TABLE = re.compile(r"CREATE (?:OR REPLACE )?(?:EXTERNAL )?TABLE .*\bUSING ELASTICSCAN ")
# Schemas under which Spark finds a temporary view, too.
_VIEW_SCHEMAS = ({"session"}, {"system", "session"})


@dataclass(frozen=True, slots=True)
class Drop:
    """`DROP TABLE` of a table of the store: `view` is its name here."""

    view: str
    if_exists: bool


def statement_about(text: str, views: Iterable[str], session: Session) -> Drop | None:
    """The drop of one of the views' tables, or None for a statement that Spark carries out.

    Raises:
        UnsupportedStatement: it would change one of the tables, in a way that there is not.
    """
    by_name = {session.folded(view): view for view in views}
    tokens = _tokens(text)
    line = " ".join(word if kind == "word" else "" for kind, word in tokens).upper() + " "
    for statement, beginning, instead in _STATEMENTS:
        match = re.match(beginning, line)
        if match is None:
            continue
        at = match.group().count(" ")
        name, rest = _name(tokens[at:])
        view = _view_of(name, by_name, session)
        if view is None or (statement == "DESCRIBE HISTORY" and session.folded("history") in by_name):
            break  # the latter describes a column of a table called history
        if statement == "DROP TABLE" and rest in ([], ["PURGE"]):
            return Drop(view, "IF EXISTS" in match.group())
        raise UnsupportedStatement(
            f"{statement} does not work on {view!r}, a table of an elasticscan store; nothing was done: "
            + instead.format(name=view),
            statement=statement,
            table=view,
        )
    if _SPARK_TABLE.match(line):
        raise UnsupportedStatement(
            "CREATE TABLE ... USING elasticscan would make a table in Spark's own catalog that nobody can "
            "read: Spark does not say later which store it is in. Nothing was done: make the table by a "
            "write (df.write.format('elasticscan') with the option 'primaryKey'), by Store.create_table "
            "or by `elasticscan load`",
            statement="CREATE TABLE",
        )
    _check_no_drop_inside(text, line, tokens, by_name, session)
    check_no_times_past(text, by_name.values(), session)
    return None


def check_no_times_past(text: str, views: Iterable[str], session: Session) -> None:
    """Refuse what asks for another snapshot of one of the views' tables, or for its changes.

    Raises:
        UnsupportedStatement: it does; what to call instead is said.
    """
    by_name = {session.folded(view): view for view in views}
    tokens = _tokens(text)
    words = [word.upper() for _, word in tokens]
    for at, before in enumerate(words):
        if before == _CHANGES and tokens[at][0] == "word" and words[at + 1 : at + 2] == ["("]:
            _refuse_changes(tokens[at + 2 : at + 3], by_name, session)
        if before not in _BEFORE_NAMES or tokens[at][0] in ("text", "quoted"):
            continue
        name, rest = _name(tokens[at + 1 :])
        asked = _AS_OF.match(" ".join(rest[:5]) + " ")
        if asked is not None and (view := _view_of(name, by_name, session)) is not None:
            raise UnsupportedStatement(
                f"{asked['what']} AS OF does not work on {view!r}, a table of an elasticscan store: read it "
                f"with catalog.table({view!r}).as_of(…).load(), where … is a commit number, a tag or a time; "
                "with .createOrReplaceTempView(name) behind it, SQL can name it",
                statement=f"{asked['what']} AS OF",
                table=view,
            )


def _refuse_changes(tokens: Sequence[tuple[str, str]], by_name: Mapping[str, str], session: Session) -> None:
    """Refuse `table_changes('t', …)`, by the tokens of its first argument."""
    kind, text = tokens[0] if tokens else ("", "")
    view = by_name.get(session.folded(text[1:-1].strip("`"))) if kind == "text" else None
    if view is not None:
        raise UnsupportedStatement(
            f"table_changes does not work on {view!r}, a table of an elasticscan store: read its changes "
            "with the options 'readChangeFeed' = 'true' and 'startingVersion', or with Table.changes",
            statement="table_changes",
            table=view,
        )


def _view_of(name: Sequence[str], by_name: Mapping[str, str], session: Session) -> str | None:
    """The view that a name means, if it is one."""
    if not name or (name[:-1] and {part.lower() for part in name[:-1]} not in _VIEW_SCHEMAS):
        return None
    return by_name.get(session.folded(name[-1]))


def _check_no_drop_inside(
    text: str,
    line: str,
    tokens: Sequence[tuple[str, str]],
    by_name: dict[str, str],
    session: Session,
) -> None:
    """Scripts and EXECUTE IMMEDIATE: a drop inside them would drop the view alone."""
    words = {session.folded(word) for _, word in tokens} | set(re.findall(r"\w+", session.folded(text)))
    mentioned = sorted(by_name[name] for name in words & set(by_name))
    hidden = line.startswith(("BEGIN ", "EXECUTE ", "DROP TABLE IDENTIFIER"))
    if hidden and mentioned and re.search(r"\bDROP\s+TABLE\b", text, re.IGNORECASE):
        raise UnsupportedStatement(
            f"DROP TABLE inside a script, EXECUTE IMMEDIATE or IDENTIFIER would leave {mentioned[0]!r} in "
            "the store as it is; nothing was done: give DROP TABLE by itself",
            statement="DROP TABLE",
            table=mentioned[0],
        )


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens = []
    for match in TOKEN.finditer(text):
        if match.lastgroup:
            word = match.group()
            tokens.append((match.lastgroup, word[1:-1].replace("``", "`") if word.startswith("`") else word))
    while tokens and tokens[-1] == ("other", ";"):
        tokens.pop()
    return tokens


def _name(tokens: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """A name's parts at the beginning of tokens, and what follows it in upper case."""
    parts: list[str] = []
    at = 0
    while at < len(tokens) and tokens[at][0] in ("word", "quoted"):
        parts.append(tokens[at][1])
        at += 1
        if at >= len(tokens) or tokens[at] != ("other", "."):
            break
        at += 1
    return parts, [word.upper() for _, word in tokens[at:]]
