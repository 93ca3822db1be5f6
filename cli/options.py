"""Options and arguments that several commands share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import pyarrow as pa
import typer

from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import MAX_NUMBER
from elasticscan.base.showing import brief
from elasticscan.cli.output import remember_json
from elasticscan.store import period, user_metadata

_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9}


Uri = Annotated[str, typer.Argument(metavar="URI", help="The store: a directory or a database URL.")]


def plain_name(name: str | None) -> str | None:
    """The name of a table, without the version that Delta would write after it."""
    table, at, version = (name or "").partition("@")
    if at:
        snapshot = version.removeprefix("v")
        raise InvalidOption(
            f"{name!r} names a table and a version; write {table} and, where a command takes it, --snapshot "
            f"{snapshot}",
            option="TABLE",
        )
    return name


Table = Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.", callback=plain_name)]
Tablet = Annotated[
    int, typer.Argument(metavar="TABLET", help="A tablet's id, as `status --tablets` lists it.")
]
# Eager, so that errors in the other options are printed as JSON, too.
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON, for scripts.", callback=remember_json, is_eager=True)
]
Columns = Annotated[list[str] | None, typer.Option("--columns", metavar="A,B", help="Which, in this order.")]
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
Since = Annotated[
    int | None,
    typer.Option(
        "--if-unchanged-since",
        metavar="COMMIT",
        help="Write nothing if somebody changed one of the rows after this commit.",
    ),
]
UserMetadata = Annotated[
    list[str] | None,
    typer.Option("--user-metadata", metavar="KEY=TEXT", help="Stands alongside the commit in the history."),
]
Speed = Annotated[
    str | None,
    typer.Option("--bytes-per-second", metavar="SIZE", help="Upper bound of a move's copying, as in 50M."),
]


def said_of(items: Sequence[str] | None) -> dict[str, str]:
    """`KEY=TEXT` for each, as a commit keeps it."""
    for item in items or ():
        if "=" not in item:
            raise InvalidOption(f"--user-metadata {item!r} must be KEY=TEXT", option="--user-metadata")
    return user_metadata(dict(item.split("=", 1) for item in items or ()))


def names_of(texts: Sequence[str] | None) -> list[str] | None:
    """`a, b` for each time that an option was given, as one list; None where it was not."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()] if texts else None


def snapshot_of(text: str | None) -> int | str | None:
    """`17` as 17, anything else, the name of a tag or a time, as it is; None stays None."""
    if text is None or not (text.isascii() and text.isdecimal()):
        return text
    return int(text) if len(text) < len(str(MAX_NUMBER)) else MAX_NUMBER


def shards_of(items: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """`s1` or `s1=/root` for each: the names, and the roots of those that have one.

    A number alone is refused: who writes `3` means how many there shall be.
    """
    for item in items:
        if item.isdecimal():
            raise InvalidOption(
                f"{brief(item, 40)} is a number, and shards have names: write one for each, as in s1 s2 s3, "
                "each perhaps with its root, as in s3=/mnt/c",
                option="shard",
            )
    names = [item.partition("=")[0] for item in items]
    roots = {name: root for name, _, root in (item.partition("=") for item in items) if root}
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidOption(f"shard {twice!r} is named twice; name each once", option="shard")
    return names, roots


def seconds_of(text: str, option: str) -> float:
    """`30s`, `90m`, `12h` or `7d` in seconds; a number without a unit is refused, except 0."""
    return period(option, text)


def bytes_of(text: str | None, option: str) -> float | None:
    """`50M` as 50,000,000; None stays None."""
    if text is None:
        return None
    digits, unit = (text[:-1], _SIZES.get(text[-1:].lower())) if text[-1:].isalpha() else (text, 1)
    is_number = unit is not None and digits.isascii() and digits.replace(".", "", 1).isdecimal()
    number = float(digits) * unit if unit is not None and is_number else math.nan
    if not math.isfinite(number):
        raise InvalidOption(
            f"{option}={brief(text, 40)} must be a number of bytes, or one with K, M or G as in 50M",
            option=option,
        )
    if not number:
        raise InvalidOption(f"{option} must be more than 0", option=option)
    return number


def type_of(alias: str, option: str, must: str, hint: str = "") -> pa.DataType:
    """Arrow's type of a name; the error says what `must` be one."""
    try:
        return pa.type_for_alias(alias)
    except ValueError as error:
        raise InvalidOption(
            f"{must} one of Arrow's types, such as int64, double, bool, date32 or timestamp[us]{hint}",
            option=option,
        ) from error
