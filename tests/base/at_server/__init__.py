"""Catalogs of store directories kept at a PostgreSQL server: the tests of stores run again, unaltered.

With `ELASTICSCAN_TESTS_AT` naming a server's socket directory, a store that a test makes in a directory has
its shards there and its catalog in a schema of the server, whose URL lies where the catalog's file would.
The processes that tests start do the same, for `sitecustomize.py` alongside this is on their `PYTHONPATH`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

SERVER = "ELASTICSCAN_TESTS_AT"
STORES = Path(__file__).parent


def url_of(directory: Path, server: str, again: bool = False) -> str:
    """The URL of a schema for a directory; it is made where it is not there, or again."""
    import psycopg  # noqa: PLC0415 - an extra, which not all who run tests have

    name = "s" + hashlib.sha256(str(directory).encode()).hexdigest()[:24]
    with psycopg.connect(host=server, user="elasticscan", dbname="postgres", autocommit=True) as connection:
        if again:
            connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}".encode())
    return f"postgresql+psycopg://elasticscan@/postgres?host={server}&options=-csearch_path%3D{name}"


def redirect(server: str) -> None:
    """Have this process's stores keep their catalogs at a server."""
    from elasticscan.store.roots.location import CATALOG_FILE, Location  # noqa: PLC0415

    with_directories, catalog_url = Location.with_directories, Location.catalog_url
    assert isinstance(catalog_url, property) and catalog_url.fget is not None
    get = catalog_url.fget

    def at_server(location: Location) -> str | Path:
        if location.directory is None:
            return str(get(location))
        try:
            return (location.directory / CATALOG_FILE).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return url_of(location.directory, server)

    @contextmanager
    def with_url(location: Location, roots: Collection[str] = ()) -> Iterator[None]:
        with with_directories(location, roots):
            file = None if location.directory is None else location.directory / CATALOG_FILE
            is_new = file is not None and bool(roots) and not file.exists()  # a backup has no roots
            if file is not None and is_new:
                file.touch(0o600)
                file.write_text(url_of(file.parent, server, again=True), encoding="utf-8")
            try:
                yield
            except BaseException:
                if file is not None and is_new:
                    file.unlink()
                raise

    Location.catalog_url = property(at_server)  # type: ignore[method-assign]
    Location.with_directories = with_url  # type: ignore[method-assign]


def begin(server: str) -> None:
    """Have the stores of this process, and of all that it starts, keep their catalogs at a server."""
    os.environ[SERVER] = server
    places = [str(STORES), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    redirect(server)
