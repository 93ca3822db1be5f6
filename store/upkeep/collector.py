"""Garbage collection: looks at every root, plans (`store/upkeep/garbage.py`), and carries the plans out.

The catalog's write lock is held for two short transactions for each batch of files at most: in the first,
files that the catalog does not know are *condemned*, which no commit can undo; then they are deleted without
the lock; in the second they are forgotten, and condemned no more, being gone. A process that dies in between
leaves condemned files, which the next collection deletes.
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
    """The result of a garbage collection; of a dry run, what it would be.

    Attributes:
        decisions: about every file that the catalog does not refer to, kept ones included.
        skipped: (shard, why) of the shards that could not be collected; removed ones may stay away.
        refused: why nothing at all would be removed; only in a dry run, otherwise it is raised.
    """

    decisions: tuple[Decision, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    refused: str | None = None
    dry_run: bool = False

    @property
    def removed(self) -> int:
        """Number of files that are deleted."""
        return sum(decision.action is Action.DELETE for decision in self.decisions)


def _by_drop(file: RemovedFile) -> tuple[float, int]:
    """Return what dropped files are sorted by: they are deleted in the order in which they were dropped.

    A collection may die after any file. If a merged file went before those that it replaced, a repair without
    the catalog would take these for the newest rows.
    """
    return file.dropped_at, file.fragment


class _Collection:
    def __init__(self, context: Context, rules: GarbageRules, dry_run: bool) -> None:
        self._context, self._rules, self._dry_run = context, rules, dry_run
        # All files of the catalog, once for all roots and before any is listed. What is committed later is
        # unknown here, and younger than the grace period, or spared when it would be condemned.
        self.state, self.now = context.ask(lambda tx: (tx.state, tx.times.expiry))
        self.skipped: list[tuple[str, str]] = []
        self.away: list[RootState] = []  # of removed shards
        self.refusal: ShardMismatch | None = None

    # Looking

    def plans(self) -> list[tuple[RootState, tuple[Decision, ...]]]:
        """Return what is decided for each root that can be reached; nothing is changed yet."""
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
        """Note why nothing may be removed, as files of a root tell; the catalog is read after them."""
        name = root.shard.name
        if newest > self._context.state().commit:
            self.refusal = ShardMismatch(
                f"the catalog is older than its shards: a file of shard {name!r} knows commit "
                f"{newest}; put the newest catalog back, or run `elasticscan adopt`",
                shard=name,
                known=newest,
            )
        # A removed shard may have come back with forgotten files.
        unknown = too_many_unknown(root, self._rules, decisions)
        if unknown and root.shard.id in self.state.shards:
            self.refusal = self.refusal or ShardMismatch(
                f"the catalog does not know {unknown:,} files of shard {name!r}, most of all; look at them "
                "with `elasticscan gc --dry-run`, then collect with --share 1",
                shard=name,
                unknown=unknown,
            )

    def _roots(self) -> list[RootState]:
        """Look at all roots that can be reached, those of removed shards too: files may be left there."""
        active, roots, at_root = self.state.shards, list[RootState](), dict[str, list[Shard]]()
        for shard in sorted(self.state.all_shards, key=lambda shard: shard.id in active):
            at_root.setdefault(self._context.roots.root(shard.id).place, []).append(shard)
        known, removed = self.state.known_paths(), sorted(self.state.removed_files(), key=_by_drop)
        for shards in at_root.values():
            owner, ids = shards[-1], frozenset(shard.id for shard in shards)
            paths = {path for number, path in known if number == owner.id}
            here = [file for file in removed if file.shard in ids]
            try:
                roots.append(self._look(owner, ids, paths, here))
            except OperatorNeeded as error:
                if owner.id in active:
                    self._skip(owner, error)
                else:
                    self.away.append(RootState(owner, ids, 0.0, {}, frozenset(), self.ages(here), here))
        return roots

    def _skip(self, shard: Shard, error: OperatorNeeded) -> None:
        """Leave a root to the next collection: its shard is away, or was removed meanwhile.

        Another disk mounted in the place of a shard is an error.
        """
        is_succeeded = isinstance(error, ShardMismatch) and self._context.is_succeeded(shard.id)
        if not isinstance(error, ShardUnavailable) and not is_succeeded:
            raise error
        self.skipped.append((shard.name, str(error)))

    def _look(
        self, shard: Shard, ids: frozenset[int], known: Set[str], removed: list[RemovedFile]
    ) -> RootState:
        disk = self._context.check_root(shard.id)
        # The marker's file is written again, for its time says what time it is at the shard now.
        is_noted = not self._dry_run and self._context.roots.note_newest([shard.id], touch=True)
        files, seconds = dict(disk.list()), self.ages(removed)
        seen_at = files.get(MARKER, 0.0)
        if not is_noted:  # as near as may be: by this machine's clock, unless something there is newer
            seen_at = max(SystemClock().now(), *files.values())
        return RootState(shard, ids, seen_at, files, frozenset(known - seconds.keys()), seconds, removed)

    def ages(self, removed: Sequence[RemovedFile]) -> dict[str, float]:
        """Return for how many seconds files were dropped, by their paths."""
        return {file.path: self.now - file.dropped_at for file in reversed(removed)}

    # Acting

    def forget_gone(self, root: RootState) -> None:
        """Forget what a collection that died has deleted: all files of the root were listed after `state`."""
        over = {path for path, age in root.dropped.items() if age >= self._rules.grace_seconds}
        over |= {path for shard, path in self.state.condemned if shard == root.shard.id}
        self.book(root, over - root.files.keys())

    def carry_out(self, root: RootState, decisions: Sequence[Decision]) -> list[Decision]:
        """Do what was decided for a root; returns what was done or kept."""
        delete = {decision.path for decision in decisions if decision.action is Action.DELETE}
        going = list(dict.fromkeys(file.path for file in root.removed if file.path in delete))
        going += sorted(delete.difference(going))
        gone = set[str]()
        try:
            for start in range(0, len(going), BATCH_FILES):
                disk, batch = self._context.writable_disk(root.shard.id), going[start : start + BATCH_FILES]
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
        """Delete files, without the catalog's lock, and note which are gone."""
        for path in paths:
            disk.delete(path)
            deleted.add(path)

    @retry_interrupted
    def _condemn(self, files: Set[tuple[int, str]]) -> Set[str]:
        """Let no commit enter files from here on; return the paths of files that are in the log by now."""
        if not files:
            return frozenset()
        with self._context.catalog.writing() as tx:
            spared = files & tx.state.known_paths()
            if going := sorted(files - spared):
                tx.append(FilesCondemned(tuple(going)))
        return {path for _, path in spared}

    @retry_interrupted
    def book(self, root: RootState, gone: Set[str]) -> None:
        """Forget dropped files that are gone, and lift the condemnation of others."""
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
    """Return a file's manifest, None where it has none that can be read."""
    try:
        return read_manifest(disk, path)
    except FragmentDamaged:
        return None


