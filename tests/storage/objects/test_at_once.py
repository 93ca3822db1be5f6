"""Requests beside each other: all are made, few at a time, and the first error is told."""

from __future__ import annotations

from functools import partial
from threading import Barrier, Lock, Thread, active_count

import pytest

from elasticscan.base.errors import ShardUnavailable
from elasticscan.storage.objects.at_once import MOST_AT_ONCE, at_once


def test_all_requests_are_made_and_so_many_at_once() -> None:
    made, meeting, before = list[int](), Barrier(MOST_AT_ONCE), active_count()

    def request(number: int) -> None:
        meeting.wait(30)  # breaks unless as many come
        made.append(number)

    at_once([partial(request, number) for number in range(4 * MOST_AT_ONCE)])
    assert sorted(made) == list(range(4 * MOST_AT_ONCE)) and active_count() == before
    at_once([])


def test_requests_are_made_without_threads_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refuse)
    made = list[int]()
    at_once([partial(made.append, number) for number in range(10)])
    assert made == list(range(10))


def test_an_error_is_raised_once_no_request_is_under_way() -> None:
    lock, under_way = Lock(), [0]

    def request(number: int) -> None:
        with lock:
            under_way[0] += 1
        try:
            if number == 3:
                raise ShardUnavailable("as the test says", root="r")
        finally:
            with lock:
                under_way[0] -= 1

    with pytest.raises(ShardUnavailable):
        at_once([partial(request, number) for number in range(50)])
    assert under_way == [0]
