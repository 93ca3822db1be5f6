"""The things that a thread has begun, so that it can be ended where an exception met it between two steps.

Python runs the handler of a signal (of Ctrl-C, of an alarm) between any two steps of the main thread. What
the handler raises may come up where no block is there yet to end what was begun, or in the first step of
the block's end. Then the transaction stays open, with its lock, for as long as somebody keeps the traceback;
notebooks do. So whoever begins something that others wait for notes how it is ended, and each call of
the public surface that raises ends what it has begun and left (`resources.telling_lack`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident

End = Callable[[], None]

_BEGUN: dict[int, list[End]] = {}  # thread -> how to end what it has begun, the newest last
os.register_at_fork(after_in_child=_BEGUN.clear)  # what was begun is the parent's


def note(end: End) -> None:
    """Remember how something of this thread is ended, until `forget`."""
    _BEGUN.setdefault(get_ident(), []).append(end)


def forget(end: End) -> None:
    """It has ended; a thread that has begun nothing else is forgotten, too."""
    me = get_ident()
    begun = _BEGUN.get(me, [])
    with suppress(ValueError):  # it was ended here, or by another thread, which closed a generator
        begun.remove(end)
    if not begun:
        _BEGUN.pop(me, None)


def begun() -> int:
    """The number of things that this thread has begun."""
    return len(_BEGUN.get(get_ident(), ()))


def end_left(before: int) -> None:
    """End what this thread has begun since it had begun so many: a transaction, then parts of it."""
    for end in _BEGUN.get(get_ident(), [])[before:]:
        with suppress(Exception):  # its connection may be gone; the error that led here is the one to tell
            end()
        forget(end)