def _doubt(roots: Sequence[RootState]) -> str | None:
    """Return the reason to doubt a catalog that does not know some files; None when there is none."""
    lost = [f"{path} of shard {root.shard.name!r}" for root in roots for path in sorted(root.missing)]
    if not lost:
        return None
    return (
        f"the catalog does not know it, but refers to {lost[0]}, which is not there ({len(lost)} in all): it "
        "may be wrong about this one, too"
    )


def collect_garbage(context: Context, rules: GarbageRules, dry_run: bool = False) -> Collected:
    """Remove files that nothing needs any more, as far as that is proven.

    Raises:
        StoreDamaged: the catalog is not as it was written.
        ShardMismatch: it is an older copy, a root is not the shard's, or too much would go at once.
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
    """Forget leases, secrets and topologies that are over."""
    with context.catalog.leasing() as tx:
        tx.end_expired_leases()
    with context.catalog.writing() as tx:
        forget_secrets(tx)
        forget_topologies(tx, topology_at(tx, tx.times.expiry - tx.state.retention_seconds))


def collect_dropped(context: Context, table: int, most_files: int) -> None:
    """Remove files of a table that were dropped longer ago than the grace period, the first of them.

    No root is listed, and the catalog not looked at as a whole: that a file was dropped stays true for ever.
    """
    rules, collection = GarbageRules(), _Collection(context, GarbageRules(), dry_run=False)
    state, now = collection.state, collection.now
    over = [file for file in state.removed_files(table) if now - file.dropped_at >= rules.grace_seconds]
    files = sorted(over, key=_by_drop)[:most_files]
    for shard in (shard for shard in state.all_shards if any(file.shard == shard.id for file in files)):
        here = [file for file in files if file.shard == shard.id]
        seconds = collection.ages(here)
        root = RootState(shard, frozenset({shard.id}), now, seconds, frozenset(), seconds, here)
        try:
            read = partial(_manifest, context.writable_disk(shard.id))
            collection.carry_out(root, plan(root, rules, read, state.store_id)[0])
        except OperatorNeeded:  # a shard that is away can wait, and a removed one takes its files along
            if context.has_left(shard.id):
                collection.book(root, root.dropped.keys())
