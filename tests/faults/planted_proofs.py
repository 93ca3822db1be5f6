"""Faults in what proves a log and its parts, in its files and its times; found by tests of the catalog."""

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
    log,
    replay,
    tables,
    topology_history,
    transaction,
    verifying,
)
from elasticscan.catalog.files import FileSet
from elasticscan.catalog.log import Log
from elasticscan.catalog.sqlite import SqliteHome
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.store_time import Times
from elasticscan.catalog.table_state import Since
from elasticscan.metadata import SecretChanged, StoreAdopted, TimeObserved
from tests.faults.planted import Patch, fault

# --------------------------------------------------------------------------------- entries and their parts


def _always(_: object, __: object) -> bool:
    return True


@fault("scenarios", "a value is the one that was appended", "test_the_value_of_another_record_is_damage")
def values_are_not_proven(patch: Patch) -> None:
    patch.setattr(entries, "check_part", lambda *_: None)


@fault(
    "scenarios",
    "rows in the log are the rows that were appended",
    "test_the_rows_of_another_commit_are_damage",
)
def rows_in_the_log_are_not_proven(patch: Patch) -> None:
    patch.setattr(log, "is_sealed", _always)


STATISTICS = "test_the_statistics_of_another_file_are_left_out[{}]"


@fault("scenarios", "statistics are the ones that came with their record", STATISTICS.format(False))
def statistics_are_not_proven(patch: Patch) -> None:
    patch.setattr(log, "check_part", lambda *_: None)


@fault(
    "scenarios",
    "statistics of a damaged checkpoint are read from their records",
    STATISTICS.format(True),
)
def statistics_of_checkpoints_are_not_proven(patch: Patch) -> None:
    patch.setattr(checkpoints, "is_sealed", _always)


@fault(
    "scenarios",
    "a row of the topology history is the one that its record brought",
    "test_a_damaged_history_is_noticed[of another record]",
)
def topologies_are_not_proven(patch: Patch) -> None:
    patch.setattr(topology_history, "check_part", lambda *_: None)


@fault(
    "scenarios",
    "a row of the topology history has each number once, and is published",
    "test_an_older_row_in_place_of_a_published_one_is_noticed",
)
def any_topologies_are_read(patch: Patch) -> None:
    def whichever(tx: Any, first: int, last: int) -> Any:
        rows = tx.execute(tables.TOPOLOGIES, {"first": first, "last": last})
        return [topology_history._topology(*msgpack.unpackb(zlib.decompress(row[-2]))) for row in rows]

    patch.setattr(topology_history, "_kept", whichever)


@fault(
    "scenarios",
    "time and layout of the head are those of its record",
    "test_rows_that_make_no_sense_are_damage[UPDATE head SET layout = layout + 1]",
)
def heads_are_not_compared(patch: Patch) -> None:
    class Anything(int):
        def __eq__(self, _: object) -> bool:
            return True

        __hash__ = int.__hash__

    honest = replay.head_in

    def unchecked_head(rows: Any) -> tuple[Any, ...]:
        number, digest, time, layout = honest(rows)
        return number, digest, Anything(time), Anything(layout)

    patch.setattr(replay, "head_in", unchecked_head)


OLD_ENTRY = "test_an_old_entry_that_was_altered_is_found_by_a_check_and_by_who_reads_it"


@fault("scenarios", "a check of all looks at each entry", OLD_ENTRY)
def old_entries_are_not_verified(patch: Patch) -> None:
    patch.setattr(verifying, "check_chain", lambda *_: None)


@fault("scenarios", "an entry that is read alone follows the one before", OLD_ENTRY)
def entries_that_are_read_alone_are_believed(patch: Patch) -> None:
    patch.setattr(entries, "check_chain", lambda *_: None)


