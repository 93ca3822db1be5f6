"""Errors of users' files, which are loaded, written and exported, and are no files of a store.

What a process lacks (memory, open files) is no error of a file: it is raised as everywhere else
(`resources`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import pyarrow as pa

from elasticscan.base.errors import InvalidOption, SchemaMismatch
from elasticscan.base.redaction import as_cause, shown, without
from elasticscan.base.resources import lack_in

NO_HINTS: Mapping[str, str] = MappingProxyType({})
TO_UTF8 = "iconv -f latin1 -t utf-8"
_REFUSALS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError)


@contextmanager
def naming_file(path: str, verb: str, hints: Mapping[str, str] = NO_HINTS) -> Iterator[None]:
    """Translate errors of pyarrow and the disk into ones that name the file.

    Args:
        path: the file, or the URI of it or of its directory; its password is not shown.
        verb: what cannot be done with it: "read", "written".
        hints: the next step for an error of Arrow, by a part of its text; the first that matches counts.
    """
    place = shown(path)
    try:
        yield
    except BrokenPipeError:  # no error of a file: the reader of the pipe has enough
        raise
    except OSError as error:
        if (lack := lack_in(error)) is not None:
            raise lack from error
        reason = os.strerror(error.errno) if error.errno else without(error, path)
        raise InvalidOption(f"{place} cannot be {verb}: {reason}", file=place) from as_cause(error, path)
    except UnicodeError:  # in a column's name, or that of a directory
        raise SchemaMismatch(
            f"{place} cannot be {verb}: its names or its text are not UTF-8; convert them ({TO_UTF8})",
            file=place,
        ) from None
    except _REFUSALS as error:
        hint = next((hint for said, hint in hints.items() if said in str(error)), "")
        why = f"{without(error, path)}{hint}"
        raise SchemaMismatch(f"{place} cannot be {verb}: {why}", file=place) from as_cause(error, path)
