"""The place of a log's file: a copy lies elsewhere, which sets it apart from the original."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from elasticscan.base.errors import CatalogUnavailable, WrongRoot


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


def check_one_name(path: Path | None) -> None:
    """Raise `WrongRoot` when a log's file is also that of another directory, by a link.

    What is written through one name would be the other's as well, and SQLite keeps changes for each name.
    """
    if path is None:
        return
    try:
        status = path.lstat()
    except FileNotFoundError:  # using it will tell what is wrong
        return
    except OSError as error:
        raise cannot_look(path, error) from error
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
            original=str(path),
        )


def home_of(path: Path | None, moves_to: Path | None = None) -> Home | None:
    """Return the place of a log's file; None for a server, whose copy is another server.

    `moves_to` is the path that it will have, if it is about to be renamed.
    """
    if path is None:
        return None
    try:
        status = path.stat()
    except FileNotFoundError:  # using it will tell what is wrong
        return None
    except OSError as error:  # without its place a copy would not be recognized
        raise cannot_look(path, error) from error
    return Home(status.st_ino, status.st_dev, str((moves_to or path).resolve()))


def is_there(file: Path) -> bool:
    """Return whether there is a log's file; raises `CatalogUnavailable` where that is unknown."""
    try:
        return file.exists()
    except OSError as error:
        raise cannot_look(file, error) from error


def cannot_look(file: Path, error: OSError) -> CatalogUnavailable:
    """Return the error for a file of which the system does not even tell that it is there."""
    return CatalogUnavailable(
        f"the catalog {file} could not be looked at: {error.strerror or error}; check that its disk is "
        "mounted and well, then try again",
        detail=str(error),
        errno=error.errno,
    )
