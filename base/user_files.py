"""Errors of users' files: those that are loaded, written and exported, which are no files of a store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, SchemaMismatch

_REFUSALS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError)


@contextmanager
def naming_file(path: str, verb: str, hint: str = "") -> Iterator[None]:
    """Translate errors of pyarrow and the disk into ones that name the file.

    Args:
        path: what is shown of it.
        verb: what cannot be done with it: "read", "written".
        hint: what to do where Arrow refuses its rows.
    """
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InvalidOption(f"{path} cannot be {verb}: {reason}", file=path) from error
    except _REFUSALS as error:
        raise SchemaMismatch(f"{path} cannot be {verb}: {error}{hint}", file=path) from error
