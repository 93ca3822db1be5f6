"""Opening and creation of the log at a URL: a SQLite file, or a database of a PostgreSQL server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, urlencode
from weakref import finalize

from elasticscan.base.clock import Clock
from elasticscan.base.errors import ElasticScanError, InvalidOption, NotFound
from elasticscan.base.hashing import HASH
from elasticscan.base.redaction import as_cause, shown
from elasticscan.catalog.catalog import Catalog
from elasticscan.catalog.database import LogHome
from elasticscan.catalog.entries import Append, damaged_log
from elasticscan.catalog.secrets import KEYS, OFFSETS, new_secret
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.catalog.sqlite_files import make_file
from elasticscan.catalog.tables import Dump
from elasticscan.catalog.topology_history import first_topology
from elasticscan.catalog.transaction import Tx
from elasticscan.metadata import ShardDefined, StoreCreated

if TYPE_CHECKING:
    from elasticscan.catalog.postgres import PostgresHome

_POSTGRES: Final = re.compile(r"postgresql(\+psycopg)?://")


def open_catalog(url: str | Path, clock: Clock, where: str, read_only: bool = False) -> Catalog:
    """Open the catalog of a store. Arguments and errors are those of `open_home`."""
    catalog = Catalog(open_home(url, clock, where, read_only))
    finalize(catalog, catalog.home.close).atexit = False
    hashed = catalog.follow().hash
    if hashed != HASH:
        raise damaged_log(f"its slots have the hash {hashed!r}, which this release does not know")
    return catalog


def open_home(url: str | Path, clock: Clock | None, where: str, read_only: bool = False) -> LogHome:
    """Open the database of a log. A log that cannot be written is read without any change of files.

    Args:
        url: a file as a `Path`, which may contain any character, or a URL.
        where: the name of the store in errors.

    Raises:
        InvalidOption: the URL is not that of a supported database.
        NotFound: the database has no log.
    """
    home = _home_of(url, clock)
    try:
        home.why_read_only = "it was opened with read_only=True" if read_only else None
        is_empty = home.file is not None and not (home.file.is_file() and home.file.stat().st_size)
        if is_empty or not home.inspect():
            raise NotFound(
                f"{where} holds no elasticscan store; "
                "create one with elasticscan.create or `elasticscan create`",
                uri=where,
                kind="store",
            )
    except BaseException:
        home.close()
        raise
    return home


@contextmanager
def make_home(url: str | Path, clock: Clock) -> Iterator[LogHome]:
    """Yield the home of a new log, with empty tables. The caller appends the first record.

    If several processes do so at the same time, one of them succeeds (`Catalog.beginning`).
    """
    with closing(_home_of(url, clock)) as home:
        # A `Path` lies in the store's directory, whose mode says who may read the store.
        is_new = home.file is not None and make_file(home.file, like_directory=isinstance(url, Path))
        try:
            if not home.inspect():
                home.make_tables()
            yield home
        except BaseException:
            if is_new:
                with suppress(ElasticScanError, OSError):
                    home.remove_empty()
            raise


def create_catalog(
    url: str | Path, clock: Clock, new: StoreCreated, prepare: Callable[[Tx], None] = lambda _: None
) -> None:
    """Create a log with its first record `new`, or change nothing if there is a log already.

    The record gets the time and new secrets. `prepare` is called with the transaction before it commits.
    """
    with make_home(url, clock) as home, Catalog(home).beginning() as tx:
        now = home.clock.now()
        secrets = new_secret(1, OFFSETS, now), new_secret(2, KEYS, now)
        first = replace(new, created_at=now, secrets=secrets)
        tx.append(Append(first, topology=first_topology(first)))
        prepare(tx)


def copy_catalog(
    url: str | Path,
    clock: Clock,
    copied: Dump,
    roots: Mapping[int, str],
    prepare: Callable[[Tx], None],
) -> None:
    """Create a log with the rows of another one; `roots` are the new roots of its shards, by id.

    The copy has the identity of the original until `prepare` gives it a new one. Raises `StoreDamaged`.
    """
    with make_home(url, clock) as home, Catalog(home).beginning(copied) as tx:
        for shard in tx.state.all_shards:
            is_removed = shard.id in tx.state.removed_shards
            tx.append(ShardDefined(replace(shard, root=roots[shard.id]), is_removed))
        prepare(tx)


def holds_store(url: str | Path) -> bool:
    """Return whether a URL has a store's log; creates and changes no file."""
    with suppress(NotFound), closing(open_home(url, None, "here", read_only=True)) as home:
        return home.is_begun()
    return False


def _home_of(url: str | Path, clock: Clock | None) -> SqliteHome | PostgresHome:
    """Return the home for a URL, without opening the database. Raises `InvalidOption`."""
    if isinstance(url, Path):
        return SqliteHome(url, clock)
    if _POSTGRES.match(url):
        return _home_at_server(url, clock)
    scheme, _, file = url.partition(":///")
    if scheme != "sqlite" or file in ("", ":memory:") or "?" in file:
        raise InvalidOption(
            f"{shown(url)} is neither a directory nor the URL of a catalog; name a directory, sqlite:///PATH "
            "or postgresql+psycopg://…",
            option="uri",
        )
    return SqliteHome(Path(file), clock)


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
    options = dict[str, str]()
    for name, value in parse_qsl(query, keep_blank_values=True):  # `host` and `port` may be repeated
        options[name] = f"{options[name]},{value}" if name in options else value
    address, problem = f"{place}?{urlencode(options, quote_via=quote)}", None
    try:
        parameters = conninfo.conninfo_to_dict(address)
    except Error as error:
        parameters, problem = {}, error
    hosts, ports = (str(parameters.get(name) or "").split(",") for name in ("host", "port"))
    is_certain = problem is None and "@" not in query and all(map(str.isdecimal, filter(None, ports)))
    if not is_certain or any(host not in shown(url) for host in hosts):  # and would be named in errors
        raise InvalidOption(
            "the URL does not show where its host begins, or an option is unknown; write '/', ':', '@', '?' "
            f"in a password as %2F, …: {shown(url)}",
            option="uri",
        ) from (problem and as_cause(problem, url))
    return PostgresHome(address, clock, url)
