"""Faults in what keeps a table's past, and brings it back: tags and restores."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from elasticscan.catalog import StoreState
from elasticscan.store.upkeep import compaction, horizons
from elasticscan.store.writing import publishing, restoring
from tests.faults.planted import Finder, Patch, fault, found_by, replacing, while_running
from tests.faults.unchecked import horizons_may_pass_tags
from tests.simulation.tables import PAST


@fault("programs", "what a tag names stays readable", style=PAST)
def tags_are_not_heeded(patch: Patch) -> None:
    horizons_may_pass_tags(patch)
    patch.setattr(horizons, "_tagged", lambda *_: [])


@fault("scenarios", "a merge looks for tags that came while it ran")
@found_by("test_a_store_answers_as_the_transcript_says[compaction_meets_others]")
def tags_are_not_looked_at_again(patch: Patch) -> None:
    horizons_may_pass_tags(patch)
    patch.setattr(compaction, "oldest_held", lambda tx, table: None)


@fault("programs", "the oldest tag decides what stays", style=PAST)
def only_the_newest_tag_is_heeded(patch: Patch) -> None:
    horizons_may_pass_tags(patch)
    honest = horizons._tagged
    patch.setattr(horizons, "_tagged", lambda *of: sorted(honest(*of))[-1:])


@fault("programs", "a restore deletes rows that came later", style=PAST)
@replacing(restoring, "undone")
def rows_that_came_stay(honest: Any, events: pa.RecordBatch, table: Any) -> pa.RecordBatch:
    rows = honest(events, table)
    return rows.filter(pa.compute.invert(rows.column("_deleted")))


past = Finder("programs", PAST)
past.rule("a restore undoes all changes of a key, not the last one").alters(
    restoring, "_ends", lambda honest, events, keys: honest(events, keys)[::-1]
)
past.rule("a restore to before an overwrite brings back the rows that it replaced").plants(
    while_running, (restoring, "_attempt"), (StoreState, "overwrites"), lambda *_: ()
)
past.rule("a restore begins again where others have written meanwhile").gives(publishing, "check_newest")
