"""Faults in what proves a root, a catalog or a piece of garbage."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from elasticscan.catalog import Append, Tx
from elasticscan.catalog.sqlite_files import OpenedFiles
from elasticscan.metadata import StoreAdopted
from elasticscan.storage import Disk
from elasticscan.store import adoption
from elasticscan.store.context import Context, high_water_marks
from elasticscan.store.context.high_water_marks import RootMarks
from elasticscan.store.moves import mover
from elasticscan.store.roots import Marker, markers
from elasticscan.store.upkeep import collector, garbage
from elasticscan.store.upkeep.garbage import Action, Decision, Shelf
from elasticscan.store.writing.transactions import WriteTransaction
from tests.faults.planted import Patch, fault, follow_any_copy, found_by, replacing, while_running
from tests.faults.unchecked import condemned_files_may_come

LITTER = "test_only_what_this_store_left_behind_is_garbage[{}]"
DOUBT = "test_nothing_is_changed_where_a_root_or_a_catalog_is_in_doubt[{}]"


def _planned(patch: Patch, **changes: int) -> None:
    """Let the collector's plans say something else."""
    honest = garbage.plan
    for module in (garbage, collector):
        patch.setattr(module, "plan", lambda *args: replace(honest(*args), **changes))


def _unchecked(patch: Patch, owner: Any, name: str) -> None:
    """Within one function, any root will do."""
    while_running(patch, (owner, name), (RootMarks, "check"), lambda self, shard, *_: self.disk_of(shard))


@fault("scenarios", "the owner of a root is verified before a write is staged there")
@found_by(DOUBT.format("unmounted"))
def marker_is_not_looked_at_on_writes(patch: Patch) -> None:
    _unchecked(patch, WriteTransaction, "write")


@fault("scenarios", "the owner of a root is verified before a tablet is moved", DOUBT.format("unmounted"))
def marker_is_not_looked_at_on_moves(patch: Patch) -> None:
    _unchecked(patch, mover.Mover, "carry_out")


@fault("scenarios", "the owner of a root is verified again in the transaction that refers to its files")
@found_by("test_a_disk_that_is_unmounted_before_the_commit_is_noticed")
def marker_is_not_looked_at_before_the_commit(patch: Patch) -> None:
    _unchecked(patch, Context, "check_not_collected")


@fault("scenarios", "a marker names the shard, not only the store", style=DOUBT.format("swapped"))
def marker_of_any_shard_will_do(patch: Patch) -> None:
    honest = high_water_marks.check_owner

    def of_the_store(found: Marker | None, root: str, wanted: Marker) -> Marker:
        return honest(found, root, wanted if found is None else replace(wanted, shard=found.shard))

    for module in (high_water_marks, markers):
        patch.setattr(module, "check_owner", of_the_store)


@fault("scenarios", "a root that knows more than the catalog stops writers", style=DOUBT.format("older"))
def marks_are_ignored(patch: Patch) -> None:
    patch.setattr(high_water_marks, "check_not_ahead", lambda *_: None)


@fault("scenarios", "changes of the catalog alone check the marks, too", style=DOUBT.format("older"))
def marks_do_not_stop_the_catalog(patch: Patch) -> None:
    patch.setattr(RootMarks, "look_at_marks", lambda *_, **__: lambda _: None)


@fault("scenarios", "changes of the catalog alone leave marks")
@found_by("test_changes_of_the_catalog_alone_leave_marks_as_well")
def the_catalog_alone_leaves_no_marks(patch: Patch) -> None:
    patch.setattr(RootMarks, "note_committed", lambda *_, **__: None)


@fault("scenarios", "a store that is closed leaves the mark of its last small commit")
@found_by("test_a_closed_store_has_told_its_shards_of_its_last_small_commits")
def closed_stores_leave_no_mark(patch: Patch) -> None:
    patch.setattr(RootMarks, "note_pending", lambda self: None)


@fault("scenarios", "a commit is noted at witnesses, not only where its rows were written")
@found_by("test_an_older_catalog_is_noticed_by_who_looked_before_and_by_who_opens[none]")
def witnesses_are_not_told(patch: Patch) -> None:
    patch.setattr(RootMarks, "_note_some", lambda self, _, written, mark: self._note(written, mark))


@fault("scenarios", "new shards are reported to all roots", style="test_new_shards_are_reported_to_all")
@replacing(RootMarks, "note_committed")
def new_shards_are_told_to_few(honest: Any, self: RootMarks, *committed: Any) -> None:
    self._noted_at = self.local_shards()
    honest(self, *committed)


@fault("scenarios", "a marker is read and written by one process at a time")
@found_by("test_what_is_written_to_a_marker_meanwhile_stays[a raise]")
def markers_are_raised_at_once(patch: Patch) -> None:
    patch.setattr(markers, "alone_at", lambda _: nullcontext())


@fault("scenarios", "readers do not take an older catalog for the newest", style=DOUBT.format("older"))
def readers_believe_any_catalog(patch: Patch) -> None:
    patch.setattr(Context, "check_newest", lambda self: None)


@fault("scenarios", "a process that has seen a newer catalog does not go on with an older one")
@found_by(DOUBT.format("set back"))
def progress_is_forgotten(patch: Patch) -> None:
    follow_any_copy(patch)


