"""Statements that would change a table of the store: carried out, or refused by name before anything happens.

To Spark the tables of a store are temporary views. So `DROP TABLE t` would drop the view and leave the table,
`CREATE TEMPORARY VIEW t` would hide it, and what Spark refuses it refuses with words about views. Here the
statement and the name that it is about are read from the text; all else is Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elasticscan.base.errors import TableNotFound, UnsupportedStatement
from elasticscan.base.suggestions import suggest
from elasticscan.connector.sql.query import Session
from elasticscan.connector.sql.tokens import NotUnderstoodError, StatementReader, Token, tokens_of

_IF = r"(?:IF (?:NOT )?EXISTS )?"
_A_NAME = r"\S* (?: \S* ){0,2}"  # words with dots between them, which are left out
# Statements, what each begins with, up to the name that it is about, and what to do instead of those that are
# not carried out; the first that fits counts.
_STATEMENTS = (
    ("DROP TABLE", rf"DROP TABLE {_IF}", None),
    ("TRUNCATE TABLE", r"TRUNCATE TABLE ", None),
    ("ALTER TABLE", rf"ALTER TABLE {_IF}", None),
    ("ALTER VIEW", rf"ALTER VIEW {_IF}", "the store has a table of this name"),
    ("DELETE", r"DELETE FROM ", None),
    ("DELETE without FROM", r"DELETE (?!FROM )", "write DELETE FROM {name}"),
    ("UPDATE", r"UPDATE ", None),
    ("MERGE", r"MERGE INTO ", None),
    ("MERGE WITH SCHEMA EVOLUTION", r"MERGE WITH SCHEMA EVOLUTION INTO ",
        "add the columns with ALTER TABLE {name} ADD COLUMNS (…), and leave WITH SCHEMA EVOLUTION out"),
    ("CREATE TABLE LIKE", rf"CREATE (?:EXTERNAL )?TABLE {_IF}{_A_NAME}LIKE ",
        "write … USING elasticscan TBLPROPERTIES ('primaryKey' = '…') AS SELECT * FROM {name} WHERE false"),
    ("CREATE",
        rf"CREATE (?:OR REPLACE )?(?:GLOBAL )?(?:TEMPORARY |TEMP )?(?:EXTERNAL )?(?:TABLE|VIEW) {_IF}",
        "the store has a table of this name: choose another name"),
    ("REPLACE TABLE", r"REPLACE TABLE ",
        "replace its rows with INSERT OVERWRITE {name}, or drop it and make it again"),
    ("CREATE INDEX", rf"CREATE (?:UNIQUE )?INDEX {_IF}\S* ON (?:TABLE )?",
        "make it with store.table(name).create_index(index, columns), or `elasticscan index create`"),
    ("DROP INDEX", rf"DROP INDEX {_IF}\S* ON (?:TABLE )?",
        "drop it with store.table(name).drop_index(index), or `elasticscan index drop`"),
    ("SHOW INDEXES", r"SHOW INDEX(?:ES)? (?:ON|FROM|IN) ",
        "list them with store.table(name).indexes(), or `elasticscan index list`"),
    ("INSERT with REPLACE", rf"INSERT INTO (?:TABLE )?(?={_A_NAME}REPLACE (?:WHERE|USING|ON) )",
        "write a frame of the rows in mode overwrite with the option 'replaceWhere'"),
    ("DESCRIBE DETAIL", r"(?:DESCRIBE|DESC) DETAIL ", None),
    ("DESCRIBE EXTENDED", r"(?:DESCRIBE|DESC) (?:TABLE )?(?:EXTENDED|FORMATTED) ", None),
    ("SHOW TBLPROPERTIES", r"SHOW TBLPROPERTIES ", None),
    ("SHOW CREATE TABLE", r"SHOW CREATE TABLE ", None),
    ("COMMENT", r"COMMENT ON (?:TABLE|COLUMN) ", "tables and columns have no comments: leave it out"),
    ("ANALYZE", r"ANALYZE TABLE ", "statistics are written with every file: leave it out"),
    ("REPAIR", r"(?:MSCK |FSCK )?REPAIR TABLE ", "leave it out; `elasticscan verify` reads all files"),
    ("REORG", r"REORG TABLE ", "write OPTIMIZE {name}"),
    ("LOAD DATA", r"LOAD DATA .* INTO TABLE ", "store.load('{name}', files) reads files in"),
    ("EXPORT", r"EXPORT TABLE ", "store.table('{name}').export(path) writes files"),
    ("DESCRIBE HISTORY", r"(?:DESCRIBE|DESC) HISTORY ", None),
    ("OPTIMIZE", r"OPTIMIZE ", None),
    ("VACUUM", r"VACUUM ", None),
    ("RESTORE TABLE", r"RESTORE (?:TABLE )?", None),
)  # fmt: skip
# Statements that Spark itself does not have: of a table that is not there it would say a word about another.
_NOT_OF_SPARK = frozenset({"DESCRIBE HISTORY", "DESCRIBE DETAIL", "OPTIMIZE", "VACUUM", "RESTORE TABLE"})
# What no temporary view of other rows can be meant with.
_OF_NO_VIEW = _NOT_OF_SPARK | {"DELETE", "UPDATE", "MERGE", "TRUNCATE TABLE"}
_EXPLAIN = re.compile(r"EXPLAIN (?:EXTENDED |CODEGEN |COST |FORMATTED )?")
# Times past in SQL, with what stands before a name there: as an alias, such words cannot be followed by AS.
_BEFORE_NAMES = frozenset({"FROM", "JOIN", ",", "("})
_AS_OF = re.compile(r"(?:FOR )?(?P<what>VERSION|SYSTEM_VERSION|TIMESTAMP|SYSTEM_TIME) AS OF ")
_CHANGES = "TABLE_CHANGES"
_NEW_TABLE = re.compile(r"CREATE (?:OR REPLACE )?(?:EXTERNAL )?TABLE .*\bUSING ELASTICSCAN ")
_NEW = re.compile(rf"CREATE (?:OR REPLACE )?TABLE {_IF}")
# What stands behind the name of a table that is Spark's own.
_OF_SPARK = frozenset({"USING", "STORED", "ROW", "LIKE"})
_QUERY = frozenset({"AS", "SELECT", "WITH", "FROM", "VALUES", "TABLE"})
# Words of other databases for what an INSERT does here.
_UPSERT = re.compile(
    r"(?:UPSERT|REPLACE|INSERT OR (?:REPLACE|IGNORE)) INTO |INSERT INTO (?=.*ON (?:CONFLICT|DUPLICATE) )"
)
# What Spark says of names that it cannot follow.
_NO_FORMAT = re.compile(r"\[DATA_SOURCE_NOT_FOUND\] Failed to find the data source: (?P<name>\S*?)\.? ")
_NO_RELATION, _NO_PATH = "TABLE_OR_VIEW_NOT_FOUND", "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"
_TIME_TRAVEL = "UNSUPPORTED_FEATURE.TIME_TRAVEL"
# Procedures of other formats, each with the statement that does it here.
_NO_PROCEDURES = "there are no procedures, but OPTIMIZE, VACUUM, RESTORE TABLE and DESCRIBE HISTORY"
_PROCEDURES = {
    **dict.fromkeys(
        ("ROLLBACK_TO_SNAPSHOT", "SET_CURRENT_SNAPSHOT"), "write RESTORE TABLE {name} TO VERSION AS OF …"
    ),
    "ROLLBACK_TO_TIMESTAMP": "write RESTORE TABLE {name} TO TIMESTAMP AS OF '…'",
    **dict.fromkeys(("EXPIRE_SNAPSHOTS", "REMOVE_ORPHAN_FILES"), "write VACUUM {name}"),
    **dict.fromkeys(("REWRITE_DATA_FILES", "REWRITE_MANIFESTS"), "write OPTIMIZE {name}"),
    "CREATE_CHANGELOG_VIEW": "read its changes with the options 'readChangeFeed' and 'startingVersion'",
}
_BY_DEFAULT = ["spark_catalog", "default"]  # where Spark seeks some names without a schema
_MOST_NAMED = 20  # tables in an error
# Schemas under which Spark finds a temporary view, too.
_VIEW_SCHEMAS = ({"session"}, {"system", "session"})


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A statement about a table of the store, which is not for Spark.

    Attributes:
        kind: its first words: "DROP TABLE", "UPDATE", …
        view: the table's name here; empty for one that is to be made.
        if_exists: whether the table may be gone already.
        reader: reads on behind the table's name; of a table that is to be made from the first word.
    """

    kind: str
    view: str
    if_exists: bool
    reader: StatementReader

    def refused(self, why: str) -> UnsupportedStatement:
        about = f"{self.view!r}, a table of an elasticscan store," if self.view else "a table in a store"
        return UnsupportedStatement(
            f"{self.kind} of {about} cannot be carried out; nothing was done: {why}",
            statement=self.kind,
            table=self.view,
        )