@fault(
    "scenarios",
    "a record of a newer release is not read over",
    "test_a_record_of_a_newer_format_is_refused_and_left_alone",
)
def newer_records_are_passed_over(patch: Patch) -> None:
    honest = replay.record_of

    def tolerant(entry: Any, value: bytes) -> Any:
        return honest(entry, value) if entry.row.format == 1 else TimeObserved()

    patch.setattr(replay, "record_of", tolerant)


@fault(
    "scenarios", "an application's commit is made once", "test_a_version_of_an_application_is_committed_once"
)
def applications_are_not_remembered(patch: Patch) -> None:
    patch.setattr(Tx, "commit_of_txn", lambda *_: None)


@fault(
    "scenarios",
    "an application's version stands for the same rows when it is repeated",
    "test_a_version_of_an_application_is_committed_once",
)
def contents_of_versions_are_not_compared(patch: Patch) -> None:
    honest = transaction._said
    patch.setattr(transaction, "_said", lambda entry: {**honest(entry), "content": None})


# --------------------------------------------------------------------------------------------- checkpoints


@fault(
    "scenarios",
    "a checkpoint has the parts that its manifest names",
    "test_a_checkpoint_with_a_part_of_another_one_is_passed_over_for_the_one_before",
)
def parts_of_checkpoints_are_not_proven(patch: Patch) -> None:
    patch.setattr(checkpoints, "is_sealed", _always)


LOST_PART = "test_whichever_part_of_a_checkpoint_is_lost_another_one_leads_to_the_state"


@fault("scenarios", "two checkpoints are kept", LOST_PART)
def one_checkpoint_is_kept(patch: Patch) -> None:
    patch.setattr(checkpoints, "KEPT", 1)


@fault("scenarios", "the checkpoints that are kept have no part in common", LOST_PART)
def checkpoints_share_their_parts(patch: Patch) -> None:
    write, manifests = checkpoints.write, checkpoints.manifests

    def sharing(*given: Any) -> Any:
        with pytest.MonkeyPatch.context() as within:

            def newest_twice(home: Any) -> list[Any]:  # so that the second of them is the newest, once
                within.undo()
                found = manifests(home)
                return [*found[:1], *found]

            within.setattr(checkpoints, "manifests", newest_twice)
            return write(*given)

    patch.setattr(checkpoints, "write", sharing)


@fault("scenarios", "values are dropped only up to what all kept checkpoints cover", LOST_PART)
def values_are_dropped_up_to_the_newest_checkpoint(patch: Patch) -> None:
    honest = Log.drop_payloads

    def hasty(self: Log, older_than: int) -> int:
        newest = checkpoints.manifests(self.home)[0]
        with pytest.MonkeyPatch.context() as within:
            read = checkpoints.read_state
            within.setattr(checkpoints, "read_state", lambda home, _: read(home, newest))
            return honest(self, older_than)

    patch.setattr(Log, "drop_payloads", hasty)


# ------------------------------------------------------------------------------ leases, transactions, copies


@fault(
    "scenarios",
    "while a lease is damaged no horizon is given",
    "test_while_a_lease_is_damaged_no_horizon_is_given",
)
def leases_are_not_proven(patch: Patch) -> None:
    patch.setattr(leases, "lease_rows", lambda home: [row[:-1] for row in home.execute(tables.LEASES)])


@fault(
    "scenarios",
    "leases whose answer was lost are looked for",
    "test_leases_whose_answer_was_lost_are_looked_for[not done]",
)
def lost_leases_count_as_taken(patch: Patch) -> None:
    honest = Tx.is_there
    patch.setattr(Tx, "is_there", lambda self: self._first is None or honest(self))


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


@fault(
    "scenarios",
    "what was seen of a log is remembered when it is read again",
    "test_a_catalog_that_reads_everything_again_still_knows_how_far_it_was",
)
def what_was_seen_is_forgotten(patch: Patch) -> None:
    honest = Catalog._state

    def afresh(self: Catalog) -> StoreState:
        self._log.forget()
        return honest(self)

    patch.setattr(Catalog, "_state", afresh)


