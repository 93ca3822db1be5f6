"""Work in parallel, cached properties, and locks of modules."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from elasticscan.base.concurrency import cached_property, parallel, renewed_in_child

SECONDS = 60

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class _Slow:
    def __init__(self) -> None:
        self.begun, self.leave = threading.Event(), threading.Event()

    @cached_property
    def value(self) -> int:
        """A number."""
        self.begun.set()
        self.leave.wait(SECONDS)
        return 1


def test_results_come_in_the_order_of_their_items_and_one_item_needs_no_thread() -> None:
    both = threading.Barrier(2)

    def work(number: int) -> int:
        both.wait(SECONDS)
        return -number

    assert parallel(work, range(4), 2) == [0, -1, -2, -3]
    assert parallel(lambda _: threading.current_thread(), [0], 8) == [threading.current_thread()]


def test_without_threads_the_caller_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert parallel(lambda number: (number, threading.get_ident()), range(3), 2) == [
        (number, threading.get_ident()) for number in range(3)
    ]


def test_what_has_begun_is_awaited_and_nothing_else_begins_after_an_error() -> None:
    begun, ended, first = list[int](), list[int](), threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            first.set()
            raise ValueError(number)
        first.wait(SECONDS)
        time.sleep(0.05)
        ended.append(number)

    with pytest.raises(ValueError, match="0"):
        parallel(work, range(100), 2)
    assert sorted(begun) == sorted([0, *ended])
    assert len(begun) < 100


def test_threads_do_not_wait_for_properties_of_other_instances() -> None:
    slow, other = _Slow(), _Slow()
    other.leave.set()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    slow.begun.wait(SECONDS)
    assert other.value == 1
    assert not slow.leave.is_set()
    slow.leave.set()
    thread.join()
    vars(slow)["value"] = first = object()
    assert slow.value is first, "it is computed once"
    assert _Slow.value.__doc__ == "A number."


def test_a_lock_that_another_thread_holds_is_unlocked_in_a_forked_child() -> None:
    lock, held, leave = renewed_in_child(threading.Lock), threading.Event(), threading.Event()

    def hold() -> None:
        with lock():
            held.set()
            leave.wait(SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(SECONDS)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        with lock():
            os._exit(0)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert lock() is lock()
