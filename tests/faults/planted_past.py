"""Faults in the retention of a table's older rows, and in their restoration: tags and restores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from elasticscan.catalog import StoreState, checks
from elasticscan.metadata import RowsCommitted
from elasticscan.store.upkeep import compaction
from elasticscan.store.writing import transactions
from tests.faults.planted import Finder, fault, replacing, while_running
from tests.faults.unchecked import horizons_may_pass_tags
from tests.simulation.tables import PAST


@fault("programs", "a restore deletes rows that came later", style=PAST)
@replacing(transactions, "undone")
def rows_that_came_stay(honest: Any, events: pa.RecordBatch, table: Any) -> pa.RecordBatch:
    rows = honest(events, table)
    return rows.filter(pa.compute.invert(rows.column("_deleted")))


# Rules that one function keeps, and the replacement of that function.
past = Finder("programs", PAST)
past.rule("a restore undoes all changes of a key, not the last one").alters(
    transactions, "_ends", lambda honest, events, keys: honest(events, keys)[::-1]
)
past.rule("a restore to before an overwrite brings back the rows that it replaced").plants(
    while_running, (transactions, "_restored"), (StoreState, "overwrites"), lambda *_: ()
)
past.rule("a restore begins again where others have written meanwhile").alters(
    checks._CHECKS, RowsCommitted, lambda honest, known, record: honest(known, replace(record, based_on=0))
)
past.rule("what a tag names stays readable").gives(compaction, "_tagged", [], let=horizons_may_pass_tags)
past.rule("the oldest tag decides what stays").alters(
    compaction, "_tagged", lambda honest, *of: sorted(honest(*of))[-1:], let=horizons_may_pass_tags
)
Finder("scenarios", "test_a_store_answers_as_the_transcript_says[compaction_meets_others]").rule(
    "a merge looks for tags that came while it ran"
).gives(compaction, "oldest_held", let=horizons_may_pass_tags)
