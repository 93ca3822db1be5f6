"""The place of a catalog's file: a copy lies elsewhere, which sets it apart from the original."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from sqlalchemy import Engine

from elasticscan.base.errors import WrongRoot
from elasticscan.catalog.failures import cannot_look

_TRUSTED_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Home:
    """A file's place. Renaming it, or its directory, within a file system changes the path alone.

    A restart may give a file system another device number; then the path is still the same.
    """

    inode: int
    device: int
    path: str

    def is_place_of(self, home: Home) -> bool:
        same_file = self.inode == home.inode
        return same_file and (self.device == home.device or self.path == home.path)

    def pack(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def unpack(text: str) -> Home:
        """Raise `ValueError` or `TypeError` for any other text."""
        return Home(**json.loads(text))


FileId = tuple[int, int]  # device and inode


@dataclass(slots=True)
class OpenedFiles:
    """The files that connections have open, to see whether they are the files that others open now.

    Attributes:
        alongside: the log and its index; None for one that SQLite had not made yet.
        trusted_until: a time of `monotonic`; readers need not look again before.
    """

    path: str
    database: FileId
    beside: tuple[FileId | None, FileId | None]
    trusted_until: float = 0.0

    @staticmethod
    def look(path: str) -> OpenedFiles | None:
        """Return the files at a path; None where there is no database."""
        database = _id_of(path)
        if database is None:
            return None
        return OpenedFiles(path, database, (_id_of(path + "-wal"), _id_of(path + "-shm")))

    def are_there(self) -> bool:
        now = monotonic()
        if _id_of(self.path) != self.database:
            return False
        for end, file in zip(("-wal", "-shm"), self.beside, strict=True):
            if file is not None and _id_of(self.path + end) != file:
                return False
        self.trusted_until = now + _TRUSTED_SECONDS
        return True


def _id_of(path: str) -> FileId | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - asked for with each page
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _file_of(engine: Engine) -> str | None:
    return engine.url.database if engine.url.get_backend_name() == "sqlite" else None


def check_one_name(engine: Engine) -> None:
    """Raise `WrongRoot` when a catalog's file is also that of another directory, by a link.

    What is written through one name would be the other's as well, and SQLite keeps a log for each name.
    """
    path = _file_of(engine)
    if path is None:
        return
    try:
        status = os.lstat(path)
    except FileNotFoundError:  # using it will tell what is wrong
        return
    except OSError as error:
        raise cannot_look(Path(path), error) from error
    if stat.S_ISLNK(status.st_mode):
        raise WrongRoot(
            f"{path} is a symbolic link to the catalog {os.path.realpath(path)}, not a copy; open the store "
            "there, or make a real copy (`cp -r`)",
            original=os.path.realpath(path),
        )
    if status.st_nlink > 1:
        raise WrongRoot(
            f"{path} has {status.st_nlink} names (hard links), and a write would change all of them; make a "
            "real copy (`cp -r`) in place of one",
            original=path,
        )


def home_of(engine: Engine) -> Home | None:
    """Return the home of a catalog's file; None for a database server, whose copy is another server."""
    path = _file_of(engine)
    if path is None:
        return None
    try:
        status = Path(path).stat()
    except FileNotFoundError:  # using it will tell what is wrong
        return None
    except OSError as error:  # without its home a copy would not be recognized
        raise cannot_look(Path(path), error) from error
    return Home(status.st_ino, status.st_dev, str(Path(path).resolve()))
