"""The parser of a query: which tables of the store it references, where, and under which names.

The parser is certain, or raises `NotUnderstoodError`. Words that look like a reference but are none (a CTE of
the same name, a hint) are distinguished by the rules of Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import TokenType, exp, parse_one
from sqlglot.errors import SqlglotError

from elasticscan.connector.sql.tokens import (
    LITERALS,
    NotUnderstoodError,
    first_line,
    keyword,
    quoted,
    tokens_of,
)
from elasticscan.filters import STUMBLES, FilterSql, shortened

if TYPE_CHECKING:
    from sqlglot.tokenizer_core import Token

Span = tuple[int, int]  # a range [start, end) of characters
Edit = tuple[int, int, str]  # a range, and the text that replaces it

_CLAUSES = (
    TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING, TokenType.ORDER_BY, TokenType.LIMIT,
    TokenType.OFFSET,
)  # fmt: skip
_ENDS = (TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT)
_DEPTHS = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}
_BEGINNINGS = (TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.L_PAREN)
# Words that name tables or columns in ways that are not in the syntax tree.
_DYNAMIC_WORDS = frozenset({"TABLE", "STREAM", "IDENTIFIER"})
# Qualifiers under which Spark may also find a temporary view.
_VIEW_SCHEMAS = frozenset({"session", "system"})
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)\s*$")


@dataclass(frozen=True, slots=True)
class Session:
    """The settings of a Spark session that change the meaning of a query.

    Attributes:
        utc: whether the time zone is UTC, and TIMESTAMP has a zone.
        ansi: whether casts and comparisons follow the ANSI rules.
        unusual: a setting that changes Spark's parser, so that no query is understood here; or None.
    """

    utc: bool = True
    ansi: bool = True
    unusual: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """One place in a query where a table of the store is read.

    Attributes:
        table: the name of the view, as `attach` spells it.
        alias: the qualifier of the table's columns.
        node: the node in the syntax tree.
        start, end: the range of the text with the table's name, and with the snapshot after it.
        as_of: the option and value of the snapshot that the query names; None for the newest.
    """

    table: str
    alias: str
    node: exp.Table
    start: int
    end: int
    as_of: tuple[str, str] | None


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A parsed query.

    Attributes:
        references: all references of tables of the store, in the order of the text.
        words: words of the text, in lower case, that are no names in the tree. Such a word may still be a
            column, for example `current_date`.
        qualifiers: possible qualifiers of columns anywhere in the query, in lower case.
    """

    tokens: tuple[Token, ...]
    tree: exp.Expr
    references: tuple[Reference, ...]
    words: frozenset[str]
    qualifiers: frozenset[str]


def read_query(text: str, views: Iterable[str], session: Session) -> Query:
    """Parse a query. Raises `NotUnderstoodError` if its meaning in Spark is not certain."""
    tokens = _tokens(text, session)
    try:
        tree = parse_one(text, dialect=FilterSql)
    except (SqlglotError, RecursionError, *STUMBLES) as error:
        raise NotUnderstoodError(f"it is not understood: {first_line(error)}") from None
    if not isinstance(tree, exp.Query):
        raise NotUnderstoodError("it is not a query")
    nodes = list(tree.walk())
    references = _references(text, nodes, tokens, views, session)
    if not references:
        raise NotUnderstoodError("it reads no table of the store")
    names = {node.name.lower() for node in nodes if isinstance(node, exp.Identifier)}
    tables = {node.name.lower() for node in nodes if isinstance(node, exp.Table | exp.TableAlias)}
    return Query(tuple(tokens), tree, references, _words(tokens) - names, frozenset(tables - {""}))


def _tokens(text: str, session: Session) -> list[Token]:
    if session.unusual is not None:
        raise NotUnderstoodError(f"the setting {session.unusual} changes its meaning")
    if "${" in text:
        raise NotUnderstoodError("it contains a ${variable}")
    tokens = tokens_of(text)
    if not tokens or tokens[0].token_type not in _BEGINNINGS:
        raise NotUnderstoodError("it is not a query")
    for token in tokens:
        if keyword(token) == "|>":
            raise NotUnderstoodError("it is written with pipes")
        if keyword(token) in _DYNAMIC_WORDS:
            raise NotUnderstoodError(f"it uses {keyword(token)}")
    return tokens


