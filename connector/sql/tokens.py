"""The tokens of a statement with their places, and a reader that divides the statement at keywords.

The text between the keywords stays as it was written, and Spark parses it later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from sqlglot import TokenType
from sqlglot.errors import SqlglotError

from elasticscan.filters import STUMBLES, FilterSql

if TYPE_CHECKING:
    from sqlglot.tokenizer_core import Token

LITERALS = frozenset(k for k in TokenType if k.name in ("STRING", "NUMBER") or k.name.endswith("_STRING"))
_OPENING, _CLOSING = ("(", "[", "{", "CASE"), (")", "]", "}", "END")


class NotUnderstoodError(Exception):
    """The reason why a statement, a condition or an aggregate is not understood with certainty."""


def quoted(name: str) -> str:
    """Return a name in backticks."""
    return "`{}`".format(name.replace("`", "``"))


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a statement without semicolons at its end."""
    try:
        tokens = list(FilterSql().tokenize(text))
    except (SqlglotError, *STUMBLES) as error:
        raise NotUnderstoodError(f"it is not understood: {first_line(error)}") from None
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    return tokens


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def keyword(token: Token) -> str:
    """Return the token in upper case; an empty text for a quoted name or a literal."""
    is_quoted = token.token_type == TokenType.IDENTIFIER or token.token_type in LITERALS
    return "" if is_quoted else token.text.upper()


def is_name(token: Token) -> bool:
    return token.token_type == TokenType.IDENTIFIER or keyword(token).replace("_", "A").isalnum()


class StatementReader:
    """Reader of a statement's tokens. Methods raise `NotUnderstoodError` for an unexpected token.

    Attributes:
        at: the number of the next token.
    """

    def __init__(self, text: str, tokens: Sequence[Token], at: int = 0) -> None:
        self._text, self._tokens, self.at = text, tokens, at

    def text_since(self, at: int) -> str:
        """Return the text from token number `at` to the last token that was read."""
        return self._text[self._tokens[at].start : self._tokens[self.at - 1].end + 1]

    @property
    def at_end(self) -> bool:
        return self.at >= len(self._tokens)

    def peek(self, *words: str) -> bool:
        """Return True if these words, in upper case, are next."""
        following = self._tokens[self.at : self.at + len(words)]
        return [keyword(token) for token in following] == list(words)

    def accept(self, *words: str) -> bool:
        """Skip these words and return True, if they are next."""
        is_next = self.peek(*words)
        self.at += len(words) * is_next
        return is_next

    def choice(self, *choices: str) -> str | None:
        """Skip the first choice that is next, of one word or more, and return it; None if there is none."""
        return next((choice for choice in choices if self.accept(*choice.split())), None)

    def expect(self, *words: str) -> None:
        if not self.accept(*words):
            raise self.wrong(" ".join(words))

    def expect_end(self) -> None:
        if not self.at_end:
            raise self.wrong("its end")

    def wrong(self, wanted: str) -> NotUnderstoodError:
        if self.at_end:
            return NotUnderstoodError(f"it ends where {wanted} was expected")
        return NotUnderstoodError(f"{wanted} was expected at {self._tokens[self.at].text!r}")

    def identifier(self) -> str:
        if self.at_end or not is_name(self._tokens[self.at]):
            raise self.wrong("a name")
        self.at += 1
        return self._tokens[self.at - 1].text

    def items(self, separator: str = ",", end: str | None = None) -> Iterator[None]:
        """Yield before each item of a list, which the caller then reads; skip the end of the list."""
        yield
        while self.accept(separator):
            yield
        if end is not None:
            self.expect(end)

    def name_list(self, separator: str = ",") -> list[str]:
        """Return names; with the separator `.` the parts of one name."""
        return [self.identifier() for _ in self.items(separator)]

    def names_in_parentheses(self) -> list[str]:
        self.expect("(")
        return [self.identifier() for _ in self.items(end=")")]

    def alias(self, but: Collection[str]) -> str | None:
        """Return an alias, with or without AS, or None. Without AS, words of `but` are no alias."""
        if self.accept("AS"):
            return self.identifier()
        is_alias = not self.at_end and is_name(self._tokens[self.at])
        return self.identifier() if is_alias and keyword(self._tokens[self.at]) not in but else None

    def string(self) -> str:
        """Return the value of a string."""
        if self.at_end or self._tokens[self.at].token_type != TokenType.STRING:
            raise self.wrong("a string")
        self.at += 1
        return self._tokens[self.at - 1].text

    def until(self, *stops: str) -> str:
        """Return the text up to one of these words, outside of parentheses and CASE, or up to the end."""
        first, depth = self.at, 0
        while not self.at_end:
            is_part = self.at > 0 and keyword(self._tokens[self.at - 1]) == "."  # of a name
            word = "" if is_part else keyword(self._tokens[self.at])
            if depth == 0 and word in stops:
                break
            depth += (word in _OPENING) - (word in _CLOSING)
            if depth < 0:
                raise NotUnderstoodError(f"unbalanced {self._tokens[self.at].text!r}")
            self.at += 1
        if self.at == first:
            raise self.wrong("an expression")
        if depth:
            raise NotUnderstoodError("it ends within parentheses, or within CASE")
        return self.text_since(first)