def statement_about(text: str, views: Iterable[str], session: Session) -> Statement | None:
    """The statement about the table of one of the views, or None for what Spark carries out.

    Raises:
        UnsupportedStatement: it would change one of the tables, in a way that there is not.
    """
    by_name = {session.folded(view): view for view in views}
    tokens = tokens_of(text)
    line = " ".join(token.word if token.kind == "word" else "" for token in tokens).upper() + " "
    explained = _EXPLAIN.match(line)
    if explained is not None:
        behind = tokens[explained.group().count(" ") :]
        _check_no_change_explained(line[explained.end() :], behind, by_name, session)
        return None
    if _NEW_TABLE.match(line) or _is_of_no_format(line, tokens):
        return Statement("CREATE TABLE", "", False, StatementReader(text, tokens))
    for kind, beginning, instead in _STATEMENTS:
        match = re.match(beginning, line)
        if match is None:
            continue
        reader = StatementReader(text, tokens, match.group().count(" "))
        try:
            name = reader.name()
        except NotUnderstoodError:
            break
        view = view_of(name, by_name, session)
        verb, _, what = kind.lower().partition(" ")
        if view is None:
            continue
        if verb == "describe" and session.folded(what) in by_name:
            break  # it describes a column of a table called history, or detail
        if instead is not None:
            raise UnsupportedStatement(
                f"{kind} does not work on {view!r}, a table of an elasticscan store; nothing was done: "
                + instead.format(name=view),
                statement=kind,
                table=view,
            )
        return Statement(kind, view, "IF EXISTS" in match.group(), reader)
    _check_no_drop_inside(text, line, tokens, by_name, session)
    _check_no_change_behind(tokens, by_name, session)
    return None


