"""Random conditions: SQL text, and a plain function that computes the expected result for a row."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

Values = dict[str, Any]
Means = Callable[[Values], bool | None]  # whether it is true of a row: None for unknown
Condition = tuple[str, Means]  # with its SQL

NAN, INFINITY = math.nan, math.inf
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def rank(value: Any) -> Any:
    """A key with the order of values: NaN equals itself and is above all others, texts sort by bytes."""
    if isinstance(value, int | float | Decimal):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


def always(_row: Values) -> bool:
    return True


def order_of(columns: Sequence[str]) -> Callable[[Values], Any]:
    """A function that returns a sort key of rows by columns: nulls come first."""
    return lambda row: [(row[c] is not None, None if row[c] is None else rank(row[c])) for c in columns]


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        if math.isfinite(value):
            return f"{value!r}D"
        return f"CAST('{'NaN' if math.isnan(value) else 'Infinity' if value > 0 else '-Infinity'}' AS DOUBLE)"
    if isinstance(value, date):  # or a moment
        return f"{'TIMESTAMP_NTZ' if isinstance(value, datetime) else 'DATE'} '{value}'"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def some_condition(chance: random.Random, domains: Mapping[str, Sequence[Any]], depth: int = 2) -> Condition:
    """A condition on columns with these values (no nulls among them)."""
    kind = chance.choice(["leaf", "leaf", "and", "or", "not"]) if depth else "leaf"
    if kind == "leaf":
        name = chance.choice(list(domains))
        return _leaf(chance, name, domains[name])
    if kind == "not":
        text, means = some_condition(chance, domains, depth - 1)
        return f"NOT ({text})", lambda row: None if (found := means(row)) is None else not found
    parts = [some_condition(chance, domains, depth - 1) for _ in range(2)]
    joined = f" {kind.upper()} ".join(f"({text})" for text, _ in parts)
    decisive = kind == "or"

    def both(row: Values) -> bool | None:
        found = [means(row) for _, means in parts]
        return decisive if decisive in found else None if None in found else not decisive

    return joined, both


def _leaf(chance: random.Random, name: str, domain: Sequence[Any]) -> Condition:
    kind = chance.choice(["compare", "compare", "compare", "between", "in", "null", "like"])
    first, second = chance.choice(domain), chance.choice(domain)
    if kind == "null":
        is_null = chance.random() < 0.5
        text = f"{name} IS {'' if is_null else 'NOT '}NULL"
        return text, lambda row: (row[name] is None) == is_null
    if kind == "between":
        text = f"{name} BETWEEN {literal(first)} AND {literal(second)}"
        return text, _unless_null(name, lambda value: rank(first) <= rank(value) <= rank(second))
    if kind == "in":
        values = chance.choices(domain, k=chance.randint(1, 4))
        text = f"{name} IN ({', '.join(map(literal, values))})"
        ranks = [rank(value) for value in values]
        return text, _unless_null(name, lambda value: rank(value) in ranks)
    if kind == "like" and isinstance(first, str):
        prefix = first[: chance.randint(0, 2)].replace("%", "")
        return f"{name} LIKE '{prefix}%'", _unless_null(name, lambda value: value.startswith(prefix))
    sign = chance.choice(list(OPERATORS))
    compare = OPERATORS[sign]
    text = f"{name} {sign} {literal(first)}"
    return text, _unless_null(name, lambda value: compare(rank(value), rank(first)))


def _unless_null(name: str, test: Callable[[Any], bool]) -> Means:
    return lambda row: None if row[name] is None else test(row[name])
