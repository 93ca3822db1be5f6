"""Faults of reads of Redis and Valkey clusters, which random programs on a simulated cluster must find."""

from __future__ import annotations

from typing import Any

import numpy as np

from elasticscan.backends.redis import pages, values
from elasticscan.protocol import Cursor, merge, slots_of
from elasticscan.reader import scan
from elasticscan.topology import SlotSet
from tests.faults.planted import Finder, Patch, fault, replacing


@fault("cluster", "the names at a server count only where it says that it serves the slot")
def no_guard(patch: Patch) -> None:
    patch.setattr(pages, "guarded", lambda _, *commands: [(b"PING",), (b"PING",), *commands, (b"PING",)])
    patch.setattr(pages, "results_of", lambda answers: [0, *answers[2:4]])


@fault("cluster", "names and guard are one step, since the slot may leave in between")
def names_before_the_guard(patch: Patch) -> None:
    patch.setattr(
        pages, "guarded", lambda probe, *commands: [(b"PING",), *commands, (b"EXISTS", probe), (b"PING",)]
    )
    results = pages.results_of
    patch.setattr(pages, "results_of", lambda answers: results([answers[0], answers[3], [0, *answers[1:3]]]))


@fault("cluster", "a key that was moved while its value was read is not gone")
@replacing(pages._SlotPage, "_read_each")
def ask_is_taken_for_gone(_: Any, self: Any, commands: Any, slots: Any, width: int = 1) -> Any:
    answers = pages._each(width, self.exchange(self.home, commands))
    return [None if isinstance(answer, Exception) else answer for answer in answers]


@fault("cluster", "whether a hash without values exists is asked in one step with its values")
@replacing(pages._SlotPage, "_read_each")
def existence_is_asked_on_its_own(honest: Any, self: Any, commands: Any, slots: Any, width: int = 1) -> Any:
    if width == 1:
        return honest(self, commands, slots)
    there = honest(self, commands[1::width], slots)
    fields = commands[2::width]
    return [[None] * len(asked[2:]) if here else None for asked, here in zip(fields, there, strict=True)]


@fault("cluster", "rows that were read before their slot was refused do not leave with the page")
def rows_of_refused_slots_stay(patch: Patch) -> None:
    slot_set = pages.slot_set

    class Blind(SlotSet):
        def mask(self, slots: Any) -> Any:
            return np.zeros(len(slots), dtype=bool)

    patch.setattr(pages, "slot_set", lambda slots: Blind(slot_set(slots).bits))


@fault("cluster", "a slot that is finished is in no cursor")
def a_finished_slot_is_read_again(patch: Patch) -> None:
    remaining, again = scan.remaining, set[int]()

    def once_more(read: Any, page: Any) -> Any:
        left = remaining(read, page)
        finished = [slot for start, end in read.slots - slots_of(left) for slot in range(start, end)]
        fresh = [slot for slot in finished if slot not in again]
        again.update(fresh)
        return merge((*left, Cursor(SlotSet.of((slot, slot + 1) for slot in fresh))))

    patch.setattr(scan, "remaining", once_more)


# Rules that one function keeps, and the replacement of that function.
in_clusters = Finder("cluster")
in_clusters.rule("a key that is not at the target of an open slot may be back").sets(pages, "_NOT_THERE", ())
in_clusters.rule("a slot that a master refuses is not finished").sets(
    scan, "remaining", lambda _, page: page.after
)
in_clusters.rule("an open slot is read at its target, too").sets(pages, "_in_either", lambda here, _: here)
in_clusters.rule("an open slot whose keys came back to the source waits").gives(pages, "_came_back", False)
in_clusters.rule("the guard of a prefix that ends within a hash tag is a key of the slot").sets(
    values, "probe_of", lambda prefix, slot, end: prefix + b"{%d}" % slot + end
)