def _is_of_no_format(line: str, tokens: Sequence[Token]) -> bool:
    """True for a CREATE TABLE of a plain name that says nothing of whose table it is: it is the store's."""
    match = _NEW.match(line)
    if match is None:
        return False
    begin, depth = match.group().count(" "), 0
    name, rest = _name(tokens[begin:])
    if len(name) != 1 or (name[0].upper() == "IDENTIFIER" and rest[:1] == ["("]):
        return False
    for token in tokens[begin + 1 :]:
        depth += (token.upper == "(") - (token.upper == ")")
        if depth == 0 and token.upper in _OF_SPARK | _QUERY:
            return token.upper in _QUERY
    return True


def check_not_hidden(text: str, hidden: Sequence[str], session: Session) -> None:
    """Refuse what is meant for a table of the store whose name another temporary view has.

    Spark would change no view either, and say so in words about its own insides.

    Raises:
        UnsupportedStatement: it is about such a table; what to do is said.
    """
    try:
        statement = statement_about(text, hidden, session) if hidden else None
    except UnsupportedStatement:
        return  # it is about that view, for all that is known
    if statement is not None and statement.view and statement.kind in _OF_NO_VIEW:
        raise statement.refused(
            f"the session has another temporary view {statement.view}, which hides the table: drop it with "
            f"DROP VIEW {statement.view}, or attach with a prefix"
        )


def unknown_table(text: str, views: Iterable[str], session: Session) -> TableNotFound | None:
    """The error of a statement that Spark has not, and refused, about a table that the store has not.

    Spark's own would be about a table called `HISTORY`, or about the statement's first word.
    """
    tokens = tokens_of(text)
    line = " ".join(token.word if token.kind == "word" else "" for token in tokens).upper() + " "
    for kind, beginning, _ in _STATEMENTS:
        match = re.match(beginning, line) if kind in _NOT_OF_SPARK else None
        name = [] if match is None else _name(tokens[match.group().count(" ") :])[0]
        if len(name) == 1:
            return TableNotFound(
                f"{kind} of {name[0]!r}: the store has no such table, it has {', '.join(sorted(views))}",
                table=name[0],
            )
    return None


def other_words(text: str, views: Iterable[str], session: Session) -> UnsupportedStatement | None:
    """The error of a statement that Spark refused, and that is written otherwise for a table of the store."""
    by_name = {session.folded(view): view for view in views}
    tokens = tokens_of(text)
    line = " ".join(token.word if token.kind == "word" else "" for token in tokens).upper() + " "
    for at in range(len(tokens)):
        changes = _told_changes(tokens[at : at + 3], by_name, session)
        if changes is not None:
            return changes
    upsert = _UPSERT.match(line)
    if upsert is not None:
        view = view_of(_name(tokens[upsert.group().count(" ") :])[0], by_name, session)
        return None if view is None else _told_upsert(view)
    if not line.startswith("CALL "):
        return None
    for token in tokens:
        name = token.word[1:-1].replace("`", "").split(".") if token.kind == "text" else []
        view = view_of(name, by_name, session)
        if view is not None:
            instead = next(
                (message for word, message in _PROCEDURES.items() if f" {word} " in line), _NO_PROCEDURES
            )
            return UnsupportedStatement(
                f"CALL does not work on {view!r}, a table of an elasticscan store; nothing was done: "
                + instead.format(name=view),
                statement="CALL",
                table=view,
            )
    return None


