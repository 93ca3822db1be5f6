"""Garbage collection: lists every root, plans (`store/upkeep/garbage.py`), and carries the plans out.

Each batch of files takes at most two short transactions. The first one *condemns* files that the catalog does
not know: no commit can name them any more. They are deleted without the catalog's lock. The second
transaction removes deleted files from the catalog's lists of removed and condemned files. A process that dies
in between leaves condemned files, which the next collection deletes.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import partial

from elasticscan.base.clock import SystemClock
from elasticscan.base.errors import (
    FragmentDamaged,
    OperatorNeeded,
    ShardMismatch,
    ShardUnavailable,
)
from elasticscan.catalog import RemovedFile, forget_secrets, forget_topologies, retry_interrupted, topology_at
from elasticscan.metadata import FileChanges, FilesCondemned, FragmentsReplaced, Manifest
from elasticscan.storage import Disk, read_manifest
from elasticscan.store.context import Context
from elasticscan.store.roots.location import MARKER
from elasticscan.store.upkeep.garbage import Action, Decision, GarbageRules, RootState, plan, too_many_unknown
from elasticscan.topology import Shard

BATCH_FILES = 256


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of a garbage collection, or the expected result in a dry run.

    Attributes:
        decisions: about every file that does not serve slots, kept files included.
        skipped: (shard, error) of the shards that could not be collected; removed shards may be missing.
        refused: in a dry run, the error that a real collection would raise.
    """

    decisions: tuple[Decision, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    refused: str | None = None
    dry_run: bool = False

    @property
    def removed(self) -> int:
        """The number of deleted files."""
        return sum(decision.action is Action.DELETE for decision in self.decisions)


def _by_drop(file: RemovedFile) -> tuple[float, int]:
    """Return the sort key of dropped files, which are deleted in the order in which they were dropped.

    A collection may die after any file. If a merged file were deleted before the files that it replaced, a
    repair without the catalog would believe that those have the newest rows.
    """
    return file.dropped_at, file.fragment


class _Collection:
    def __init__(self, context: Context, rules: GarbageRules, dry_run: bool) -> None:
        self._context, self._rules, self._dry_run = context, rules, dry_run
        # One state for all roots, read before any is listed. A file that is committed later is unknown to it.
        # Such a file is younger than the grace period, or `_condemn` spares it.
        self.state, self.now = context.ask(lambda tx: (tx.state, tx.times.expiry))
        self.skipped: list[tuple[str, str]] = []
        self.away: list[RootState] = []  # of removed shards
        self.refusal: ShardMismatch | None = None

    # Plan

    def plans(self) -> list[tuple[RootState, tuple[Decision, ...]]]:
        """Return the decisions for each reachable root; nothing is changed yet."""
        roots, plans = self._roots(), list[tuple[RootState, tuple[Decision, ...]]]()
        doubt = _doubt(roots)
        for root in roots:
            try:
                read = partial(_manifest, self._context.check_root(root.shard.id))
                decisions, newest = plan(root, self._rules, read, self.state.store_id, doubt)
                self._check(root, decisions, newest)
                plans.append((root, decisions))
            except (ShardUnavailable, ShardMismatch) as error:
                self._skip(root.shard, error)
        return plans

    def _check(self, root: RootState, decisions: Sequence[Decision], newest: int) -> None:
        """Set `refusal` if the files of a root show that the catalog is older, or knows too few of them."""
        name = root.shard.name
        if newest > self._context.state().commit:
            self.refusal = ShardMismatch(
                f"the catalog is older than its shards: a file of shard {name!r} knows commit "
                f"{newest}; put the newest catalog back, or run `elasticscan adopt`",
                shard=name,
                known=newest,
            )
        # Not for a removed shard: its root may be back with files that the catalog has forgotten.
        unknown = too_many_unknown(root, self._rules, decisions)
        if unknown and root.shard.id in self.state.shards:
            self.refusal = self.refusal or ShardMismatch(
                f"the catalog does not know {unknown:,} files of shard {name!r}, too many of all; check them "
                "with `elasticscan gc --dry-run`, then collect with --share 1",
                shard=name,
                unknown=unknown,
            )

    def _roots(self) -> list[RootState]:
        """Return the states of all reachable roots, also of removed shards, which may still have files."""
        active, roots, at_root = self.state.shards, list[RootState](), dict[str, list[Shard]]()
        for shard in sorted(self.state.all_shards, key=lambda shard: shard.id in active):
            at_root.setdefault(self._context.roots.root(shard.id).place, []).append(shard)
        known, removed = self.state.known_paths(), sorted(self.state.removed_files(), key=_by_drop)
        for shards in at_root.values():
            owner, ids = shards[-1], frozenset(shard.id for shard in shards)
            paths = {path for number, path in known if number == owner.id}
            dropped = [file for file in removed if file.shard in ids]
            try:
                roots.append(self._listed(owner, ids, paths, dropped))
            except OperatorNeeded as error:
                if owner.id in active:
                    self._skip(owner, error)
                else:
                    self.away.append(RootState(owner, ids, 0.0, {}, frozenset(), self.ages(dropped), dropped))
        return roots

    def _skip(self, shard: Shard, error: OperatorNeeded) -> None:
        """Leave a root to the next collection if its shard is away, or another shard has the root now.

        Raises other errors, such as that of another disk at the shard's root.
        """
        is_succeeded = isinstance(error, ShardMismatch) and self._context.is_succeeded(shard.id)
        if not isinstance(error, ShardUnavailable) and not is_succeeded:
            raise error
        self.skipped.append((shard.name, str(error)))

    def _listed(
        self, shard: Shard, ids: frozenset[int], known: Set[str], removed: list[RemovedFile]
    ) -> RootState:
        disk = self._context.check_root(shard.id)
        # The marker's file is written again: its new modification time is the present time at the shard.
        is_noted = not self._dry_run and self._context.roots.note_newest([shard.id], touch=True)
        files, seconds = dict(disk.list()), self.ages(removed)
        seen_at = files.get(MARKER, 0.0)
        if not is_noted:  # an estimate: this machine's clock, or the newest file if that is later
            seen_at = max(SystemClock().now(), *files.values())
        return RootState(shard, ids, seen_at, files, frozenset(known - seconds.keys()), seconds, removed)

    def ages(self, removed: Sequence[RemovedFile]) -> dict[str, float]:
        """Return for how many seconds removed files have served no slots, by path."""
        return {file.path: self.now - file.dropped_at for file in reversed(removed)}

    # Carry out

    def forget_gone(self, root: RootState) -> None:
        """Forget files that a collection which died has deleted: they are missing in the later listing."""
        deletable = {path for path, age in root.dropped.items() if age >= self._rules.grace_seconds}
        deletable |= {path for shard, path in self.state.condemned if shard == root.shard.id}
        self.book(root, deletable - root.files.keys())

    def carry_out(self, root: RootState, decisions: Sequence[Decision]) -> list[Decision]:
        """Carry out the decisions for a root; return those that were carried out."""
        delete = {decision.path for decision in decisions if decision.action is Action.DELETE}
        paths = list(dict.fromkeys(file.path for file in root.removed if file.path in delete))
        paths += sorted(delete.difference(paths))
        gone = set[str]()
        try:
            for start in range(0, len(paths), BATCH_FILES):
                disk, batch = self._context.writable_disk(root.shard.id), paths[start : start + BATCH_FILES]
                spared = self._condemn({(root.shard.id, path) for path in batch if path not in root.dropped})
                deleted = set[str]()
                try:
                    self._delete(disk, [path for path in batch if path not in spared], deleted)
                finally:
                    gone |= deleted
                    self.book(root, deleted)
        except (ShardUnavailable, ShardMismatch) as error:
            self._skip(root.shard, error)
        return [each for each in decisions if each.action is Action.KEEP or each.path in gone]

    def _delete(self, disk: Disk, paths: Sequence[str], deleted: set[str]) -> None:
        """Delete files without the catalog's lock, and add each to `deleted`."""
        for path in paths:
            disk.delete(path)
            deleted.add(path)

    @retry_interrupted
    def _condemn(self, files: Set[tuple[int, str]]) -> Set[str]:
        """Forbid later commits to name files; return the paths of files that are committed already."""
        if not files:
            return frozenset()
        with self._context.catalog.writing() as tx:
            spared = files & tx.state.known_paths()
            if condemned := sorted(files - spared):
                tx.append(FilesCondemned(tuple(condemned)))
        return {path for _, path in spared}

    @retry_interrupted
    def book(self, root: RootState, gone: Set[str]) -> None:
        """Remove deleted files from the catalog's lists of removed and of condemned files."""
        if not gone:
            return
        forgotten: dict[int, set[tuple[int, str]]] = {}
        for file in root.removed:
            if file.path in gone:
                forgotten.setdefault(file.table, set()).add((file.shard, file.path))
        with self._context.catalog.writing() as tx:
            for table, files in sorted(forgotten.items()):
                if table in tx.state.tables or table in tx.state.dropped:
                    tx.append(FragmentsReplaced(table, "forget", FileChanges(forgotten=tuple(sorted(files)))))
            condemned = tx.state.condemned & {(root.shard.id, path) for path in gone}
            if condemned:
                tx.append(FilesCondemned(tuple(sorted(condemned)), lifted=True))


def _manifest(disk: Disk, path: str) -> Manifest | None:
    """Return a file's manifest, or None if it has no readable one."""
    try:
        return read_manifest(disk, path)
    except FragmentDamaged:
        return None


def _doubt(roots: Sequence[RootState]) -> str | None:
    """Return a reason to keep files that the catalog does not know: files that it knows are missing."""
    lost = [f"{path} of shard {root.shard.name!r}" for root in roots for path in sorted(root.missing)]
    if not lost:
        return None
    return (
        f"the catalog does not know it, but refers to {lost[0]}, which is not there ({len(lost)} in all): it "
        "may be wrong about this one, too"
    )


def collect_garbage(context: Context, rules: GarbageRules, dry_run: bool = False) -> Collected:
    """Delete files if it is proven that nothing needs them any more.

    Raises:
        StoreDamaged: the catalog is damaged.
        ShardMismatch: the catalog is an older copy, or does not know too many files; or a root belongs to
            another shard or store.
    """
    if not dry_run:
        context.catalog.check_writable()
    context.catalog.check_whole()
    collection = _Collection(context, rules, dry_run)
    plans = collection.plans()
    refusal = collection.refusal
    if dry_run:
        planned = tuple(decision for _, each in plans for decision in each)
        refused = None if refusal is None else str(refusal)
        return Collected(planned, tuple(collection.skipped), refused, dry_run=True)
    if refusal is not None:
        raise refusal
    _forget_over(context)
    for root in (*collection.away, *(root for root, _ in plans)):
        collection.forget_gone(root)
    done = [decision for root, each in plans for decision in collection.carry_out(root, each)]
    context.catalog.drop_payloads(context.clock.now() - rules.grace_seconds)
    return Collected(tuple(done), tuple(collection.skipped))


@retry_interrupted
def _forget_over(context: Context) -> None:
    """Remove leases, secrets and topologies that have expired."""
    with context.catalog.leasing() as tx:
        tx.end_expired_leases()
    with context.catalog.writing() as tx:
        forget_secrets(tx)
        forget_topologies(tx, topology_at(tx, tx.times.expiry - tx.state.retention_seconds))


def collect_dropped(context: Context, table: int, most_files: int) -> None:
    """Delete files of a table that were dropped before the grace period, at most `most_files`, oldest first.

    Roots are not listed and the catalog is not checked as a whole: a dropped file is never used again.
    """
    rules, collection = GarbageRules(), _Collection(context, GarbageRules(), dry_run=False)
    state, now = collection.state, collection.now
    expired = [file for file in state.removed_files(table) if now - file.dropped_at >= rules.grace_seconds]
    files = sorted(expired, key=_by_drop)[:most_files]
    for shard in (shard for shard in state.all_shards if any(file.shard == shard.id for file in files)):
        dropped = [file for file in files if file.shard == shard.id]
        seconds = collection.ages(dropped)
        root = RootState(shard, frozenset({shard.id}), now, seconds, frozenset(), seconds, dropped)
        try:
            read = partial(_manifest, context.writable_disk(shard.id))
            collection.carry_out(root, plan(root, rules, read, state.store_id)[0])
        except OperatorNeeded:  # a shard that is away can wait; the files of a removed one are gone
            if context.has_left(shard.id):
                collection.book(root, root.dropped.keys())
