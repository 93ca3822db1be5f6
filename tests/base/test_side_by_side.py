"""Work side by side, also where there are no more threads, and where the main thread has ended."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from elasticscan.base.side_by_side import all_side_by_side, side_by_side


def squares(items: list[int], most: int = 2) -> list[int]:
    with side_by_side(lambda item: item * item, items, most) as outcomes:
        return sorted(outcome.result() for outcome in outcomes)


def test_all_is_done_once() -> None:
    assert squares(list(range(100))) == [item * item for item in range(100)]
    assert squares([]) == []
    assert squares([3], most=9) == [9]


@pytest.mark.parametrize("started", [0, 1])
def test_fewer_threads_do_it_and_none_too(monkeypatch: pytest.MonkeyPatch, started: int) -> None:
    start, count = threading.Thread.start, [0]

    def refusing(thread: threading.Thread) -> None:
        count[0] += 1
        if count[0] > started:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    assert squares(list(range(50))) == [item * item for item in range(50)]


def test_an_error_is_an_outcome_and_the_others_go_on() -> None:
    with side_by_side(lambda item: 1 // item, [1, 0, 2], 2) as outcomes:
        errors = [outcome.exception() for outcome in outcomes]
    assert sorted(type(error).__name__ for error in errors) == ["NoneType", "NoneType", "ZeroDivisionError"]


def test_what_has_not_begun_is_given_up_and_what_is_under_way_ends() -> None:
    go_on, begun, ended = threading.Event(), list[int](), list[int]()

    def work(item: int) -> None:
        begun.append(item)
        if item:
            go_on.wait()
        ended.append(item)

    with side_by_side(work, range(10), 2) as outcomes:
        next(outcomes)
        threading.Timer(0.05, go_on.set).start()
    assert sorted(begun) == sorted(ended)
    assert len(begun) < 10


def test_it_works_in_a_thread_that_outlives_the_main_thread() -> None:
    code = """
import threading, time
from elasticscan.base.side_by_side import side_by_side

def late():
    threading.main_thread().join()
    time.sleep(0.2)
    with side_by_side(lambda item: item + 1, [1, 2, 3], 2) as outcomes:
        print(sorted(outcome.result() for outcome in outcomes), flush=True)

threading.Thread(target=late).start()
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout, run.returncode) == ("[2, 3, 4]\n", 0), run.stderr


def test_results_come_in_the_order_of_their_items() -> None:
    first = threading.Event()

    def work(item: int) -> int:
        if item:
            first.set()
        else:
            assert first.wait(60)
        return item * item

    assert all_side_by_side(work, [0, 1, 2], 2) == [0, 1, 4]
    assert all_side_by_side(work, [], 2) == []
    assert all_side_by_side(lambda _: threading.current_thread(), [1], 2) == [threading.main_thread()]


def test_so_many_are_under_way_and_no_more() -> None:
    lock, all_of_them, under_way = threading.Lock(), threading.Barrier(3), list[int]()
    now = [0]

    def work(_: int) -> None:
        with lock:
            now[0] += 1
            under_way.append(now[0])
        all_of_them.wait(60)
        with lock:
            now[0] -= 1

    all_side_by_side(work, range(12), 3)
    assert max(under_way) == 3


def test_some_are_done_by_who_asks_and_before_the_others() -> None:
    def work(item: int) -> tuple[int, bool]:
        order.append(item)
        return item, threading.current_thread() is threading.main_thread()

    order = list[int]()
    made = all_side_by_side(work, [1, 2, 3, 4], 2, alone=lambda item: item % 2 == 0)
    assert made == [(1, False), (2, True), (3, False), (4, True)]
    assert order[:2] == [2, 4]


def test_the_first_error_is_raised_when_nothing_is_under_way() -> None:
    begun, done = threading.Event(), list[int]()

    def work(item: int) -> None:
        if item == 1:
            assert begun.wait(60)
            raise ValueError("the second")
        begun.set()
        done.append(item)

    with pytest.raises(ValueError, match="the second"):
        all_side_by_side(work, [0, 1], 2)
    assert done == [0]
