"""The home of a log that a URL names: a file, or a database at a PostgreSQL server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, urlencode

from elasticscan.base.clock import Clock
from elasticscan.base.errors import AlreadyExists, ElasticScanError, InvalidOption, StoreNotFound
from elasticscan.base.redaction import as_cause, hides, shown
from elasticscan.catalog.database import LogHome
from elasticscan.catalog.failures import unavailable
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.catalog.sqlite_files import make_file, why_not_writable

if TYPE_CHECKING:
    from elasticscan.catalog.postgres import PostgresHome

_POSTGRES: Final = re.compile(r"postgresql(\+psycopg)?://")
_NO_FILE: Final = ("", ":memory:")


def open_home(url: str | Path, clock: Clock, where: str, read_only: bool = False) -> LogHome:
    """Open the database of a log; one that cannot be written is read without changing anything next to it.

    Args:
        url: a file, or a URL; a path may hold what a URL would take for something else.
        where: as errors name the store.

    Raises:
        InvalidOption: the URL names no database that can hold a log.
        StoreNotFound: there is no log in it.
        CatalogUnavailable: it cannot be reached.
    """
    why = "it was opened with read_only=True" if read_only else None
    file = _checked_file(url)
    if file is not None:
        why = why or why_not_writable(file)
    home = _home_of(url, clock, why)
    try:
        if not home.look():
            raise StoreNotFound(
                f"{where} holds no elasticscan store; "
                "create one with elasticscan.create or `elasticscan create`",
                uri=where,
            )
    except BaseException:
        home.close()
        raise
    home.why_read_only = why or home.why_read_only
    return home


@contextmanager
def make_home(url: str | Path, clock: Clock, where: str) -> Iterator[LogHome]:
    """Give the home of a new log, with its tables; there is a log once the first record is in it.

    Of processes that begin one at once, one succeeds.

    Raises:
        AlreadyExists: there is a log.
    """
    file = _checked_file(url)
    # The mode of a store's directory says who may read the store; other directories' modes do not.
    is_new = file is not None and make_file(file, like_directory=isinstance(url, Path))
    if file is not None and not file.exists():
        raise unavailable(f"unable to open database file: no {file}")
    with closing(_home_of(url, clock)) as home:
        try:
            if not home.look():
                home.make_tables()
            if home.is_begun():
                raise AlreadyExists(
                    f"{where} already holds a store; open it, or choose another place", uri=where
                )
            yield home
        except BaseException:
            if is_new and isinstance(home, SqliteHome):
                with suppress(ElasticScanError, OSError):
                    home.remove_empty()
            raise


def holds_store(url: str | Path) -> bool:
    """Return whether there is a store's log; makes nothing, not even an empty file, and changes none."""
    file = _checked_file(url)
    if file is not None and not (file.exists() and file.stat().st_size):
        return False
    with closing(_home_of(url, None, "it is looked at")) as home:
        return home.look() and home.is_begun()


def _home_of(
    url: str | Path, clock: Clock | None, why_read_only: str | None = None
) -> SqliteHome | PostgresHome:
    file = _checked_file(url)
    if file is None:
        return _home_at_server(str(url), clock)
    return SqliteHome(file, clock, why_read_only=why_read_only)


def _checked_file(url: str | Path) -> Path | None:
    """Return the file of a log, or None for a server's. Raises `InvalidOption` for other URLs."""
    if isinstance(url, Path):
        return url
    if _POSTGRES.match(url):
        return None
    scheme, _, file = url.partition(":///")
    if scheme != "sqlite" or file in _NO_FILE or "?" in file:
        raise InvalidOption(
            f"{shown(url)} is neither a directory nor the URL of a catalog; name a directory, sqlite:///PATH "
            "or postgresql+psycopg://…",
            option="uri",
        )
    return Path(file)


def _home_at_server(url: str, clock: Clock | None) -> PostgresHome:
    try:
        from psycopg import Error, conninfo  # noqa: PLC0415 - an extra, which not all installations have

        from elasticscan.catalog.postgres import PostgresHome  # noqa: PLC0415
    except ImportError as error:
        raise InvalidOption(
            f"the driver for PostgreSQL is not installed ({error}): pip install 'elasticscan[postgres]'",
            option="uri",
        ) from error
    place, _, query = _POSTGRES.sub("postgresql://", url, count=1).partition("?")
    options = dict[str, list[str]]()
    for name, value in parse_qsl(query, keep_blank_values=True):  # several hosts may be given one by one
        options.setdefault(name, []).append(value)
    given_once = {name: ",".join(values) for name, values in options.items()}
    address, unclear = f"{place}?{urlencode(given_once, quote_via=quote)}", None
    try:
        given = conninfo.conninfo_to_dict(address)
    except Error as error:
        given, unclear = {}, error
    hosts, ports = (str(given.get(name) or "").split(",") for name in ("host", "port"))
    is_certain = unclear is None and "@" not in query and all(map(str.isdecimal, filter(None, ports)))
    if not is_certain or any(hides(url, host) for host in hosts):
        raise InvalidOption(
            "it is not certain where its host begins, or an option is unknown; write '/', ':', '@', '?' in a "
            f"password as %2F, …: {shown(url)}",
            option="uri",
        ) from (unclear and as_cause(unclear, url))
    return PostgresHome(address, clock, url)
