"""Places of a SELECT's clauses, and of calls of functions, in the text of a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlglot import TokenType

if TYPE_CHECKING:
    from sqlglot.tokenizer_core import Token

Place = tuple[int, int]  # the first character, and that behind the last one

_CLAUSES = (
    TokenType.WHERE, TokenType.GROUP_BY, TokenType.HAVING, TokenType.ORDER_BY, TokenType.LIMIT,
    TokenType.OFFSET,
)  # fmt: skip
_ENDS = (TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT, TokenType.SEMICOLON)
_DEPTHS = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}


def clauses_behind(tokens: Sequence[Token], table: int) -> dict[TokenType, Place]:
    """Return the place of each clause of a SELECT behind the table of its FROM, up to the next clause."""
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


def call_at(tokens: Sequence[Token], function: str, start: int | None) -> Place | None:
    """Return the place of the call of a function that begins there, to the parenthesis that closes it."""
    depth = 0
    behind = [token for token in tokens if start is not None and token.start >= start]
    if not behind or behind[0].start != start or behind[0].text.lower() != function:
        return None
    for token in behind[1:]:
        depth += _DEPTHS.get(token.token_type, 0)
        if not depth:
            return behind[0].start, token.end + 1
    return None
