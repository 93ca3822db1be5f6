"""Errors of users' files: those that are loaded, written and exported, which are no files of a store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, SchemaMismatch
from elasticscan.base.redaction import as_cause, shown, without

_REFUSALS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError)


@contextmanager
def naming_file(path: str, verb: str, hint: str = "") -> Iterator[None]:
    """Translate errors of pyarrow and the disk into ones that name the file.

    Args:
        path: the file, or the URI of it or of its directory; its password is not shown.
        verb: what cannot be done with it: "read", "written".
        hint: what to do where Arrow refuses its rows.
    """
    place = shown(path)
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else without(error, path)
        raise InvalidOption(f"{place} cannot be {verb}: {reason}", file=place) from as_cause(error, path)
    except _REFUSALS as error:
        why = f"{without(error, path)}{hint}"
        raise SchemaMismatch(f"{place} cannot be {verb}: {why}", file=place) from as_cause(error, path)
