"""Filters that Spark hands over, for reads with the option `pushdown`. Off by default.

In Spark 4.3 all scans of one loaded relation share one plan, and the filters of the last query
win: a second query over the same DataFrame or view, with another condition or with none, gets the
rows of the other. So this is only right when each `load()` feeds one query with one condition.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from elasticscan.base.errors import UsageError
from elasticscan.connector.options import Options
from elasticscan.connector.reading import ElasticScanReader
from elasticscan.filters import Predicate
from elasticscan.store import Store

_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "=",
    EqualNullSafe: "<=>",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_TEXT_TESTS: dict[type[Filter], str] = {
    StringStartsWith: "startswith",
    StringEndsWith: "endswith",
    StringContains: "contains",
}


class PushdownReader(ElasticScanReader):
    """A reader that takes Spark's filters. Needs `spark.sql.python.filterPushdown.enabled`."""

    def __init__(self, options: Options, schema: Any) -> None:
        super().__init__(options, schema)
        self._pushed: list[str] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that mean the same here; Spark goes on to apply the others itself."""
        with Store.open(self._options.store) as store:
            schema = store.table(self._options.table).schema
        for each in filters:
            text = filter_text(each, schema)
            if text is None:
                yield each
            else:
                self._pushed.append(text)

    def scan_filter(self) -> str | None:
        given = [] if self._options.filter is None else [self._options.filter]
        return " AND ".join(f"({text})" for text in (*given, *self._pushed)) or None


def filter_text(found: Filter, schema: pa.Schema) -> str | None:
    """The filter as SQL text, or None when it cannot be given exactly Spark's meaning."""
    text = _text(found, schema)
    if text is None:
        return None
    try:
        Predicate.parse(text, schema)
    except UsageError:
        return None
    return text


def _text(found: Filter, schema: pa.Schema) -> str | None:
    if isinstance(found, Not):
        inner = _text(found.child, schema)
        return None if inner is None else f"NOT ({inner})"
    column = _column(getattr(found, "attribute", ()), schema)
    if column is None:
        return None
    if isinstance(found, IsNull | IsNotNull):
        return f"{column} IS {'NOT ' if isinstance(found, IsNotNull) else ''}NULL"
    if isinstance(found, In):
        values = [_literal(value) for value in found.value]
        return f"{column} IN ({', '.join(v for v in values if v)})" if values and all(values) else None
    value = _literal(getattr(found, "value", None))
    if value is None:
        return None
    if type(found) in _COMPARISONS:
        return f"{column} {_COMPARISONS[type(found)]} {value}"
    if type(found) in _TEXT_TESTS:
        return f"{_TEXT_TESTS[type(found)]}({column}, {value})"
    return None


def _column(path: tuple[str, ...], schema: pa.Schema) -> str | None:
    """A plain column that has the same type here as in Spark; others are left to Spark."""
    if len(path) != 1 or path[0] not in schema.names:
        return None
    kind = schema.field(path[0]).type
    same = (
        pt.is_signed_integer(kind)
        or pt.is_boolean(kind)
        or pt.is_float64(kind)
        or pt.is_string(kind)
        or pt.is_large_string(kind)
        or pt.is_binary(kind)
        or pt.is_date32(kind)
        or pt.is_decimal128(kind)
        or (pt.is_timestamp(kind) and kind.unit == "us")
    )
    return "`{}`".format(path[0].replace("`", "``")) if same else None


def _literal(value: Any) -> str | None:
    """A value as a SQL literal of the type that Spark gave it."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return f"CAST('{value!r}' AS DOUBLE)"
        case Decimal():
            _, digits, exponent = value.as_tuple()
            if not isinstance(exponent, int) or exponent > 0 or len(digits) > 38:
                return None
            scale = -exponent
            return f"CAST('{value:f}' AS DECIMAL({max(len(digits), scale, 1)}, {scale}))"
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case bytes():
            return f"X'{value.hex()}'"
        case datetime():
            if value.tzinfo is None:
                return f"TIMESTAMP_NTZ '{value.isoformat(' ')}'"
            return f"TIMESTAMP '{value.astimezone(UTC).replace(tzinfo=None).isoformat(' ')}+00:00'"
        case date():
            return f"DATE '{value.isoformat()}'"
    return None
