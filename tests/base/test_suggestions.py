"""A name that does not exist is answered with the one that was probably meant."""

from __future__ import annotations

import time

import pytest

from elasticscan.base.suggestions import suggest


@pytest.mark.parametrize(
    ("name", "names", "clause"),
    [
        ("tirps", ["cities", "trips"], "; did you mean 'trips'?"),
        ("TRIPS", ["cities", "Trips"], "; did you mean 'Trips'?"),
        ("flights", ["cities", "trips"], ""),
        ("x", [], ""),
        ("", ["trips"], ""),
    ],
)
def test_the_most_similar_name_is_suggested_in_any_case(name: str, names: list[str], clause: str) -> None:
    assert suggest(name, names) == clause


def test_a_very_long_name_is_not_compared() -> None:
    began = time.monotonic()
    assert suggest("trips" * (1 << 20), ["trips"] * 1000) == ""
    assert time.monotonic() - began < 1
