"""Locks and gates that survive a fork."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from elasticscan.base.forks import ChildSafeLock, ForkGate, cached_property

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class _Slow:
    def __init__(self) -> None:
        self.begun, self.leave = threading.Event(), threading.Event()

    @cached_property
    def value(self) -> int:
        """A number."""
        self.begun.set()
        self.leave.wait(60)
        return 1


def test_a_property_that_another_thread_computes_is_computed_in_a_forked_child() -> None:
    slow = _Slow()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    slow.begun.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        other = _Slow()
        other.leave.set()
        os._exit(other.value)
    slow.leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_property_is_computed_once() -> None:
    slow, first = _Slow(), object()
    slow.leave.set()
    assert slow.value == 1
    vars(slow)["value"] = first
    assert slow.value is first
    assert _Slow.value.__doc__ == "A number."


def test_a_lock_that_another_thread_holds_is_open_in_a_forked_child() -> None:
    lock, held, leave = ChildSafeLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        with lock:
            os._exit(0)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    with lock:
        pass


def test_a_gate_that_is_shut_waits_for_those_inside_and_keeps_others_out() -> None:
    gate, order = ForkGate(), []
    inside, leave, shut = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with gate.inside():
            inside.set()
            leave.wait(60)
            with gate.inside():  # who is inside may come in again, or would never come out
                order.append("inside")

    def second() -> None:
        shut.wait(60)
        with gate.inside():
            order.append("later")

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    inside.wait(60)
    threading.Timer(0.05, leave.set).start()
    assert gate.shut(60)
    order.append("shut")
    shut.set()
    threads[0].join()
    order.append("open")
    gate.open()
    threads[1].join()
    assert order == ["inside", "shut", "open", "later"]


def test_a_gate_cannot_be_shut_from_inside_nor_for_ever_while_somebody_stays_inside() -> None:
    gate, inside, leave = ForkGate(), threading.Event(), threading.Event()
    with gate.inside():
        assert not gate.shut(60)

    def stay() -> None:
        with gate.inside():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait(60)
    assert not gate.shut(0.01)
    with gate.inside():  # it is open again
        leave.set()
    thread.join()
    assert gate.shut(60)


def test_a_finalizer_that_runs_amid_a_change_of_the_gate_does_not_wait_for_its_own_thread() -> None:
    gate, entered = ForkGate(), list[bool]()

    def change() -> None:
        with gate._lock, gate.inside_at_once() as inside:
            entered.append(inside)

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    thread.join(30)
    assert entered == [False] and not thread.is_alive()
    with gate.inside():
        pass
    assert gate.shut(0.0)
