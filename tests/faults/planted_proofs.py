"""Faults in the verification of a log, its files and its times; found by tests of the catalog."""

from __future__ import annotations

import zlib
from typing import Any

import msgpack
import pytest

from elasticscan.catalog import (
    Catalog,
    Tx,
    checkpoints,
    entries,
    fold,
    leases,
    tables,
    topology_history,
    transaction,
    verifying,
)
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.catalog.store_time import Times
from elasticscan.metadata import SecretChanged, StoreAdopted, TimeObserved
from tests.catalog.programs import STORE
from tests.faults.planted import Finder, Patch, fault, found_by, replacing

# --------------------------------------------------------------------------------- entries and their parts


@fault("damaged log", "a row of the topology history has each number once, and is published", "lost_row")
@replacing(topology_history, "topology_rows")
def any_topologies_are_read(_: Any, tx: Any, first: int, last: int) -> Any:
    rows = tx.execute(tables.TOPOLOGIES, {"first": first, "last": last})
    return [msgpack.unpackb(zlib.decompress(row[-2])) for row in rows]


@fault("damaged log", "time and layout of the head are those of its record", "altered_value")
def heads_are_not_compared(patch: Patch) -> None:
    class Anything(int):
        def __eq__(self, _: object) -> bool:
            return True

        __hash__ = int.__hash__

    honest = checkpoints.head_in

    def unchecked_head(rows: Any) -> tuple[Any, ...]:
        number, digest, time, layout = honest(rows)
        return number, digest, Anything(time), Anything(layout)

    patch.setattr(checkpoints, "head_in", unchecked_head)


# --------------------------------------------------------------------------------------------- checkpoints


@fault("damaged log", "values are dropped only up to what all kept checkpoints cover")
@found_by("damaged_checkpoint")
@replacing(Catalog, "drop_payloads")
def values_are_dropped_up_to_the_newest_checkpoint(honest: Any, self: Catalog, older_than: float) -> Any:
    newest = checkpoints.all_checkpoints(self.home)[0]
    with pytest.MonkeyPatch.context() as within:
        read = checkpoints.read_state
        within.setattr(checkpoints, "read_state", lambda home, _: read(home, newest))
        return honest(self, older_than)


# ------------------------------------------------------------------------------ leases, transactions, copies


@fault("programs", "the records of a transaction become visible together")
def transactions_end_with_their_first_record(patch: Patch) -> None:
    append, finish = Tx.append, Tx.finish
    firsts: dict[Tx, Any] = {}

    def noting(self: Tx, what: Any) -> Any:
        appended = append(self, what)
        firsts.setdefault(self, self.state)
        return appended

    def early(self: Tx) -> None:
        self._state = firsts.pop(self, self._state)
        finish(self)

    patch.setattr(Tx, "append", noting)
    patch.setattr(Tx, "finish", early)


@fault("scenarios", "what was seen of a log is remembered when it is read again")
@found_by("test_an_older_file_that_is_put_back_is_refused")
@replacing(Catalog, "follow")
def what_was_seen_is_forgotten(honest: Any, self: Catalog) -> Any:
    self.forget()
    return honest(self)


# Rules that one function keeps, and the replacement of that function.
exchanged_rows = Finder("damaged log", "exchanged_rows")
exchanged_rows.rule("a value is the one that was appended").gives(entries, "check_part")
exchanged_rows.rule("rows in the log are the rows that were appended").gives(transaction, "is_sealed", True)
exchanged_rows.rule("statistics are the ones that came with their record").gives(transaction, "check_part")
exchanged_rows.rule("while a lease is damaged no horizon is given").gives(leases, "row_digest", b"")
altered_value = Finder("damaged log", "altered_value")
altered_value.rule("a row of the topology history is the one that its record brought").alters(
    topology_history,
    "check_part",
    lambda honest, entry, part, content: isinstance(content, bytes) or honest(entry, part, content),
)
altered_value.rule("a check of all looks at each entry").gives(verifying, "check_chain")
altered_value.rule("an entry that is read alone follows the one before").gives(entries, "check_chain")
in_log = Finder("log")
in_log.rule("an application's commit is made once").gives(Tx, "commit_of_txn")
in_log.rule("an application's version stands for the same rows when it is repeated").alters(
    transaction, "_metadata_of", lambda honest, entry: {**honest(entry), "content": None}
)
in_log.rule("a file is removed between the time that the store trusts and that of its writer's clock").sets(
    fold, "_since", lambda known, entry: entry.time
)
in_log.rule("a removed file is as old as its removal").sets(fold, "_since", lambda known, entry: 0)
in_log.rule("a commit is found by its time").alters(
    Tx, "newest_commit_at", lambda honest, self, at: honest(self, at + 10)
)
damaged_checkpoint = Finder("damaged log", "damaged_checkpoint")
damaged_checkpoint.rule("a checkpoint is the one that was written").gives(checkpoints, "row_digest", b"")
damaged_checkpoint.rule("two checkpoints are kept").sets(checkpoints, "KEPT", 1)
Finder("log", STORE).rule("leases whose answer was lost are looked for").alters(
    Tx, "was_committed", lambda honest, self: self._first is None or honest(self)
)
Finder("scenarios", "test_a_writer_behind_and_a_compactor_ahead_take_no_snapshot_away").rule(
    "what ends with time ends when the store believes that it is over"
).sets(Times, "expiry", property(lambda self: self.clock))
Finder("scenarios", "test_an_older_file_that_is_put_back_is_refused").rule(
    "a file that is no longer the log is not gone on with"
).gives(SqliteHome, "_follow_file")
Finder("scenarios", "test_a_creation_that_fails_leaves_nothing_behind").rule(
    "a creation that fails leaves nothing behind"
).gives(SqliteHome, "remove_empty")
Finder("scenarios", "test_a_record_of_a_newer_format_is_refused_and_left_alone").rule(
    "a record of a newer release is not read over"
).alters(
    checkpoints,
    "record_of",
    lambda honest, entry, value: honest(entry, value) if entry.row.format == 1 else TimeObserved(),
)
of_stores = Finder("log", STORE)
of_stores.rule("numbers go on beyond the numbers that were lost").alters(
    Tx,
    "_next_number",
    lambda honest, self, what: honest(self, what) if what.beyond is None else self.state.number + 1,
)
of_stores.rule("a commit that was lost is no snapshot of another one").alters(
    fold,
    "_newest_commit",
    lambda honest, known, entry, record: (
        known.commit if isinstance(record, StoreAdopted) else honest(known, entry, record)
    ),
)
of_stores.rule("a secret that was dropped opens nothing").alters(
    fold._HANDLERS,
    SecretChanged,
    lambda honest, known, entry, record: {} if record.secret is None else honest(known, entry, record),
)
