"""The words of a statement with their places, and a reader that cuts the statement at some of them.

What lies between is kept as it was written, whatever it is: Spark reads it again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

# Strings, quoted names, words, and single other characters; comments, also within others, and spaces are
# skipped.
TOKEN = re.compile(
    r"""--[^\n]*|/\*(?:[^*/]|\*(?!/)|/(?!\*)|/\*.*?\*/)*\*/|/\*.*?\*/|\s+
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<quoted>`(?:[^`]|``)*`)|(?P<word>\w+)|(?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)
_DEEPER, _HIGHER = ("(", "[", "{", "CASE"), (")", "]", "}", "END")


class NotUnderstoodError(Exception):
    """A statement is not what it has to be; says where."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word of a text.

    Attributes:
        kind: "word", "quoted" (a name), "text" (a string) or "other" (a character).
        word: as written; a quoted name without its quotes.
        start, end: its place in the text.
    """

    kind: str
    word: str
    start: int
    end: int

    @property
    def upper(self) -> str:
        """Return the word in upper case; an empty text for quoted names and strings."""
        return self.word.upper() if self.kind in ("word", "other") else ""


def quoted(name: str) -> str:
    """Return a name as SQL writes it, whatever is in it."""
    return "`{}`".format(name.replace("`", "``"))


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a statement, without the semicolons behind it."""
    tokens = []
    for match in TOKEN.finditer(text):
        if match.lastgroup:
            word = match.group()
            plain = word[1:-1].replace("``", "`") if word.startswith("`") else word
            tokens.append(Token(match.lastgroup, plain, *match.span()))
    while tokens and tokens[-1].word == ";" and tokens[-1].kind == "other":
        tokens.pop()
    return tokens


class StatementReader:
    """Reads a statement from some token on. What does not fit raises `NotUnderstoodError`.

    Attributes:
        at: the number of the token that comes next.
    """

    def __init__(self, text: str, tokens: Sequence[Token], at: int = 0) -> None:
        self._text, self._tokens, self.at = text, tokens, at

    def text_since(self, at: int) -> str:
        """Return the text that was read since that token."""
        return self._text[self._tokens[at].start : self._tokens[self.at - 1].end]

    @property
    def at_end(self) -> bool:
        return self.at >= len(self._tokens)

    def sees_kind(self, *kinds: str) -> bool:
        return not self.at_end and self._tokens[self.at].kind in kinds

    def sees(self, *words: str) -> bool:
        """Return True if these words, in upper case, come next."""
        following = self._tokens[self.at : self.at + len(words)]
        return [token.upper for token in following] == list(words)

    def takes(self, *words: str) -> bool:
        """Go past these words if they come next."""
        is_there = self.sees(*words)
        self.at += len(words) * is_there
        return is_there

    def takes_one(self, *choices: str) -> bool:
        """Go past the first of these choices, each of one word or more, that comes next."""
        return any(self.takes(*choice.split()) for choice in choices)

    def expect(self, *words: str) -> None:
        if not self.takes(*words):
            raise self.wrong(" ".join(words))

    def expect_end(self) -> None:
        if not self.at_end:
            raise self.wrong("its end")

    def wrong(self, wanted: str) -> NotUnderstoodError:
        if self.at_end:
            return NotUnderstoodError(f"it ends where {wanted} was expected")
        return NotUnderstoodError(f"{wanted} was expected at {self._tokens[self.at].word!r}")

    def name(self) -> list[str]:
        """Return the parts of a name."""
        return self.listed_names(".")

    def identifier(self) -> str:
        if not self.sees_kind("word", "quoted"):
            raise self.wrong("a name")
        self.at += 1
        return self._tokens[self.at - 1].word

    def names(self) -> list[str]:
        """Names in parentheses."""
        self.expect("(")
        names = self.listed_names()
        self.expect(")")
        return names

    def listed_names(self, separator: str = ",") -> list[str]:
        names = [self.identifier()]
        while self.takes(separator):
            names.append(self.identifier())
        return names

    def list_text(self) -> str:
        """Return the rest of the text, without parentheses around it."""
        if not self.takes("("):
            return self.until()
        text = self.until(")")
        self.expect(")")
        self.expect_end()
        return text

    def alias(self, but: Collection[str]) -> str | None:
        """Return an alias, with or without AS, if there is one; words of `but` are none."""
        if self.takes("AS"):
            return self.identifier()
        is_alias = self.sees_kind("word", "quoted") and self._tokens[self.at].upper not in but
        return self.identifier() if is_alias else None

    def value(self) -> None:
        """Go past a number or a string."""
        if self.at_end or not (self.sees_kind("text") or self._tokens[self.at].word.isdecimal()):
            raise self.wrong("a number or a string")
        self.at += 1

    def string(self) -> str:
        """Return the value of a string without escapes."""
        if not self.sees_kind("text") or "\\" in self._tokens[self.at].word:
            raise self.wrong("a string")
        self.at += 1
        return self._tokens[self.at - 1].word[1:-1]

    def until(self, *stops: str) -> str:
        """Return the text up to one of these words outside of parentheses and CASE, or to the end."""
        first, depth = self.at, 0
        while not self.at_end:
            is_part = self.at > 0 and self._tokens[self.at - 1].upper == "."  # of a name
            word = "" if is_part else self._tokens[self.at].upper
            if depth == 0 and word in stops:
                break
            depth += (word in _DEEPER) - (word in _HIGHER)
            if depth < 0:
                raise self.wrong("more")
            self.at += 1
        if self.at == first:
            raise self.wrong("an expression")
        if depth:
            raise NotUnderstoodError("it ends within parentheses, or within CASE")
        return self.text_since(first)
