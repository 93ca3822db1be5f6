"""Decisions about each file in a shard's root: a pure function of the files and the catalog.

A file goes only by positive proof. That the catalog does not know it is none: the catalog may be
damaged, or older than the file. So

- a file that the catalog knows as *dropped* for longer than the grace period is deleted. That a file was
  dropped stays true for ever, since no file is entered twice: even an older copy of the catalog is right
  about it;
- a file that the catalog never knew, or forgot, goes to the trash: it is unknown to a catalog that may turn
  out to be the wrong one. The trash is emptied by age;
- a file in the trash that the catalog refers to after all is put back.

Of whatever is deleted the file's own manifest must say that this store wrote it, at this shard; one that was
torn, and says nothing, stays in the trash for its time first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from elasticscan.base.limits import GC_FEW_FILES, GC_GRACE_SECONDS, GC_SHARE, TRASH_SECONDS
from elasticscan.metadata import Manifest
from elasticscan.storage import is_fragment_path

TRASH = "trash"
_IN_TRASH = re.compile(rf"{TRASH}/([0-9]{{1,12}})/(.+)")


class Action(StrEnum):
    """The ways to deal with a file."""

    KEEP = "keep"
    DELETE = "delete"
    TRASH = "trash"
    EMPTY = "empty"  # delete it from the trash
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class GarbageRules:
    """The rules of a garbage collection.

    Attributes:
        grace_seconds: a file that was needed so recently is spared.
        trash_seconds: how long a file stays in the trash; 0 for not at all.
        share: most of a shard's files that may go at once because the catalog does not know them.
        few: up to so many of them may go whatever their share is.
    """

    grace_seconds: float = GC_GRACE_SECONDS
    trash_seconds: float = TRASH_SECONDS
    share: float = GC_SHARE
    few: int = GC_FEW_FILES


@dataclass(frozen=True, slots=True)
class Shelf:
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

    @property
    def trashed(self) -> dict[str, tuple[str, float]]:
        """Of the files in the trash: where they were, and for how long they have been there."""
        matches = ((path, _IN_TRASH.fullmatch(path)) for path in self.files)
        return {
            path: (match[2], self.seen_at - int(match[1]))
            for path, match in matches
            if match and is_fragment_path(match[2])
        }

    def trash_path(self, path: str) -> str:
        return f"{TRASH}/{int(self.seen_at)}/{path}"


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
        unknown, of: how many files would go because the catalog does not know them, and of how many; only
            set where that is too much at once.
        vanished: dropped files that are gone already.
    """

    decisions: tuple[Decision, ...]
    vanished: tuple[str, ...] = ()
    ahead: int = 0
    unknown: int = 0
    of: int = 0


def in_question(shelf: Shelf, rules: GarbageRules) -> dict[str, str]:
    """Return the files whose manifest has to be read, with the paths that they were written as.

    They are the ones that would go if it says so.
    """
    ages = {path: shelf.dropped.get(path, shelf.seen_at - shelf.files[path]) for path in _ours(shelf)}
    files = {path: path for path, age in ages.items() if age >= rules.grace_seconds}
    in_trash = shelf.trashed.items()
    return files | {at: path for at, (path, seconds) in in_trash if seconds >= rules.trash_seconds}


def _ours(shelf: Shelf) -> list[str]:
    """Files that have names of ours and are not referred to."""
    return sorted(path for path in shelf.files if is_fragment_path(path) and path not in shelf.live)


def plan(
    shelf: Shelf,
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
    for path in _ours(shelf):
        if path not in manifests:
            decisions.append(Decision(shelf.shard, path, Action.KEEP, _too_young(shelf, path)))
            continue
        manifest = manifests[path]
        if manifest is not None and manifest.store == store:
            ahead = max(ahead, manifest.after_commit, manifest.max_commit)
        action, reason = _of_proven(shelf, path, manifest, store)
        if action is Action.TRASH and doubt is not None:
            action, reason = Action.KEEP, doubt
        if action is Action.TRASH and manifest is not None and not rules.trash_seconds:
            action = Action.DELETE
        decisions.append(Decision(shelf.shard, path, action, reason))
    in_trash = _look_into_trash(shelf, rules, manifests, store)
    decisions += [Decision(shelf.shard, *decided) for decided in in_trash]
    decisions += [
        Decision(shelf.shard, path, Action.KEEP, "it has no name that elasticscan gives")
        for path in sorted(shelf.files)
        if not is_fragment_path(path) and not path.startswith((f"{TRASH}/", "elasticscan-"))
    ]
    going = (Action.TRASH, Action.DELETE)
    unknown = sum(d.action in going and d.path not in shelf.dropped for d in decisions)
    of = sum(is_fragment_path(path) for path in shelf.files)
    if unknown <= max(rules.few, rules.share * of):
        unknown = of = 0
    vanished = tuple(
        path
        for path, seconds in sorted(shelf.dropped.items())
        if path not in shelf.files and seconds >= rules.grace_seconds
    )
    return RemovalPlan(tuple(decisions), vanished, ahead if ahead > newest_commit else 0, unknown, of)


def _too_young(shelf: Shelf, path: str) -> str:
    if path in shelf.dropped:
        return f"nothing needs it, since {shelf.dropped[path]:,.0f} s: a reader may still use it"
    age = shelf.seen_at - shelf.files[path]
    return f"the catalog does not know it, but it is {age:,.0f} s old: its writer may still commit it"


def _of_proven(shelf: Shelf, path: str, manifest: Manifest | None, store: str) -> tuple[Action, str]:
    age = f"{shelf.seen_at - shelf.files[path]:,.0f} s old"
    if manifest is None:
        return Action.TRASH, f"unfinished, torn or damaged, {age}, and no part of the store"
    if not _is_own(shelf, manifest, store) or manifest.path != path:
        return Action.KEEP, _account(manifest)
    if path in shelf.dropped:
        return Action.DELETE, f"nothing needs it, since {shelf.dropped[path]:,.0f} s"
    return Action.TRASH, f"never committed, {age}"


def _is_own(shelf: Shelf, manifest: Manifest, store: str) -> bool:
    return manifest.store == store and manifest.shard in shelf.ids


def _account(manifest: Manifest) -> str:
    return (
        f"by its own account {manifest.path} of shard {manifest.shard} of store {manifest.store}, so it is "
        "not this shard's to remove"
    )


def _look_into_trash(
    shelf: Shelf, rules: GarbageRules, manifests: Mapping[str, Manifest | None], store: str
) -> Iterator[tuple[str, Action, str]]:
    newest_first = sorted(shelf.trashed.items(), key=lambda item: item[1][1])
    put_back = set[str]()
    for path, (original, seconds) in newest_first:
        if original in shelf.missing and original not in put_back:
            put_back.add(original)
            yield path, Action.RESTORE, f"the catalog refers to {original}, which is missing"
        elif original in shelf.live:
            yield path, Action.KEEP, f"the catalog refers to {original}"
        elif (manifest := manifests.get(path)) is not None and not _is_own(shelf, manifest, store):
            yield path, Action.KEEP, _account(manifest)
        else:
            action = Action.EMPTY if seconds >= rules.trash_seconds else Action.KEEP
            yield path, action, f"in the trash for {seconds:,.0f} s"
