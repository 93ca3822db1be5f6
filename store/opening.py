"""Opening a store: its catalog, its disks, and the upkeep that follows commits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from elasticscan.base.clock import Clock
from elasticscan.base.errors import StoreNotFound
from elasticscan.catalog import Catalog
from elasticscan.storage import Disk
from elasticscan.store.context import Checkpoint, Context
from elasticscan.store.context.shards import local_cluster
from elasticscan.store.roots import Location
from elasticscan.store.upkeep.after_commit import AfterCommit


class _ReadOnlyDisk:
    """A disk on which nothing is made or removed: a write fails before it stages anything.

    `refuse` raises what is said instead.
    """

    def __init__(self, disk: Disk, refuse: Callable[[], None]) -> None:
        self._disk, self._refuse = disk, refuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def _refused(self, *_: object) -> None:
        self._refuse()

    create = delete = rename = note = _refused


def open_context(
    location: Location,
    shown_uri: str,
    clock: Clock,
    disks: Callable[[str], Disk],
    read_only: bool,
    checkpoint: Checkpoint,
    follows: bool,
) -> Context:
    """Open what the handles of a store share in this process; with `follows` upkeep follows commits."""
    if not location.exists():
        location.check_not_bereft()
        raise StoreNotFound(
            f"{shown_uri} holds no elasticscan store; create one with elasticscan.create or "
            "`elasticscan create`",
            uri=shown_uri,
        )
    try:
        catalog = Catalog(location.catalog_url, clock, shown_uri, read_only)
    except StoreNotFound:
        location.check_not_bereft()  # no `create` where shards of a store are
        raise

    def open_root(root: str) -> Disk:
        disk = disks(root)
        if catalog.read_only is None:
            return disk
        return cast("Disk", _ReadOnlyDisk(disk, catalog.check_writable))

    reopen = partial(open_context, location, shown_uri, clock, disks, read_only, checkpoint, follows)
    context = Context(catalog, catalog.clock, location, open_root, local_cluster, checkpoint, reopen)
    if follows and catalog.read_only is None:
        context.upkeep = AfterCommit(context)
    catalog.before_writing = context.look_before_writing
    catalog.when_missing = context.compare_with_shards
    catalog.after_writing = context.note_committed
    return context
