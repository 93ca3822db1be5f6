"""The nearest right name, also of words that nobody would want to wait for."""

from __future__ import annotations

from difflib import SequenceMatcher

import pytest

from elasticscan.base import nearness
from elasticscan.base.nearness import by_nearness, nearest


def test_a_slip_is_reported_and_nothing_else() -> None:
    assert nearest("tirps", ["cities", "trips"]) == "trips"
    assert nearest("tirps", {"cities": 1, "trips": 2}) == "trips"
    assert nearest("flights", ["cities", "trips"]) is None
    assert nearest("tirps", ["trips"], 0.9) is None
    assert by_nearness("KM", ["id", "km_h", "km"]) == ["km", "km_h", "id"]


def test_a_word_longer_than_any_name_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    class Counting(SequenceMatcher[str]):
        def set_seq2(self, b: str) -> None:
            lengths.append(len(b))
            super().set_seq2(b)

    long = "trips" * (1 << 20)
    monkeypatch.setattr(nearness, "SequenceMatcher", Counting)
    monkeypatch.setattr(nearness, "get_close_matches", None)
    assert nearest(long, ["trips"]) is None
    assert by_nearness(long, ["trips", "id"]) == ["trips", "id"]
    assert max(lengths) <= 512
