"""LIKE and RLIKE patterns as Arrow's engine (RE2) reads them, with the meaning that Java gives them.

A pattern whose meaning differs between the two engines is refused rather than guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from elasticscan.base.errors import FilterError

# The line ends that Java's `.` does not match and its `$` skips at the end of a text; RE2 knows only \n.
_LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
FINAL_LINE_END = rf"(?:\r\n|[{_LINE_ENDS}])\z"
# \s differs too: RE2's leaves out the vertical tab.
_SETS = {"d": "0-9", "w": "a-zA-Z0-9_", "s": r"\t\n\x{0b}\f\r "}
_CONTROLS = {"t": r"\t", "n": r"\n", "r": r"\r", "f": r"\f"}
_REPEAT = re.compile(r"(?:[*+?]|\{\d{1,3}(?:,\d{0,3})?\})\??")
_SPECIAL = frozenset("\\.[]{}()*+?^$|-&")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text to look for: `kind` is equal, starts, ends, contains or regex.

    With `before_line_end` the pattern may also end just before a line end that ends the text.
    """

    kind: str
    text: str
    before_line_end: bool = False


def like_pattern(pattern: str, escape: str) -> Pattern:
    """Return a LIKE pattern, turned into the cheapest way to look for it."""
    pieces, shape = _like_pieces(pattern, escape)
    plain = "".join(piece for piece, sort in zip(pieces, shape, strict=True) if sort == "c")
    for simple, kind in (("c*", "equal"), ("c*%+", "starts"), ("%+c*", "ends"), ("%+c*%+", "contains")):
        if re.fullmatch(simple, shape):
            return Pattern(kind, plain)
    regexes = {"%": ".*", "_": "."}
    body = "".join(regexes.get(sort) or quote(piece) for piece, sort in zip(pieces, shape, strict=True))
    return Pattern("regex", rf"(?s)\A{body}\z")


def _like_pieces(pattern: str, escape: str) -> tuple[list[str], str]:
    """Return the characters, and for each whether it is plain (`c`) or a wildcard (`%` or `_`)."""
    pieces: list[str] = []
    shape = ""
    symbols = iter(pattern)
    for symbol in symbols:
        if symbol == escape:
            meant = next(symbols, "")
            if meant not in ("%", "_", escape):
                raise FilterError(
                    f"the pattern {pattern!r} has the escape character {escape!r} before something else than "
                    f"%, _ or itself; write it twice to mean itself"
                )
            pieces.append(meant)
            shape += "c"
        else:
            pieces.append(symbol)
            shape += symbol if symbol in ("%", "_") else "c"
    return pieces, shape


def quote(text: str) -> str:
    return "".join(f"\\{symbol}" if symbol in _SPECIAL else symbol for symbol in text)


def regex_pattern(pattern: str) -> Pattern:
    """Return an RLIKE pattern: found anywhere in the text, as Java's `find` does."""
    return _Regex(pattern).read()


class _Regex:
    """Reader of the part of Java's syntax that RE2 can follow exactly."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0
        self.alternatives = False

    def refuse(self, construct: str) -> FilterError:
        return FilterError(
            f"the pattern {self.pattern!r} uses {construct}, not supported by filters; use LIKE, or Spark"
        )

    def read(self) -> Pattern:
        out: list[str] = []
        while self.at < len(self.pattern):
            if self.pattern[self.at :] == "$":
                if self.depth or self.alternatives:
                    raise self.refuse("$ together with | outside of a group")
                return Pattern("regex", "".join(out) + r"\z", before_line_end=True)
            out.append(self.read_one())
        return Pattern("regex", "".join(out))

    def read_one(self) -> str:
        symbol = self.pattern[self.at]
        if symbol in "*+?{":
            return self.read_repeat()
        self.at += 1
        match symbol:
            case "\\":
                return self.read_escape()
            case "[":
                return self.read_class()
            case ".":
                return f"[^{_LINE_ENDS}]"
            case "^":
                return r"\A"
            case "$":
                raise self.refuse("$ before the end")
            case "(":
                return self.read_group()
            case ")" | "|":
                self.depth -= symbol == ")"
                self.alternatives |= symbol == "|" and self.depth == 0
                return symbol
        return quote(symbol)

    def read_group(self) -> str:
        self.depth += 1
        if not self.pattern.startswith("?", self.at):
            return "(?:"
        if not self.pattern.startswith("?:", self.at):
            raise self.refuse(f"({self.pattern[self.at : self.at + 2]}")
        self.at += 2
        return "(?:"

    def read_repeat(self) -> str:
        match = _REPEAT.match(self.pattern, self.at)
        if match is None:
            raise self.refuse("{ without a count of at most three digits")
        self.at = match.end()
        if self.pattern.startswith("+", self.at):
            raise self.refuse("possessive repetition")
        return match.group()

    def read_escape(self) -> str:
        symbol = self.pattern[self.at : self.at + 1]
        self.at += 1
        if symbol.lower() in _SETS:
            return f"[{'^' if symbol.isupper() else ''}{_SETS[symbol.lower()]}]"
        return self.escaped(symbol)

    def escaped(self, symbol: str) -> str:
        if symbol in _CONTROLS:
            return _CONTROLS[symbol]
        if not symbol or symbol.isalnum() or not symbol.isascii():
            raise self.refuse(f"\\{symbol}")
        return quote(symbol)

    def read_class(self) -> str:
        negated = self.pattern.startswith("^", self.at)
        self.at += negated
        out: list[str] = []
        while not self.pattern.startswith("]", self.at) or not out:
            member, single = self.read_member()
            if self.pattern.startswith("-", self.at) and not self.pattern.startswith("-]", self.at):
                self.at += 1
                last, last_single = self.read_member()
                if not (single and last_single) or self.pattern.startswith("-", self.at):
                    raise self.refuse("a - that is neither between two characters nor next to a bracket")
                member = f"{member}-{last}"
            out.append(member)
        self.at += 1
        return f"[{'^' if negated else ''}{''.join(out)}]"

    def read_member(self) -> tuple[str, bool]:
        """One member of a class, and whether it is a single character."""
        symbol = self.pattern[self.at : self.at + 1]
        self.at += 1
        if symbol in ("", "[", "]", "&"):
            raise self.refuse(
                "a class that is not closed, is empty, or holds one of [ ] & without a backslash"
            )
        if symbol != "\\":
            return quote(symbol), True
        symbol = self.pattern[self.at : self.at + 1]
        self.at += 1
        if symbol in _SETS:
            return _SETS[symbol], False
        return self.escaped(symbol), True
