"""Faults in the proofs about roots, catalogs and garbage."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from elasticscan.catalog import Append, Tx, sqlite
from elasticscan.catalog.sqlite_files import OpenedFiles
from elasticscan.metadata import StoreAdopted
from elasticscan.store.context import Context, high_water_marks
from elasticscan.store.context.high_water_marks import RootMarks
from elasticscan.store.moves import mover
from elasticscan.store.roots import Marker, markers
from elasticscan.store.upkeep import collector, garbage
from elasticscan.store.writing.transactions import WriteTransaction
from tests.faults.planted import Finder, Patch, fault, follow_any_copy, found_by, replacing, while_running
from tests.faults.unchecked import condemned_files_may_come

LITTER = "test_only_what_this_store_left_behind_is_garbage[{}]"
DOUBT = "test_nothing_is_changed_where_a_root_or_a_catalog_is_in_doubt[{}]"


def _unchecked(patch: Patch, owner: Any, name: str) -> None:
    """Accept any root within one function."""
    while_running(patch, (owner, name), (RootMarks, "check"), lambda self, shard, *_: self.disk_of(shard))


@fault("scenarios", "a marker names the shard, not only the store", style=DOUBT.format("swapped"))
@replacing((high_water_marks, markers), "check_owner")
def marker_of_any_shard_will_do(honest: Any, found: Marker | None, root: str, wanted: Marker) -> Marker:
    return honest(found, root, wanted if found is None else replace(wanted, shard=found.shard))


@fault("scenarios", "new shards are reported to all roots", style="test_new_shards_are_reported_to_all")
@replacing(RootMarks, "note_committed")
def new_shards_are_told_to_few(honest: Any, self: RootMarks, *committed: Any) -> None:
    self._noted_shards = self.local_shards()
    honest(self, *committed)


@fault("scenarios", "files are removed without the catalog's lock")
@found_by("test_a_file_that_is_about_to_be_deleted_cannot_be_committed")
@replacing(collector._Collection, "_delete", let=lambda patch: patch.setattr(sqlite, "BUSY_SECONDS", 0.5))
def files_are_removed_under_the_lock(honest: Any, self: Any, *arguments: Any) -> Any:
    with self._context.catalog.writing():
        return honest(self, *arguments)


@fault("scenarios", "a copy of a store has secrets of its own once it is adopted")
@found_by("test_a_store_answers_as_the_transcript_says[adopt]")
@replacing(high_water_marks, "take_incarnation")
def copies_keep_their_secrets(_: Any, tx: Tx, incarnation: str, at_least: tuple[int, int]) -> None:
    tx.append(Append(StoreAdopted(incarnation, at_least[1]), beyond=max(at_least)))


@fault("scenarios", "a file's age is reported by the clock that stamped it")
@found_by(LITTER.format("what is young, by the disk's clock alone"))
@replacing(collector._Collection, "_listed")
def ages_by_the_machines_clock(honest: Any, self: Any, *arguments: Any) -> Any:
    return replace(honest(self, *arguments), seen_at=self._context.clock.now())


# Rules that one function keeps, and the replacement of that function.
unmounted = Finder("scenarios", DOUBT.format("unmounted"))
unmounted.rule("the owner of a root is verified before a write is staged there").plants(
    _unchecked, WriteTransaction, "write"
)
unmounted.rule("the owner of a root is verified before a tablet is moved").plants(
    _unchecked, mover.Mover, "carry_out"
)
Finder("scenarios", "test_a_disk_that_is_unmounted_before_the_commit_is_noticed").rule(
    "the owner of a root is verified again in the transaction that refers to its files"
).plants(_unchecked, Context, "check_not_collected")
older = Finder("scenarios", DOUBT.format("older"))
older.rule("a root that knows more than the catalog stops writers").gives(high_water_marks, "check_not_ahead")
older.rule("changes of the catalog alone check the marks, too").gives(
    RootMarks, "read_markers", lambda _: None
)
older.rule("readers do not take an older catalog for the newest").gives(Context, "check_newest")
Finder("scenarios", "test_changes_of_the_catalog_alone_leave_marks_as_well").rule(
    "changes of the catalog alone leave marks"
).gives(RootMarks, "note_committed")
Finder("scenarios", "test_a_closed_store_has_told_its_shards_of_its_last_small_commits").rule(
    "a store that is closed leaves the mark of its last small commit"
).gives(RootMarks, "note_pending")
Finder("scenarios", "test_an_older_catalog_is_noticed_by_who_looked_before_and_by_who_opens[none]").rule(
    "a commit is noted at witnesses, not only where its rows were written"
).sets(RootMarks, "_note_some", lambda self, _, written, mark: self._note(written, mark))
Finder("scenarios", "test_what_is_written_to_a_marker_meanwhile_stays[a raise]").rule(
    "a marker is read and written by one process at a time"
).gives(markers, "alone_at", nullcontext())
Finder("scenarios", DOUBT.format("set back")).rule(
    "a process that has seen a newer catalog does not go on with an older one"
).plants(follow_any_copy)
Finder("scenarios", "test_a_commit_into_a_file_that_is_just_being_replaced_is_not_acknowledged").rule(
    "a commit into a file that is no longer the catalog does not count"
).gives(OpenedFiles, "are_there", True)
Finder("scenarios", LITTER.format("files of a newer catalog")).rule(
    "a file of a commit that the catalog does not know stops the collection"
).alters(collector, "plan", lambda honest, *args: (honest(*args)[0], 0))
Finder("scenarios", LITTER.format("another's files")).rule(
    "a file is garbage only if its own footer names this store and shard"
).alters(
    garbage,
    "_judged",
    lambda honest, root, rules, path, _found, *rest: honest(root, rules, path, None, *rest),
)
Finder("scenarios", LITTER.format("orphans of now")).rule(
    "a file that the catalog never knew stays for a while"
).alters(
    garbage,
    "_judged",
    lambda honest, root, rules, *rest: honest(root, replace(rules, orphan_seconds=0), *rest),
)
Finder("scenarios", LITTER.format("a file that someone renamed")).rule(
    "where files are missing, the catalog is not trusted about others"
).gives(collector, "_doubt")
Finder("scenarios", "test_a_file_that_is_about_to_be_deleted_cannot_be_committed").rule(
    "a condemned file cannot be committed"
).plants(condemned_files_may_come)
Finder("scenarios", "test_a_collection_that_dies_leaves_no_deleted_rows_to_a_repair").rule(
    "no file is collected before the files that it replaced"
).sets(collector, "_by_drop", lambda file: (-file.dropped_at, -file.fragment))
Finder("scenarios", LITTER.format("too much at once")).rule(
    "only a small share of files is removed at once because the catalog does not know them"
).gives(collector, "too_many_unknown", 0)
Finder("scenarios", DOUBT.format("adopted within")).rule(
    "readers notice a catalog of before an adoption"
).gives(high_water_marks, "is_same_catalog", False)
Finder("scenarios", DOUBT.format("adopted elsewhere")).rule(
    "a root elsewhere knows where its owner's catalog lies"
).gives(high_water_marks, "place_of_catalog", "")
Finder("scenarios", DOUBT.format("taken over")).rule(
    "an original whose shards were taken over elsewhere is still read"
).gives(high_water_marks, "is_same_catalog", True)
Finder("scenarios", DOUBT.format("linked")).rule("a catalog with two names is not written to").gives(
    sqlite, "check_one_name"
)
Finder("scenarios", DOUBT.format("copied alone")).rule("a copy does not write before it is adopted").gives(
    (high_water_marks, markers), "check_same_copy"
)
