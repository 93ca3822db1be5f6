"""Errors of users' files, which are loaded or exported, as opposed to files of a store.

A lack of memory or open files is not an error of a file: it is raised as elsewhere (`resources`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, SchemaMismatch
from elasticscan.base.redaction import as_cause, shown, without
from elasticscan.base.resources import lack_in

_REFUSALS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError)


@contextmanager
def naming_file(path: str, verb: str) -> Iterator[None]:
    """Translate errors of pyarrow and the disk into ones that name the file.

    Args:
        path: the file, or the URI of it or of its directory; its password is not shown.
        verb: the operation that failed: "read", "written".
    """
    place = shown(path)
    try:
        yield
    except BrokenPipeError:  # not an error of a file: the reader of the output has closed it
        raise
    except OSError as error:
        if (lack := lack_in(error)) is not None:
            raise lack from error
        reason = os.strerror(error.errno) if error.errno else without(error, path)
        raise InvalidOption(f"{place} cannot be {verb}: {reason}", file=place) from as_cause(error, path)
    except SchemaMismatch as error:
        raise SchemaMismatch(f"{place}: {error.message}", **error.fields) from error
    except UnicodeError:  # in the name of a column or a directory
        raise SchemaMismatch(
            f"{place} cannot be {verb}: its names or its text are not UTF-8; convert them", file=place
        ) from None
    except _REFUSALS as error:
        why = without(error, path)
        raise SchemaMismatch(f"{place} cannot be {verb}: {why}", file=place) from as_cause(error, path)
