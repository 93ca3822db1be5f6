"""Decisions about each file in a shard's root: a pure function of the files and the catalog.

A *dropped* file goes after the grace period: that it was dropped is proof, and stays true for ever, since no
file is entered twice. An *orphan*, which the catalog never knew or forgot, goes after a week: not knowing
proves little, the catalog may be the wrong one. A file whose manifest names another store or shard stays. A
file without a readable manifest (unfinished, torn, renamed) counts as an orphan, even if it was dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from elasticscan.base.limits import GC_FEW_FILES, GC_GRACE_SECONDS, GC_SHARE, ORPHAN_SECONDS
from elasticscan.metadata import Manifest
from elasticscan.storage import is_fragment_path


class Action(StrEnum):
    """The ways to deal with a file."""

    KEEP = "keep"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class GarbageRules:
    """The rules of a garbage collection.

    Attributes:
        grace_seconds: a file that was needed so recently is spared.
        orphan_seconds: a file that the catalog does not know, or without a readable manifest, stays for so
            long, and at least `grace_seconds`.
        share: most of a shard's files that may go at once because the catalog does not know them.
        few: up to so many of them may go whatever their share is.
    """

    grace_seconds: float = GC_GRACE_SECONDS
    orphan_seconds: float = ORPHAN_SECONDS
    share: float = GC_SHARE
    few: int = GC_FEW_FILES


@dataclass(frozen=True, slots=True)
class RootState:
    """A shard's root, and what the catalog knows of it.

    Attributes:
        shard: the name, for people.
        ids: of the shard, and of those removed ones that had this root before it.
        seen_at: the time there when it was looked at, by the clock that also stamps its files.
        files: path and time of last change of each file.
        live: paths that the catalog refers to.
        dropped: paths that it refers to no more, and for how many seconds.
    """

    shard: str
    ids: frozenset[int]
    seen_at: float
    files: Mapping[str, float]
    live: frozenset[str]
    dropped: Mapping[str, float]

    @property
    def missing(self) -> frozenset[str]:
        """The files that should be there and are not."""
        return self.live - self.files.keys()


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a file, with its reason."""

    shard: str
    path: str
    action: Action
    reason: str


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """The decisions about one root.

    Attributes:
        ahead: the newest commit that a file knows and the catalog does not; 0 when there is none.
        unknown, of: where too much would go at once, how many files that the catalog does not know, and how
            many files the root has; else 0.
        vanished: dropped files that are gone already.
    """

    decisions: tuple[Decision, ...]
    vanished: tuple[str, ...] = ()
    ahead: int = 0
    unknown: int = 0
    of: int = 0


def in_question(root: RootState, rules: GarbageRules) -> list[str]:
    """Return the files whose manifest has to be read: none serves a slot, and none was needed just now."""
    return [path for path in _ours(root) if _unused_seconds(root, path) >= rules.grace_seconds]


def _unused_seconds(root: RootState, path: str) -> float:
    """Return since when the catalog needs a file no more; of an orphan, since when it was not changed."""
    return root.dropped.get(path, root.seen_at - root.files[path])


def _ours(root: RootState) -> list[str]:
    """Files that have names of ours and are not referred to."""
    return sorted(path for path in root.files if is_fragment_path(path) and path not in root.live)


def plan(
    root: RootState,
    rules: GarbageRules,
    manifests: Mapping[str, Manifest | None],
    store: str,
    newest_commit: int,
    doubt: str | None = None,
) -> RemovalPlan:
    """Decide on every file of a root that the catalog does not refer to.

    Args:
        manifests: of the files in question; None for what has none that can be read.
        newest_commit: the catalog's, looked up after the manifests were read.
        doubt: why the catalog is not trusted when it does not know a file, if so.
    """
    decisions, ahead = list[Decision](), 0
    for path in _ours(root):
        if path not in manifests:
            decisions.append(Decision(root.shard, path, Action.KEEP, _too_young(root, path)))
            continue
        manifest = manifests[path]
        if manifest is not None and manifest.store == store:
            ahead = max(ahead, manifest.after_commit, manifest.max_commit)
        decisions.append(Decision(root.shard, path, *_judged(root, rules, path, manifest, store, doubt)))
    decisions += [
        Decision(root.shard, path, Action.KEEP, "it has no name that elasticscan gives")
        for path in sorted(root.files)
        if not is_fragment_path(path) and not path.startswith("elasticscan-")
    ]
    unknown = sum(d.action is Action.DELETE and d.path not in root.dropped for d in decisions)
    of = sum(is_fragment_path(path) for path in root.files)
    if unknown <= max(rules.few, rules.share * of):
        unknown = of = 0
    vanished = tuple(
        path
        for path, seconds in sorted(root.dropped.items())
        if path not in root.files and seconds >= rules.grace_seconds
    )
    return RemovalPlan(tuple(decisions), vanished, ahead if ahead > newest_commit else 0, unknown, of)


def _too_young(root: RootState, path: str) -> str:
    seconds = _unused_seconds(root, path)
    if path in root.dropped:
        return f"nothing needs it, since {seconds:,.0f} s: a reader may still use it"
    return f"the catalog does not know it, but it is {seconds:,.0f} s old: its writer may still commit it"


def _judged(
    root: RootState, rules: GarbageRules, path: str, manifest: Manifest | None, store: str, doubt: str | None
) -> tuple[Action, str]:
    """Decide on a file by what it says of itself."""
    seconds = _unused_seconds(root, path)
    if manifest is not None and not _is_own(root, manifest, store):
        return Action.KEEP, _account(manifest)
    if manifest is not None and path in root.dropped:
        return Action.DELETE, f"nothing needs it, since {seconds:,.0f} s"
    if doubt is not None:
        return Action.KEEP, doubt
    why = "unfinished, torn, renamed or damaged" if manifest is None else "never committed"
    if seconds < rules.orphan_seconds:
        return Action.KEEP, f"{why}, {seconds:,.0f} s old, and kept for {rules.orphan_seconds:,.0f}"
    return Action.DELETE, f"{why}, {seconds:,.0f} s old"


def _is_own(root: RootState, manifest: Manifest, store: str) -> bool:
    return manifest.store == store and manifest.shard in root.ids


def _account(manifest: Manifest) -> str:
    return (
        f"by its own account {manifest.path} of shard {manifest.shard} of store {manifest.store}, so it is "
        "not this shard's to remove"
    )
