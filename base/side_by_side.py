"""Work that several threads do side by side, or whoever asks for it where there are no more threads.

A pool of Python's own is of no use here: once the main thread has ended it begins nothing, though other
threads go on; and where the system refuses a thread, nobody knows if another one does what was asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

from elasticscan.base.forks import Birthplace
from elasticscan.base.threads import BoundedThread

LOOK_SECONDS = 1.0  # so often who waits for threads sees if they are still there

Item = TypeVar("Item")
Made = TypeVar("Made")


@contextmanager
def side_by_side(
    work: Callable[[Item], Made], items: Sequence[Item], most: int
) -> Iterator[Iterator[Future[Made]]]:
    """The outcomes of some work for each item, as they come; of at most so many items at a time.

    When the block ends, what has not begun is given up, and what is under way comes to its end first. In a
    child that was forked meanwhile nothing is waited for: its parent goes on.
    """
    left, done = deque(items), SimpleQueue[Future[Made]]()
    threads, birthplace = list[BoundedThread](), Birthplace()

    def do_one() -> Future[Made] | None:
        made = Future[Made]()  # at first: where there is no memory for it, the item is another's
        try:
            item = left.popleft()
        except IndexError:
            return None
        try:
            made.set_result(work(item))
        except BaseException as error:  # raised by whoever looks at the outcome
            made.set_exception(error)
        return made

    def do_all() -> None:
        with suppress(MemoryError):
            while (made := do_one()) is not None:
                done.put(made)

    def next_one() -> Future[Made]:
        while any(thread.is_alive() for thread in threads):
            with suppress(Empty):
                return done.get(timeout=LOOK_SECONDS)
        with suppress(Empty):
            return done.get_nowait()
        if (made := do_one()) is None:  # a thread has ended for want of memory, and it with what it did
            raise MemoryError
        return made

    def outcomes() -> Iterator[Future[Made]]:
        if threads:
            yield from (next_one() for _ in items)
            return
        while (made := do_one()) is not None:
            yield made

    try:
        for _ in range(min(most, len(items))):
            threads.append(BoundedThread(do_all))  # at first: the handler of a signal may end its start
            try:
                threads[-1].start()
            except RuntimeError:  # the system gives no more threads, or none once Python ends: fewer will do
                threads.pop()
                break
        yield outcomes()
    finally:
        left.clear()
        if birthplace.is_here:
            for thread in threads:
                with suppress(RuntimeError):  # one that has not begun yet will find nothing to do
                    thread.join()


def all_side_by_side(
    work: Callable[[Item], Made],
    items: Sequence[Item],
    most: int,
    alone: Callable[[Item], bool] = lambda _: False,
) -> list[Made]:
    """The results of some work for items, in their order; as `side_by_side`, and a single one in no thread.

    Those of which `alone` is true are done by the caller, one after another, before the others. Raises the
    first error, once nothing is under way any more; what had not begun is left.
    """
    made = dict[int, Made]()

    def do(number: int) -> None:
        made[number] = work(items[number])

    together = list[int]()
    for number, item in enumerate(items):
        if alone(item):
            do(number)
        else:
            together.append(number)
    if len(together) == 1:
        do(together[0])
        together = []
    with side_by_side(do, together, most) as outcomes:
        for outcome in outcomes:
            outcome.result()
    return [made[number] for number in range(len(items))]