def _words(tokens: Sequence[Token]) -> frozenset[str]:
    """Return the words that are not names of functions."""
    following = [*tokens[1:], None]
    return frozenset(
        token.text.lower()
        for token, after in zip(tokens, following, strict=True)
        if token.token_type not in LITERALS and (after is None or after.token_type != TokenType.L_PAREN)
    )


def _references(
    text: str, nodes: Sequence[exp.Expr], tokens: Sequence[Token], views: Iterable[str], session: Session
) -> tuple[Reference, ...]:
    by_name = {view.lower(): view for view in views}
    references = []
    for node in nodes:
        if not isinstance(node, exp.Table) or node.find_ancestor(exp.Hint):
            continue
        view = by_name.get(node.name.lower())
        if view is None or (node.db and node.db.lower() not in _VIEW_SCHEMAS):
            continue
        if not node.db and _is_cte(node):
            continue
        if node.db or not isinstance(node.this, exp.Identifier):
            raise NotUnderstoodError(f"{node.name} is named in a way that may mean something else")
        (start, end), as_of = _place(text, node.this), _as_of(node, session)
        if as_of is not None:
            values = (token for token in tokens if token.start > start and token.token_type in LITERALS)
            end = next(values).end + 1
        references.append(Reference(view, node.alias_or_name, node, start, end, as_of))
    return tuple(sorted(references, key=lambda reference: reference.start))


def _place(text: str, name: exp.Identifier) -> Span:
    """Return the range of a name in the text; checks that the name is there."""
    start, end = name.meta.get("start", 0), name.meta.get("end", -1) + 1
    if text[start:end] not in (name.name, quoted(name.name)):
        raise NotUnderstoodError(f"the place of {name.name} is unknown")
    return start, end


def _as_of(node: exp.Table, session: Session) -> tuple[str, str] | None:
    version = node.args.get("version")
    if version is None:
        return None
    named, is_time = version.expression, version.name.upper() == "TIMESTAMP"
    if version.args.get("kind") != "AS OF" or not isinstance(named, exp.Literal):
        raise NotUnderstoodError(f"the snapshot of {node.name} is not written as a number or a string")
    # A time without a zone is in the session's time zone.
    if is_time and not (session.utc or _ZONE.search(named.this)):
        raise NotUnderstoodError(f"the time of {node.name} has no zone, and the session's is not UTC")
    return "timestampAsOf" if is_time else "versionAsOf", named.this


def _is_cte(node: exp.Table) -> bool:
    """Return True if a name refers to a common table expression, which hides a table of that name."""
    sought = node.name.lower()
    inner: exp.Expr = node
    outer = node.parent
    while outer is not None:
        visible: list[exp.Expr] = []
        if isinstance(outer, exp.With):
            place = next(i for i, cte in enumerate(outer.expressions) if cte is inner)
            visible = outer.expressions[:place]
            if outer.recursive and inner.alias.lower() == sought:
                raise NotUnderstoodError(f"{node.name} may mean the table or the recursion")
        elif (clause := outer.args.get("with_")) is not None and clause is not inner:
            visible = clause.expressions
        if any(cte.alias.lower() == sought for cte in visible):
            return True
        inner, outer = outer, outer.parent
    return False


def shown(node: exp.Expr) -> str:
    """Return part of a query as text for people."""
    return shortened(node.sql(dialect=FilterSql, comments=False), 120)


# Spans of the text


def clause_spans(tokens: Sequence[Token], table: int) -> dict[TokenType, Span]:
    """Return the range of each clause after the FROM of a SELECT, up to the next clause."""
    starts: list[tuple[TokenType, int]] = []
    depth, end = 0, table
    for token in tokens:
        if token.start < table:
            continue
        depth += _DEPTHS.get(token.token_type, 0)
        if depth < 0 or (not depth and token.token_type in _ENDS):
            break
        if not depth and token.token_type in _CLAUSES:
            starts.append((token.token_type, token.start))
        end = token.end + 1
    stops = [*(start for _, start in starts), end][1:]
    return {clause: (start, stop) for (clause, start), stop in zip(starts, stops, strict=True)}


def call_at(tokens: Sequence[Token], function: str, start: int | None) -> Span | None:
    """Return the range of a function's call that begins at `start`; None if there is none."""
    depth = 0
    call = [token for token in tokens if start is not None and token.start >= start]
    if not call or call[0].start != start or call[0].text.lower() != function:
        return None
    for token in call[1:]:
        depth += _DEPTHS.get(token.token_type, 0)
        if not depth:
            return call[0].start, token.end + 1
    return None
