"""The home of a log that a URL names: a file, or a database at a PostgreSQL server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

from elasticscan.base.clock import Clock
from elasticscan.base.errors import ElasticScanError, InvalidOption, StoreNotFound
from elasticscan.base.redaction import hides, shown
from elasticscan.catalog import tables
from elasticscan.catalog.home import LogHome, head_in, unavailable
from elasticscan.catalog.place import is_there
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.catalog.sqlite_files import make_file, why_not_writable

if TYPE_CHECKING:
    from elasticscan.catalog.postgres import PostgresHome

_URL: Final = re.compile(
    r"""(?P<scheme>[\w+]+)://
    (?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?
    (?:(?:\[(?P<host6>[^/?]+)\]|(?P<host>[^/:?]+))?(?::(?P<port>[^/?]*))?)?
    (?:/(?P<database>[^?]*))?
    (?:\?(?P<query>.*))?""",
    re.VERBOSE | re.DOTALL,
)
_SQLITE: Final = "sqlite"
_POSTGRES: Final = ("postgresql", "postgresql+psycopg")
_NO_FILE: Final = ("", ":memory:")


@dataclass(frozen=True, slots=True)
class _Url:
    """The parts of a URL, without the escapes that they have there."""

    scheme: str
    user: str | None
    password: str | None
    host: str | None
    port: str | None
    database: str | None
    query: Mapping[str, str]

    @classmethod
    def parse(cls, url: str) -> _Url | None:
        """Return the parts of a URL; None for what is none."""
        found = _URL.fullmatch(url)
        if found is None:
            return None
        user, password = (None if part is None else unquote(part) for part in found.group("user", "password"))
        query = dict[str, list[str]]()
        for name, value in parse_qsl(found["query"] or "", keep_blank_values=True):
            query.setdefault(name, []).append(value)
        host = found["host6"] or found["host"]
        options = {name: ",".join(values) for name, values in query.items()}
        return cls(found["scheme"], user, password, host, found["port"] or None, found["database"], options)


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
    if file is not None and is_there(file):
        why = why or why_not_writable(file)
    home = _home_at_server(str(url), clock) if file is None else SqliteHome(file, clock, why_read_only=why)
    try:
        if not _has_tables(home):
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
    """Give the home of a new log, whose tables are made in the first transaction that writes to it.

    So there is a log after that transaction, or nothing. Of processes that make one at once, one succeeds.

    Raises:
        AlreadyExists: there is a log.
    """
    file = _checked_file(url)
    if file is None:
        with closing(_home_at_server(str(url), clock, making=where)) as server:
            server.look()
            yield server
        return
    # The mode of a store's directory says who may read the store; other directories' modes do not.
    is_new = make_file(file, like_directory=isinstance(url, Path))
    if not is_new and not is_there(file):
        raise unavailable(f"unable to open database file: no {file}")
    with closing(SqliteHome(file, clock, making=where)) as home:
        try:
            yield home
        except BaseException:
            if is_new:
                with suppress(ElasticScanError, OSError):
                    home.remove_empty()
            raise


def holds_store(url: str | Path) -> bool:
    """Return whether there is a store's log; makes nothing, not even an empty file, and changes none."""
    file = _checked_file(url)
    if file is None:
        home: SqliteHome | PostgresHome = _home_at_server(str(url), None)
    elif is_there(file) and file.stat().st_size:
        home = SqliteHome(file, why_read_only="it is looked at")
    else:
        return False
    with closing(home):
        return _has_tables(home) and head_in(home.execute(tables.HEAD))[0] != -1


def _has_tables(home: SqliteHome | PostgresHome) -> bool:
    return home.has_tables() if isinstance(home, SqliteHome) else home.look()


def _checked_file(url: str | Path) -> Path | None:
    """Return the file of a log, or None for a server's. Raises `InvalidOption` for other URLs."""
    if isinstance(url, Path):
        return url
    parsed = _Url.parse(url)
    scheme = "" if parsed is None else parsed.scheme
    if parsed is None or scheme not in (_SQLITE, *_POSTGRES):
        raise InvalidOption(
            f"{shown(url)} is neither a directory nor the URL of a database that can hold a catalog; name a "
            "directory, or postgresql+psycopg://…",
            option="uri",
        )
    if parsed.port is not None and not parsed.port.isdecimal():
        raise InvalidOption(
            "it names a port that is no number; write '/', ':', '@' and '?' in a password as "
            f"%2F, %3A, %40 and %3F: {shown(url)}",
            option="uri",
        )
    if hides(url, parsed.host):
        raise InvalidOption(
            "it is not certain where its host begins; write '/', ':', '@' and '?' in a password as "
            f"%2F, %3A, %40 and %3F: {shown(url)}",
            option="uri",
        )
    if scheme in _POSTGRES:
        return None
    if parsed.database in (None, *_NO_FILE):
        raise InvalidOption(f"{shown(url)} names no file; a catalog has to outlive its process", option="uri")
    if parsed.host or parsed.user or parsed.port or parsed.query:
        raise InvalidOption(f"{shown(url)} names more than a file; write sqlite:///PATH", option="uri")
    return Path(str(parsed.database))


def _home_at_server(url: str, clock: Clock | None, making: str | None = None) -> PostgresHome:
    parsed = _Url.parse(url)
    assert parsed is not None, "it was checked"
    try:
        from psycopg import conninfo, pq  # noqa: PLC0415 - an extra, which not all installations have

        from elasticscan.catalog.postgres import PostgresHome  # noqa: PLC0415
    except ImportError as error:
        raise InvalidOption(
            f"the driver for {parsed.scheme} is not installed ({error}); for PostgreSQL: "
            "pip install 'elasticscan[postgres]'",
            option="uri",
        ) from error
    # The error of PostgreSQL's library would name an option, with the rest of a password after a '?'.
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    if not parsed.query.keys() <= known:
        raise InvalidOption(
            "options of the connection that PostgreSQL does not know; write '?', '&' and '=' in a password "
            f"as %3F, %26 and %3D: {shown(url)}",
            option="uri",
        )
    named: dict[str, Any] = {
        "user": parsed.user,
        "password": parsed.password,
        "host": parsed.host,
        "port": parsed.port,
        "dbname": parsed.database,
    }
    given = {name: value for name, value in named.items() if value} | dict(parsed.query)
    return PostgresHome(conninfo.make_conninfo("", **given), clock, url, making)
