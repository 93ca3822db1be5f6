"""The place of a log's file: a copy lies elsewhere, which sets it apart from the original."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from elasticscan.base.errors import CatalogUnavailable


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


def cannot_look(file: Path, error: OSError) -> CatalogUnavailable:
    """Return the error for a file of which the system does not even tell that it is there."""
    return CatalogUnavailable(
        f"the catalog {file} could not be looked at: {error.strerror or error}; check that its disk is "
        "mounted and well, then try again",
        detail=str(error),
        errno=error.errno,
    )
