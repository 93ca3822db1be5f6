"""Rows as frames of pandas and Polars, which are imported when a frame is asked for, and not before."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pyarrow as pa

from elasticscan.base.errors import InvalidOption

# What pandas calls the types of columns that else would become floats, or objects, for the sake of a null.
_NULLABLE = {
    pa.bool_(): "BooleanDtype",
    **{getattr(pa, f"int{bits}")(): f"Int{bits}Dtype" for bits in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{bits}")(): f"UInt{bits}Dtype" for bits in (8, 16, 32, 64)},
}


def pandas_frame(read: Callable[[], pa.Table]) -> Any:
    """Return the rows that `read` gives as a pandas frame, exactly: see `Scan.to_pandas`.

    Raises `InvalidOption` where pandas is not installed, before anything is read.
    """
    pandas = _library("pandas")
    rows = read()
    with_nulls = {column.type for column in rows.columns if column.null_count}
    nullable = {kind: getattr(pandas, name)() for kind, name in _NULLABLE.items() if kind in with_nulls}
    return rows.to_pandas(types_mapper=nullable.get)


def polars_frame(read: Callable[[], pa.Table]) -> Any:
    """Return the rows that `read` gives as a Polars frame; raises as `pandas_frame`."""
    polars = _library("polars")
    return polars.from_arrow(read())


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidOption(f"{name} is not installed: pip install {name}; or use to_table()") from error
