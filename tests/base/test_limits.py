"""Names, and limits that have to fit each other."""

from __future__ import annotations

import re

import pytest

from elasticscan.base import limits
from elasticscan.base.errors import InvalidOption
from elasticscan.base.limits import NAME_PATTERN, check_name


@pytest.mark.parametrize("name", ["a", "flights", "s_1", "0", "_", "x" * 64])
def test_lower_case_letters_digits_and_underscores_are_a_name(name: str) -> None:
    assert check_name("table", name) == name
    assert re.fullmatch(NAME_PATTERN, name)


@pytest.mark.parametrize(
    "name", ["", "A", "a-b", "a.b", "a/b", "..", "a b", "a\n", "é", "x" * 65, "٣", None, 7, b"a"]
)
def test_anything_else_is_not_a_name_and_the_message_says_what_is(name: object) -> None:
    with pytest.raises(
        InvalidOption, match=r"shard name .* is not allowed: use 1 to 64 lower-case"
    ) as caught:
        check_name("shard", name)
    assert caught.value.fields == {"kind": "shard", "name": name}


def test_defaults_are_within_their_bounds() -> None:
    assert 1 <= limits.DEFAULT_TABLETS <= limits.DEFAULT_SLOTS <= limits.MAX_SLOTS
    assert 1 <= limits.DEFAULT_PAGE_ROWS <= limits.MAX_PAGE_ROWS
    assert limits.DEFAULT_PAGE_BYTES <= limits.WRITE_BUFFER_BYTES


def test_a_file_outlives_the_lease_of_whoever_may_still_read_it() -> None:
    """What nothing refers to may still be open in a reader whose lease just ended."""
    assert limits.GC_GRACE_SECONDS >= limits.LEASE_SECONDS
    assert limits.RETENTION_SECONDS > limits.LEASE_SECONDS
