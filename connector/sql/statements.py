"""Statements that would change a table of the store: carried out, or refused by name before anything happens.

To Spark the tables of a store are temporary views. So `DROP TABLE t` would drop the view and leave the table,
`CREATE TEMPORARY VIEW t` would hide it, and what Spark refuses it refuses with words about views. Here the
statement and the name that it is about are read from the text; all else is Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
        "use Table.delete or `elasticscan delete`, or write the rows' keys with the option 'deleteColumn'"),
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
)  # fmt: skip
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
        view = by_name.get(session.folded(name[-1])) if name else None
        if view is None or (name[:-1] and {part.lower() for part in name[:-1]} not in _VIEW_SCHEMAS):
            break
        if statement == "DROP TABLE" and rest in ([], ["PURGE"]):
            return Drop(view, "IF EXISTS" in match.group())
        raise UnsupportedStatement(
            f"{statement} does not work on {view!r}, a table of an elasticscan store; nothing was done: "
            + instead.format(name=view),
            statement=statement,
            table=view,
        )
    _check_no_drop_inside(text, line, tokens, by_name, session)
    return None


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
