"""Decisions about each file in a shard's root: a pure function of the files and the catalog.

A *dropped* file is deleted after the grace period. The catalog proves that it was dropped, and it stays so,
since no file is added twice. An *orphan*, which the catalog never knew or has forgotten, is deleted after a
week: that a file is unknown proves little, since the catalog may be the wrong one. A file whose manifest
names another store or shard is kept. A file without a readable manifest (unfinished, torn, renamed) is kept
as long as an orphan, even if it was dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from elasticscan.base.limits import GC_FEW_FILES, GC_GRACE_SECONDS, GC_SHARE, ORPHAN_SECONDS
from elasticscan.catalog import RemovedFile
from elasticscan.metadata import Manifest
from elasticscan.storage import is_fragment_path
from elasticscan.topology import Shard


class Action(StrEnum):
    """The two decisions about a file."""

    KEEP = "keep"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class GarbageRules:
    """The rules of a garbage collection.

    Attributes:
        grace_seconds: how long a dropped file is kept, for readers that may still use it.
        orphan_seconds: how long a file that the catalog does not know, or without a readable manifest, is
            kept; at least `grace_seconds`.
        share: the largest share of a shard's files that one collection deletes as unknown to the catalog.
        few: so many unknown files may be deleted in any case.
    """

    grace_seconds: float = GC_GRACE_SECONDS
    orphan_seconds: float = ORPHAN_SECONDS
    share: float = GC_SHARE
    few: int = GC_FEW_FILES


@dataclass(frozen=True, slots=True)
class RootState:
    """The files in a shard's root, and in the catalog.

    Attributes:
        shard: the newest shard that has this root.
        ids: of this shard, and of removed shards that had the root before.
        seen_at: the time when the root was listed, by the clock that sets the times of its files.
        files: the time of the last change, by path.
        live: paths of files that serve slots.
        dropped: the seconds since they were dropped, by path.
        removed: the dropped files, in the order in which they were dropped.
    """

    shard: Shard
    ids: frozenset[int]
    seen_at: float
    files: Mapping[str, float]
    live: frozenset[str]
    dropped: Mapping[str, float]
    removed: Sequence[RemovedFile] = ()

    @property
    def missing(self) -> frozenset[str]:
        """Paths of files that serve slots but do not exist."""
        return self.live - self.files.keys()

    def unused_seconds(self, path: str) -> float:
        """Return the seconds since a file was dropped, or since the last change of an orphan."""
        return self.dropped.get(path, self.seen_at - self.files[path])


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a file, with its reason."""

    shard: str
    path: str
    action: Action
    reason: str


def plan(
    root: RootState,
    rules: GarbageRules,
    read: Callable[[str], Manifest | None],
    store: str,
    doubt: str | None = None,
) -> tuple[tuple[Decision, ...], int]:
    """Decide about every file of a root that does not serve slots.

    Args:
        root: the files.
        rules: of the collection.
        read: returns the manifest of a file, or None if it has no readable one; called only for files that
            are older than the grace period.
        store: the id of the store.
        doubt: a reason to keep files that the catalog does not know, or None.

    Returns:
        The decisions, and the newest commit in the manifests that were read.
    """
    decisions, newest = list[Decision](), 0
    for path in sorted(root.files):
        if path in root.live or path.startswith("elasticscan-"):
            continue
        seconds, action = root.unused_seconds(path), Action.KEEP
        if not is_fragment_path(path):
            why = "it has no name that elasticscan gives"
        elif seconds >= rules.grace_seconds:
            manifest = read(path)
            if manifest is not None and manifest.store == store:
                newest = max(newest, manifest.after_commit, manifest.max_commit)
            action, why = _judged(root, rules, path, manifest, store, doubt)
        elif path in root.dropped:
            why = f"nothing needs it, since {seconds:,.0f} s: a reader may still use it"
        else:
            why = f"the catalog does not know it, but it is {seconds:,.0f} s old: its writer may commit it"
        decisions.append(Decision(root.shard.name, path, action, why))
    return tuple(decisions), newest


def _judged(
    root: RootState, rules: GarbageRules, path: str, manifest: Manifest | None, store: str, doubt: str | None
) -> tuple[Action, str]:
    """Decide about a file that is older than the grace period, by its manifest."""
    seconds = root.unused_seconds(path)
    if manifest is not None and (manifest.store != store or manifest.shard not in root.ids):
        whose = f"{manifest.path} of shard {manifest.shard} of store {manifest.store}"
        return Action.KEEP, f"by its own account {whose}, so it is not this shard's to remove"
    if manifest is not None and path in root.dropped:
        return Action.DELETE, f"nothing needs it, since {seconds:,.0f} s"
    if doubt is not None:
        return Action.KEEP, doubt
    why = "unfinished, torn, renamed or damaged" if manifest is None else "not known to the catalog"
    if seconds < rules.orphan_seconds:
        return Action.KEEP, f"{why}, {seconds:,.0f} s old, and kept for {rules.orphan_seconds:,.0f}"
    return Action.DELETE, f"{why}, {seconds:,.0f} s old"


def too_many_unknown(root: RootState, rules: GarbageRules, decisions: Sequence[Decision]) -> int:
    """Return how many files unknown to the catalog would be deleted, if these are too many, else 0."""
    unknown = sum(each.action is Action.DELETE and each.path not in root.dropped for each in decisions)
    most = max(rules.few, rules.share * sum(map(is_fragment_path, root.files)))
    return unknown if unknown > most else 0
