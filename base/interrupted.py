"""The things that a thread has begun, so that it can be ended where an exception met it between two steps.

Python runs the handler of a signal (of Ctrl-C, of an alarm) between any two steps of the main thread. What
the handler raises may come up where no block is there yet to end what was begun, or in the first step of
the block's end. Then the transaction stays open, with its lock, for as long as somebody keeps the traceback;
notebooks do. So whoever begins something that others wait for notes how it is ended, and each call of
the public surface that raises ends what it has begun and left (`resources.telling_lack`).

Libraries (and this one) take what they catch for an error of their own: an alarm during a parse becomes one
of the text, and a lock or a connection that was left halfway another one that hides it. What the handler
raised is then among the errors behind the one that comes out, and is what its user waits for
(`raised_by_handler`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import get_ident
from types import CodeType

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


def raised_by_handler(error: BaseException, before: BaseException | None) -> BaseException | None:
    """The error of the handler of a signal, where it is this one or one behind it; None where there is none.

    Args:
        error: what came out of a call.
        before: what was being handled when that began: no error behind it is of the call.
    """
    if error.__cause__ is None and error.__context__ is None and isinstance(error, Exception):
        return None  # it is raised as it is, whoever raised it
    handlers: frozenset[CodeType] | None = None
    left: list[BaseException | None] = [error]
    seen = {id(before)}
    while left:
        found = left.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, (KeyboardInterrupt, SystemExit)):
            return found
        handlers = _handlers() if handlers is None else handlers
        if _is_of(handlers, found):
            return found
        left += [found.__context__, found.__cause__]
    return None


def pass_on(error: BaseException) -> None:
    """Raise an error again that the handler of a signal raised: it tells nothing of what it was met at."""
    if _is_of(_handlers(), error):
        raise error


def pass_on_behind(error: BaseException, before: BaseException | None) -> None:
    """As `pass_on`, also of one that a library took for an error of its own and put behind this one.

    `before` is what was being handled when that began: no error behind it is of the call.
    """
    pass_on(error)
    own = raised_by_handler(error, before)
    if own is not None:
        raise own from None


class Passing:
    """Suppresses errors of some kinds in a block, but for those that the handler of a signal raised."""

    def __init__(self, *kinds: type[Exception]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, self._kinds) and not _is_of(_handlers(), error)


def _is_of(handlers: frozenset[CodeType], error: BaseException) -> bool:
    frames = error.__traceback__
    while frames is not None:
        if frames.tb_frame.f_code in handlers:
            return True
        frames = frames.tb_next
    return False


def _handlers() -> frozenset[CodeType]:
    """The code of all handlers of signals that are written in Python."""
    codes = set[CodeType]()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = handler.func
        if callable(handler):
            function = getattr(handler, "__func__", handler)
            code = getattr(function, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
            if code is not None:
                codes.add(code)
    return frozenset(codes)