def _told_upsert(view: str) -> UnsupportedStatement:
    return UnsupportedStatement(
        f"every INSERT INTO {view}, a table of an elasticscan store, is an upsert by its primary key; "
        "nothing was done: write it so; a MERGE with WHEN NOT MATCHED alone leaves rows that are there",
        statement="INSERT",
        table=view,
    )


def other_format(text: str, said: str) -> UnsupportedStatement | None:
    """The error of a CREATE TABLE of a format that Spark does not know, as people bring it from elsewhere."""
    line = " ".join(token.word if token.kind == "word" else "" for token in tokens_of(text)).upper() + " "
    unknown = _NO_FORMAT.search(said)
    if unknown is None or _NEW.match(line) is None:
        return None
    return UnsupportedStatement(
        f"Spark has no format {unknown['name']}; nothing was done: a table of the store is made by USING "
        "elasticscan, or without USING, and has a PRIMARY KEY (…)",
        statement="CREATE TABLE",
        table="",
    )


def other_name(
    condition: str, relation: str, views: Iterable[str], session: Session
) -> UnsupportedStatement | None:
    """The error of a statement that Spark refused, and that names a table of the store as other formats do.

    `condition` and `relation` are of Spark's error: what it met, and the name that it did so at.
    """
    by_name = {session.folded(view): view for view in views}
    if condition == _NO_PATH and relation == "elasticscan":
        return UnsupportedStatement(
            "a path is no table in SQL: name a table of the attached store, which has "
            + ", ".join(sorted(views)),
            statement="SELECT",
            table="",
        )
    name = _name(tokens_of(relation))[0]
    last = by_name.get(session.folded(name[-1])) if name else None
    if condition == _TIME_TRAVEL and last is not None:
        name, view, message = [f"{last}@…"], last, "write {name} VERSION AS OF … for a snapshot of it"
    elif condition == _NO_RELATION and len(name) > 1 and last is not None:
        view, message = last, "tables of a store are in no schema: write {name}"
    elif condition == _NO_RELATION and len(name) == 2 and session.folded(name[0]) in by_name:
        view, message = (
            by_name[session.folded(name[0])],
            "there are no tables about it: write DESCRIBE HISTORY {name}",
        )
    else:
        return None
    return UnsupportedStatement(
        f"{'.'.join(name)} is no name of {view!r}, a table of an elasticscan store; nothing was done: "
        + message.format(name=view),
        statement="SELECT",
        table=view,
    )


def tables_there(condition: str, relation: str, views: Iterable[str]) -> str | None:
    """A note about a table that is nowhere, alongside Spark's error of it: the tables that there are."""
    name, there = _name(tokens_of(relation))[0], sorted(views)
    if condition != _NO_RELATION or not (len(name) == 1 or name[:-1] == _BY_DEFAULT):
        return None
    listed = ", ".join(there[:_MOST_NAMED]) + (", …" if len(there) > _MOST_NAMED else "")
    hint = suggest(name[-1], there)
    return f"The store has the tables {listed}{hint}" if there else "The store has no tables yet"


def check_no_times_past(text: str, views: Iterable[str], session: Session, why: str = "") -> None:
    """Refuse what asks for another snapshot of one of the views' tables, or for its changes.

    `why` is what is not understood of the text.

    Raises:
        UnsupportedStatement: it does; what to call instead is said.
    """
    by_name = {session.folded(view): view for view in views}
    tokens = tokens_of(text)
    words = [token.word.upper() for token in tokens]
    for at, before in enumerate(words):
        changes = _told_changes(tokens[at : at + 3], by_name, session)
        if changes is not None:
            raise changes
        if before not in _BEFORE_NAMES or tokens[at].kind in ("text", "quoted"):
            continue
        name, rest = _name(tokens[at + 1 :])
        asked = _AS_OF.match(" ".join(rest[:5]) + " ")
        if asked is not None and (view := view_of(name, by_name, session)) is not None:
            if asked["what"] == "SYSTEM_VERSION":
                why = f"write {view} VERSION AS OF …"
            raise UnsupportedStatement(
                f"{asked['what']} AS OF does not work here on {view!r}, a table of an elasticscan store"
                f"{why and f' ({why})'}: it "
                "takes a commit number, a tag or a time (in quotes, with a zone where the session is not in "
                f"UTC), in queries. Or read it with catalog.table({view!r}).as_of(…).load(); with "
                ".createOrReplaceTempView(name) behind it, all SQL can name it",
                statement=f"{asked['what']} AS OF",
                table=view,
            )


