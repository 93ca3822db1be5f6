"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import typer

from elasticscan.base.errors import InvalidOption


def argument(metavar: str, text: str) -> Any:
    """Describe an argument of a command."""
    return typer.Argument(metavar=metavar, help=text)


def option(metavar: str | None, text: str, *flags: str, **more: Any) -> Any:
    """Describe an option of a command; without flags it has the parameter's name."""
    return typer.Option(*flags, metavar=metavar, help=text, **more)


def switch(flag: str, text: str) -> Any:
    """Describe an option without a value."""
    return typer.Option(flag, help=text)


Texts: TypeAlias = list[str] | None
Uri = Annotated[str, argument("URI", "The store: a directory or a database URL.")]
Table = Annotated[str, argument("TABLE", "The table's name.")]
AnyTable = Annotated[str | None, argument("TABLE", "One table; all by default.")]
Name = Annotated[str, argument("NAME", "Its name.")]
Columns = Annotated[Texts, option("A,B", "The columns to read, in this order.", "--columns")]
Filter = Annotated[str | None, option("SQL", "A condition on the rows.", "--filter")]
Snapshot = Annotated[
    str | None,
    option(
        None,
        "A commit number, a tag, or a time with a zone, such as 2026-03-01T12:00Z; by default the newest.",
        "--snapshot",
    ),
]
IndexChoice = Annotated[
    str | None, option("NAME", "auto (the cheapest, by default), none, key, or an index's name.", "--index")
]
OrderBy = Annotated[
    str | None,
    option("A,B", 'The order of a sorted index: "delay" or "delay DESC".', "--order-by"),
]
Limit = Annotated[int | None, option(None, "How many, counted from the newest; by default all.")]
Since = Annotated[
    int | None,
    option(
        "COMMIT", "Write nothing if one of the rows was changed after this commit.", "--if-unchanged-since"
    ),
]
UserMetadata = Annotated[Texts, option("KEY=TEXT", "Store a text with the commit.", "--user-metadata")]


def pairs_of(items: Sequence[str] | None, option: str) -> dict[str, str]:
    """Parse `NAME=TEXT` items."""
    given = items or ()
    pairs = {name.strip(): text for name, equals, text in (item.partition("=") for item in given) if equals}
    if len(pairs) < len(given):
        raise InvalidOption(f"{option} takes NAME=TEXT, and each name once", option=option)
    return pairs


def names_of(texts: Sequence[str] | None) -> list[str] | None:
    """Split the values `a,b` of a repeated option into one list; return None without values."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()] if texts else None


def shards_of(items: Sequence[str]) -> list[str] | dict[str, str]:
    """Parse items `s1` to names, or `s1=/root` to roots by name."""
    return pairs_of(items, "--shard") if any("=" in item for item in items) else list(items)
