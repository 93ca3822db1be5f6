"""Faults planted into the reading of clusters: the simulation must find each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from elasticscan.backends.redis import pages, values
from elasticscan.protocol import Cursor, merge, slots_of
from elasticscan.reader import scan
from elasticscan.topology import SlotSet

Plant = Callable[[pytest.MonkeyPatch], None]
FAULTS: list[Plant] = []


def fault(plant: Plant) -> Plant:
    FAULTS.append(plant)
    return plant


@fault
def no_guard(patch: pytest.MonkeyPatch) -> None:
    """The names at a server are taken although it does not serve the slot."""
    patch.setattr(pages, "guarded", lambda _, *commands: [(b"PING",), (b"PING",), *commands, (b"PING",)])
    patch.setattr(pages, "results_of", lambda answers: [0, *answers[2:4]])


@fault
def names_before_the_guard(patch: pytest.MonkeyPatch) -> None:
    """Names and guard are two steps: the slot may leave in between."""
    patch.setattr(
        pages, "guarded", lambda probe, *commands: [(b"PING",), *commands, (b"EXISTS", probe), (b"PING",)]
    )
    results = pages.results_of
    patch.setattr(pages, "results_of", lambda answers: results([answers[0], answers[3], [0, *answers[1:3]]]))


@fault
def ask_is_taken_for_gone(patch: pytest.MonkeyPatch) -> None:
    """A key that was moved while its value was read counts as one that does not exist."""

    def read_each(self: Any, commands: Any, _: Any, width: int = 1) -> Any:
        answers = pages._each(width, self.exchange(self.home, commands))
        return [None if isinstance(answer, Exception) else answer for answer in answers]

    patch.setattr(pages._SlotPage, "_read_each", read_each)


@fault
def nil_at_the_target_is_taken_for_gone(patch: pytest.MonkeyPatch) -> None:
    """A key that is not at the target of an open slot counts as deleted, although it may be back."""
    patch.setattr(pages, "_NOT_THERE", ())


@fault
def refused_slots_advance(patch: pytest.MonkeyPatch) -> None:
    """A refused slot is finished."""
    patch.setattr(scan, "remaining", lambda _, page: page.after)


@fault
def rows_of_refused_slots_stay(patch: pytest.MonkeyPatch) -> None:
    """Rows that were read before their slot was refused leave with the page, and are read again."""
    slot_set = pages.slot_set

    class Blind(SlotSet):
        def mask(self, slots: Any) -> Any:
            return np.zeros(len(slots), dtype=bool)

    patch.setattr(pages, "slot_set", lambda slots: Blind(slot_set(slots).bits))


@fault
def open_slots_are_read_at_their_source_alone(patch: pytest.MonkeyPatch) -> None:
    """What was moved to the target already is not looked for there."""
    patch.setattr(pages, "_in_either", lambda here, _: here)


@fault
def a_turned_move_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """An open slot is read without a third list, although its keys may have come back to the source."""
    patch.setattr(pages, "_came_back", lambda before, after: False)


@fault
def a_probe_of_another_slot(patch: pytest.MonkeyPatch) -> None:
    """The guard of a table whose prefix ends within a hash tag is a key of any slot."""
    patch.setattr(values, "probe_of", lambda prefix, slot, end: prefix + b"{%d}" % slot + end)


@fault
def a_finished_slot_is_read_again(patch: pytest.MonkeyPatch) -> None:
    """A slot that is finished stays in the cursors for one more page."""
    remaining = scan.remaining
    again: set[int] = set()

    def once_more(read: Any, page: Any) -> Any:
        left = remaining(read, page)
        finished = [slot for start, end in read.slots - slots_of(left) for slot in range(start, end)]
        fresh = [slot for slot in finished if slot not in again]
        again.update(fresh)
        return merge((*left, Cursor(SlotSet.of((slot, slot + 1) for slot in fresh))))

    patch.setattr(scan, "remaining", once_more)


@fault
def existence_is_asked_on_its_own(patch: pytest.MonkeyPatch) -> None:
    """A hash without values is a row if its key exists a moment later, when it may have been set again."""

    whole = pages._SlotPage._read_each

    def read_each(self: Any, commands: Any, slots: Any, width: int = 1) -> Any:
        if width == 1:
            return whole(self, commands, slots)
        there = whole(self, commands[1::width], slots)
        fields = commands[2::width]
        return [[None] * len(asked[2:]) if here else None for asked, here in zip(fields, there, strict=True)]

    patch.setattr(pages._SlotPage, "_read_each", read_each)
