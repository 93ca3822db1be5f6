"""The log of a catalog in SQLite that has lost commits, kept aside.

SQLite reads its log (`-wal`) as far as checksums are right. The rest it writes over, or removes with the last
connection. That is as it should be after a write that was cut off, but the same happens to acknowledged
commits behind a damaged bit. Where the shards know commits that the catalog does not, the log is therefore
copied alongside it before anybody writes, once for each newest commit that is known.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from contextlib import suppress
from glob import escape
from pathlib import Path

from elasticscan.base.errors import CatalogUnavailable
from elasticscan.catalog.failures import cannot_look, is_there

_HEAD_BYTES = 32  # of a log that holds nothing
_PART_SECONDS = 3_600  # a copy without additions for so long is abandoned


def log_of(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


def holds_anything(log: Path) -> bool:
    """Return whether a log has more than its head; raises `CatalogUnavailable` where that is unknown."""
    try:
        return log.stat().st_size > _HEAD_BYTES
    except FileNotFoundError:
        return False
    except OSError as error:
        raise cannot_look(log, error) from error


def keep_log(file: Path, known: str) -> None:
    """Copy a catalog's log alongside it, with the log's mode, unless that was done; as well as may be.

    Args:
        known: what of the lost is known; a part of the copy's name.
    """
    log = log_of(file)
    kept = log.with_name(f"{log.name}.kept-{known}")
    try:
        if is_there(kept) or not holds_anything(log):
            return
        _remove_parts(log)
    except (OSError, CatalogUnavailable):  # using the catalog raises it
        return
    part = log.with_name(f"{log.name}.part-{secrets.token_hex(4)}")  # it has its name when it is whole
    try:
        with log.open("rb") as source:
            mode = os.fstat(source.fileno()).st_mode & 0o777
            made = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            with open(made, "wb") as target:
                os.fchmod(made, mode)
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(made)
        part.rename(kept)
    except OSError:
        with suppress(OSError):
            part.unlink()


def _remove_parts(log: Path) -> None:
    """Remove the copies that processes began and were killed over; others may be at work on theirs."""
    for part in log.parent.glob(f"{escape(log.name)}.part-*"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > _PART_SECONDS:
                part.unlink()


def kept_logs(file: Path) -> list[Path]:
    """Return the logs that were kept alongside a catalog, as far as its directory can be read."""
    with suppress(OSError):
        return sorted(file.parent.glob(f"{escape(file.name)}-wal.kept-*"))
    return []
