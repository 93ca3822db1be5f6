"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer

from elasticscan.base.errors import InvalidOption

Texts: TypeAlias = list[str] | None
Uri = Annotated[str, typer.Argument(metavar="URI", help="The store: a directory or a database URL.")]
Table = Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")]
AnyTable = Annotated[str | None, typer.Argument(metavar="TABLE", help="One table; all by default.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.")]
Columns = Annotated[Texts, typer.Option("--columns", metavar="A,B", help="Which, in this order.")]
Filter = Annotated[str | None, typer.Option("--filter", metavar="SQL", help="A condition on the rows.")]
Snapshot = Annotated[
    str | None,
    typer.Option(
        "--snapshot",
        help="A commit number, a tag, or a time with its zone, as 2026-03-01T12:00Z; the newest by default.",
    ),
]
IndexChoice = Annotated[
    str | None,
    typer.Option(
        "--index", metavar="NAME", help="auto (the cheapest, by default), none, key, or an index's name."
    ),
]
OrderBy = Annotated[
    str | None,
    typer.Option(
        "--order-by", metavar="A,B", help='In the order of a sorted index: "delay", or "delay DESC".'
    ),
]
Limit = Annotated[int | None, typer.Option(help="The newest so many; all by default.")]
Since = Annotated[
    int | None,
    typer.Option(
        "--if-unchanged-since",
        metavar="COMMIT",
        help="Write nothing if one of the rows was changed after this commit.",
    ),
]
UserMetadata = Annotated[
    Texts, typer.Option("--user-metadata", metavar="KEY=TEXT", help="Kept with the commit in the history.")
]


def pairs_of(items: Sequence[str] | None, option: str) -> dict[str, str]:
    """Parse `NAME=TEXT` items."""
    given = items or ()
    pairs = {name.strip(): text for name, equals, text in (item.partition("=") for item in given) if equals}
    if len(pairs) < len(given):
        raise InvalidOption(f"{option} takes NAME=TEXT, and each name once", option=option)
    return pairs


def names_of(texts: Sequence[str] | None) -> list[str] | None:
    """Split `a,b` of each time that an option was given into one list; None where it was not given."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()] if texts else None


def shards_of(items: Sequence[str]) -> list[str] | dict[str, str]:
    """Parse `s1` or `s1=/root` items: names, or roots by name."""
    return pairs_of(items, "--shard") if any("=" in item for item in items) else list(items)