ADOPTED = "test_a_new_incarnation_has_one_secret_of_its_own_and_goes_on_beyond_what_was_known"


@fault("scenarios", "numbers go on beyond the numbers that were lost", ADOPTED)
def lost_numbers_are_used_again(patch: Patch) -> None:
    honest = Tx._next_number

    def following(self: Tx, what: Any) -> int:
        return honest(self, what) if what.beyond is None else self.state.number + 1

    patch.setattr(Tx, "_next_number", following)


@fault("scenarios", "a commit that was lost is no snapshot of another one", ADOPTED)
def lost_commits_are_forgotten(patch: Patch) -> None:
    honest = fold._newest_commit

    def of_this_log(known: Any, entry: Any, record: Any) -> int:
        return int(known.commit if isinstance(record, StoreAdopted) else honest(known, entry, record))

    patch.setattr(fold, "_newest_commit", of_this_log)


@fault(
    "scenarios",
    "a secret that was dropped opens nothing",
    "test_a_key_opens_until_none_in_use_can_have_its_secret",
)
def dropped_secrets_stay(patch: Patch) -> None:
    honest = fold._HANDLERS[SecretChanged]

    def kept(known: Any, entry: Any, record: SecretChanged) -> dict[str, Any]:
        return {} if record.secret is None else honest(known, entry, record)

    patch.setitem(fold._HANDLERS, SecretChanged, kept)


# --------------------------------------------------------------------------------------- files and times


@fault(
    "scenarios",
    "a file is removed between the time that the store trusts and that of its writer's clock",
    "test_a_clock_that_was_ahead_does_not_keep_what_is_dropped_later",
)
def files_are_removed_at_the_times_of_entries(patch: Patch) -> None:
    patch.setattr(fold, "_since", lambda known, entry: Since(entry.number, entry.time))


@fault(
    "scenarios",
    "a removed file is as old as its removal",
    "test_the_files_that_were_dropped_first_are_collected_first_together_with_their_runs",
)
def removed_files_are_old_at_once(patch: Patch) -> None:
    patch.setattr(fold, "_since", lambda known, entry: Since(entry.number, 0))


@fault(
    "scenarios",
    "objects that were made of an Arrow table are those of no other one",
    "test_a_set_of_files_is_what_a_dict_of_them_is_however_often_it_is_merged[0]",
)
def files_are_decoded_once(patch: Patch) -> None:
    honest = FileSet._changed

    def sharing(self: Any, *given: Any) -> Any:
        changed = honest(self, *given)
        return FileSet(changed.kind, changed.base, changed.added, changed.removed, self._decoded)

    patch.setattr(FileSet, "_changed", sharing)


@fault(
    "scenarios",
    "a commit is found by its time",
    "test_commits_are_found_by_their_times",
)
def the_next_commit_is_found_by_a_time(patch: Patch) -> None:
    honest = Tx.commit_before
    patch.setattr(Tx, "commit_before", lambda self, at: honest(self, at + 10))


@fault(
    "scenarios",
    "what ends with time ends when the store believes that it is over",
    "test_a_writer_behind_and_a_compactor_ahead_take_no_snapshot_away",
)
def clocks_end_what_is_kept(patch: Patch) -> None:
    patch.setattr(Times, "expiry", property(lambda self: self.clock))


@fault(
    "scenarios",
    "a file that is no longer the log is not gone on with",
    "test_an_older_file_that_is_put_back_is_refused",
)
def connections_stay_with_their_files(patch: Patch) -> None:
    patch.setattr(SqliteHome, "_follow_file", lambda self, at_once: None)


@fault(
    "scenarios",
    "a creation that fails leaves nothing behind",
    "test_a_creation_that_fails_leaves_nothing_behind",
)
def failed_creations_leave_a_file(patch: Patch) -> None:
    patch.setattr(SqliteHome, "remove_empty", lambda self: None)