def _told_changes(
    tokens: Sequence[Token], by_name: Mapping[str, str], session: Session
) -> UnsupportedStatement | None:
    """The error of `table_changes('t', …)`, where that is what the first three tokens are."""
    if [token.upper for token in tokens[:2]] != [_CHANGES, "("]:
        return None
    text = tokens[2].word if len(tokens) > 2 and tokens[2].kind == "text" else ""
    view = by_name.get(session.folded(text[1:-1].strip("`")))
    if view is None:
        return None
    return UnsupportedStatement(
        f"table_changes does not work on {view!r}, a table of an elasticscan store: read its changes "
        "with the options 'readChangeFeed' = 'true' and 'startingVersion', or with Table.changes",
        statement="table_changes",
        table=view,
    )


def _name(tokens: Sequence[Token]) -> tuple[list[str], list[str]]:
    """A name's parts at the beginning of tokens, and what follows it in upper case."""
    parts: list[str] = []
    at = 0
    while at < len(tokens) and tokens[at].kind in ("word", "quoted"):
        parts.append(tokens[at].word)
        at += 1
        if at >= len(tokens) or tokens[at].upper != ".":
            break
        at += 1
    return parts, [token.word.upper() for token in tokens[at:]]


def view_of(name: Sequence[str], by_name: Mapping[str, str], session: Session) -> str | None:
    """The view that a name means, if it is one."""
    if not name or (name[:-1] and {part.lower() for part in name[:-1]} not in _VIEW_SCHEMAS):
        return None
    return by_name.get(session.folded(name[-1]))


def _check_no_change_explained(
    line: str, tokens: Sequence[Token], by_name: Mapping[str, str], session: Session
) -> None:
    """Refuse to explain a change: Spark would say that it cannot be done, though it can."""
    for _, beginning, _ in _STATEMENTS:
        match = re.match(beginning, line)
        if match is None:
            continue
        view = view_of(_name(tokens[match.group().count(" ") :])[0], by_name, session)
        if view is not None:
            raise UnsupportedStatement(
                f"EXPLAIN of a change of {view!r}, a table of an elasticscan store, does not work: it takes "
                f"several queries; see how it finds its rows: catalog.explain('SELECT … FROM {view} …')",
                statement="EXPLAIN",
                table=view,
            )


def _check_no_change_behind(tokens: Sequence[Token], by_name: dict[str, str], session: Session) -> None:
    """Common table expressions before a change: Spark would refuse it in words about other tables."""
    if not tokens or tokens[0].upper != "WITH":
        return
    depth = 0
    for at, token in enumerate(tokens):
        depth += (token.upper == "(") - (token.upper == ")")
        if depth == 0 and token.upper in ("MERGE", "UPDATE", "DELETE"):
            begin = at + 1 + (at + 1 < len(tokens) and tokens[at + 1].upper in ("INTO", "FROM"))
            view = view_of(_name(tokens[begin:])[0], by_name, session)
            if view is not None:
                raise UnsupportedStatement(
                    f"{token.upper} of {view!r}, a table of an elasticscan store, cannot follow a WITH; "
                    "nothing was done: put WITH into the sub-query that needs it, or into USING (…)",
                    statement=token.upper,
                    table=view,
                )


def _check_no_drop_inside(
    text: str,
    line: str,
    tokens: Sequence[Token],
    by_name: dict[str, str],
    session: Session,
) -> None:
    """Scripts and EXECUTE IMMEDIATE: a drop inside them would drop the view alone."""
    words = {session.folded(token.word) for token in tokens} | set(re.findall(r"\w+", session.folded(text)))
    mentioned = sorted(by_name[name] for name in words & set(by_name))
    hidden = line.startswith(("BEGIN ", "EXECUTE ", "DROP TABLE IDENTIFIER"))
    if hidden and mentioned and re.search(r"\bDROP\s+TABLE\b", text, re.IGNORECASE):
        raise UnsupportedStatement(
            f"DROP TABLE inside a script, EXECUTE IMMEDIATE or IDENTIFIER would leave {mentioned[0]!r} in "
            "the store as it is; nothing was done: give DROP TABLE by itself",
            statement="DROP TABLE",
            table=mentioned[0],
        )