@fault("scenarios", "a commit into a file that is no longer the catalog does not count")
@found_by("test_a_commit_into_a_file_that_is_just_being_replaced_is_not_acknowledged")
def replaced_files_are_written(patch: Patch) -> None:
    patch.setattr(OpenedFiles, "are_there", lambda self: True)


@fault("scenarios", "a catalog with two names is not written to", style=DOUBT.format("linked"))
def catalogs_have_any_number_of_names(patch: Patch) -> None:
    patch.setattr("elasticscan.catalog.sqlite.check_one_name", lambda _: None)


@fault("scenarios", "a file of a commit that the catalog does not know stops the collection")
@found_by(LITTER.format("files of a newer catalog"))
def newer_files_are_ignored(patch: Patch) -> None:
    _planned(patch, ahead=0)


@fault("scenarios", "a file is garbage only if its own footer names this store and shard")
@found_by(LITTER.format("another's files"))
def garbage_by_the_catalog_alone(patch: Patch) -> None:
    honest = garbage._of_proven
    patch.setattr(garbage, "_of_proven", lambda shelf, path, _found, store: honest(shelf, path, None, store))


@fault("scenarios", "only files of this store are removed from the trash")
@found_by(LITTER.format("another's root in the trash"))
def trash_is_emptied_by_age_alone(patch: Patch) -> None:
    patch.setattr(garbage, "_is_own", lambda *_: True)


@fault("scenarios", "a file that the catalog never knew goes to the trash first")
@found_by("test_a_store_answers_as_the_transcript_says[garbage_never_committed]")
@replacing(collector, "_act")
def trash_is_skipped(honest: Any, disk: Disk, shelf: Shelf, decision: Decision) -> None:
    gone = decision.action is Action.TRASH
    honest(disk, shelf, replace(decision, action=Action.DELETE) if gone else decision)


@fault("scenarios", "where files are missing, the catalog is not trusted about others")
@found_by(LITTER.format("a file that someone renamed"))
def missing_files_raise_no_doubt(patch: Patch) -> None:
    patch.setattr(collector, "_doubt", lambda _: None)


@fault("scenarios", "a condemned file cannot be committed")
@found_by("test_a_file_that_is_about_to_be_moved_cannot_be_committed")
def condemned_files_are_committed(patch: Patch) -> None:
    condemned_files_may_come(patch)


@fault("scenarios", "files are removed without the catalog's lock")
@found_by("test_a_file_that_is_about_to_be_moved_cannot_be_committed")
def files_are_removed_under_the_lock(patch: Patch) -> None:
    honest = collector._act
    catalogs: list[Any] = []

    def taking(self: Any, *arguments: Any) -> Any:
        catalogs.append(self._context.catalog)
        return take(self, *arguments)

    def locked(*arguments: Any) -> None:
        with catalogs[-1].writing():
            honest(*arguments)

    take = collector._Collection._take
    patch.setattr(collector._Collection, "_take", taking)
    patch.setattr(collector, "_act", locked)


@fault("scenarios", "no file is collected before the files that it replaced")
@found_by("test_a_collection_that_dies_leaves_no_deleted_rows_to_a_repair")
def garbage_goes_in_any_order(patch: Patch) -> None:
    patch.setattr(collector._Look, "dropped_since", lambda self, decision: (0.0, 0))


@fault("scenarios", "only a small share of files is removed at once because the catalog does not know them")
@found_by(LITTER.format("too much at once"))
def any_share_may_go(patch: Patch) -> None:
    _planned(patch, unknown=0, of=0)


@fault("scenarios", "a copy of a store has secrets of its own once it is adopted")
@found_by("test_a_store_answers_as_the_transcript_says[adopt]")
@replacing(adoption, "take_incarnation")
def copies_keep_their_secrets(_: Any, tx: Tx, incarnation: str, at_least: tuple[int, int]) -> None:
    tx.append(Append(StoreAdopted(incarnation, at_least[1]), beyond=max(at_least)))


@fault("scenarios", "a copy does not write before it is adopted", style=DOUBT.format("copied alone"))
def copies_are_taken_for_originals(patch: Patch) -> None:
    for module in (high_water_marks, markers):
        patch.setattr(module, "check_same_catalog", lambda *_: None)


@fault("scenarios", "a file's age is reported by the clock that stamped it")
@found_by(LITTER.format("what is young, by the disk's clock alone"))
@replacing(collector._Collection, "_look")
def ages_by_the_machines_clock(honest: Any, self: Any, *arguments: Any) -> Any:
    look = honest(self, *arguments)
    return replace(look, shelf=replace(look.shelf, seen_at=self._context.clock.now()))


@fault("scenarios", "readers notice a catalog of before an adoption", style=DOUBT.format("adopted within"))
def marks_of_another_incarnation_say_nothing(patch: Patch) -> None:
    patch.setattr(high_water_marks, "is_same_catalog", lambda *_: False)


@fault(
    "scenarios",
    "a root elsewhere knows where its owner's catalog lies",
    style=DOUBT.format("adopted elsewhere"),
)
def marks_do_not_say_where_the_catalog_lies(patch: Patch) -> None:
    patch.setattr(high_water_marks, "place_of_catalog", lambda _: "")


@fault("scenarios", "an original whose shards were taken over elsewhere is still read")
@found_by(DOUBT.format("taken over"))
def any_mark_is_of_this_catalog(patch: Patch) -> None:
    patch.setattr(high_water_marks, "is_same_catalog", lambda *_: True)
