"""Where a catalog's file lies: a copy of it lies elsewhere, and is told from the original by that."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import Engine


@dataclass(frozen=True, slots=True)
class Home:
    """A file's place. Renaming it, or its directory, within a file system changes the path alone.

    A restart may give a file system another device number; then the path is still the same.
    """

    inode: int
    device: int
    path: str

    def is_place_of(self, other: Home) -> bool:
        same_file = self.inode == other.inode
        return same_file and (self.device == other.device or self.path == other.path)

    def pack(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def unpack(text: str) -> Home:
        """Raises `ValueError` or `TypeError` when nobody wrote that."""
        return Home(**json.loads(text))


def home_of(engine: Engine) -> Home | None:
    """None for a database that is no file: whoever copies it makes a server of its own for it."""
    path = engine.url.database
    if engine.url.get_backend_name() != "sqlite" or path is None:
        return None
    try:
        found = Path(path).stat()
    except OSError:  # using it will tell what is wrong
        return None
    return Home(found.st_ino, found.st_dev, str(Path(path).resolve()))
