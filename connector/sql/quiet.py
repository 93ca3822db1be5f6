"""Spark's log of refused queries, left out where the refusal is raised as an error anyway.

PySpark writes each error that has a place in a query to the standard error as well, as one line of JSON with
the whole stack of the JVM, before the error itself is seen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pyspark.logger import PySparkLogger

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def _is_wanted(_: logging.LogRecord) -> bool:
    return not _quiet.get()


@contextmanager
def without_log_of_errors() -> Iterator[None]:
    """Write none of these lines in this thread meanwhile."""
    for name in _LOGGERS:
        PySparkLogger.getLogger(name).addFilter(_is_wanted)  # once, however often it is called
    before = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(before)
