"""Names, those that were meant, and limits that have to fit each other."""

from __future__ import annotations

import re

import pytest

from elasticscan.base import limits
from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import NAME_PATTERN, check_name
from elasticscan.base.suggestions import suggest


@pytest.mark.parametrize("name", ["a", "flights", "s_1", "0", "_", "x" * 64])
def test_lower_case_letters_digits_and_underscores_are_a_name(name: str) -> None:
    assert check_name("table", name) == name
    assert re.fullmatch(NAME_PATTERN, name)
    longer = [f"{name}{end}" for end in ("A", "-b", "/b", "\n", "é", "٣")]
    for wrong in (*longer, name * 65, "", None, 7):
        with pytest.raises(InvalidOption, match=r"shard name .* is not allowed: use 1 to 64 lower-case"):
            check_name("shard", wrong)


def test_defaults_are_within_their_bounds_and_files_outlive_the_leases_of_their_readers() -> None:
    assert 1 <= limits.DEFAULT_TABLETS <= limits.DEFAULT_SLOTS <= limits.MAX_SLOTS
    assert 1 <= limits.DEFAULT_PAGE_ROWS <= limits.MAX_PAGE_ROWS
    assert limits.DEFAULT_PAGE_BYTES <= limits.WRITE_BUFFER_BYTES
    assert limits.GC_GRACE_SECONDS >= limits.LEASE_SECONDS
    assert limits.RETENTION_SECONDS > limits.LEASE_SECONDS


@pytest.mark.parametrize(
    ("name", "names", "clause"),
    [
        ("tirps", ["cities", "trips"], "; did you mean 'trips'?"),
        ("TRIPS", ["cities", "Trips"], "; did you mean 'Trips'?"),
        ("flights", ["cities", "trips"], ""),
        ("x", [], ""),
        ("", ["trips"], ""),
        ("trips" * (1 << 20), ["trips"] * 1_000, ""),  # it would take minutes to compare them
    ],
)
def test_the_most_similar_name_is_suggested_in_any_case(name: str, names: list[str], clause: str) -> None:
    assert suggest(name, names) == clause
