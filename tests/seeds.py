"""Seeds of random programs, as parameters of tests."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.base.examples import FIXED


def ranges_of_seeds(count: int, size: int, short: int, variable: str = "ELASTICSCAN_SEEDS") -> list[Any]:
    """So many ranges of so many seeds, of which only the first few are not `long`.

    Instead of them those that the environment names, such as 7 or 0-5000.
    """
    text = os.environ.get(variable)
    if text:
        return [named_seeds(text)]
    marks = [() if number < short else pytest.mark.long for number in range(drawn(count))]
    return [
        pytest.param(range(number * size, (number + 1) * size), marks=mark)
        for number, mark in enumerate(marks)
    ]


def named_seeds(text: str) -> range:
    """The seeds of a text such as 7 or 0-5000."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def seeds(count: int, short: int) -> list[Any]:
    """So many seeds, of which only the first few are not `long`."""
    marks = [() if seed < short else pytest.mark.long for seed in range(drawn(count))]
    return [pytest.param(seed, marks=mark) for seed, mark in enumerate(marks)]


def drawn(count: int) -> int:
    """Half of them where `CI` is set, as of other draws there (`tests/base/examples.py`)."""
    return (count + 1) // 2 if FIXED else count
