"""Threads that end before they begin."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from elasticscan.base import side_by_side as side_by_side_module
from elasticscan.base import threads
from elasticscan.base.side_by_side import side_by_side
from elasticscan.base.threads import BoundedThread


@pytest.fixture
def stillborn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that the system starts, and that have no memory to begin with."""
    monkeypatch.setattr(threads, "START_SECONDS", 0.1)
    for name in ("_start_new_thread", "_start_joinable_thread"):  # up to Python 3.12, and since 3.13
        monkeypatch.setattr(threading, name, lambda *_, **__: 1, raising=False)


@pytest.mark.usefixtures("stillborn")
def test_a_thread_that_never_begins_is_reported_and_not_waited_for() -> None:
    with pytest.raises(RuntimeError) as raised:
        BoundedThread(lambda: None).start()
    assert "start new thread" in str(raised.value)


@pytest.mark.usefixtures("stillborn")
@pytest.mark.timeout(30)
def test_the_work_of_threads_that_never_begin_is_done_by_who_asks() -> None:
    with side_by_side(lambda item: item * item, range(20), 4) as outcomes:
        assert [outcome.result() for outcome in outcomes] == [item * item for item in range(20)]


@pytest.mark.timeout(30)
def test_items_of_threads_that_lack_memory_are_done_by_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side_module, "LOOK_SECONDS", 0.05)
    main = threading.get_ident()

    class OfMainThread(Future[int]):
        def __init__(self) -> None:
            if threading.get_ident() != main:
                raise MemoryError
            super().__init__()

    monkeypatch.setattr(side_by_side_module, "Future", OfMainThread)
    with side_by_side(lambda item: item * item, range(20), 4) as outcomes:
        assert [outcome.result() for outcome in outcomes] == [item * item for item in range(20)]


def test_a_thread_that_was_given_up_does_nothing_later() -> None:
    done = list[int]()
    thread = BoundedThread(lambda: done.append(1))
    assert thread._started.decide()
    thread.start()
    thread.join()
    assert done == []


def test_a_thread_that_begins_does_its_work() -> None:
    done = list[int]()
    thread = BoundedThread(lambda: done.append(1), name="one", daemon=True)
    thread.start()
    thread.join()
    assert (done, thread.name, thread.daemon) == ([1], "one", True)
