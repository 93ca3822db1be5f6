"""Opening of a store: its catalog, its disks, and the upkeep after commits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from elasticscan.base.clock import Clock
from elasticscan.base.errors import NotFound
from elasticscan.base.redaction import shown
from elasticscan.catalog import open_catalog
from elasticscan.protocol import Cluster
from elasticscan.storage import Disk
from elasticscan.store.context import Context
from elasticscan.store.context.shards import CatalogPlacements, LocalShards
from elasticscan.store.roots import Location
from elasticscan.store.upkeep.after_commit import AfterCommit


def open_context(
    location: Location,
    clock: Clock,
    disks: Callable[[str], Disk],
    read_only: bool,
    follows: bool,
) -> Context:
    """Open the state that all handles of a store share; with `follows`, commits are followed by upkeep."""
    try:
        catalog = open_catalog(location.catalog_url, clock, shown(location.uri), read_only)
    except (NotFound, OSError):
        location.check_not_bereft()  # shards without a catalog: do not suggest `create`
        raise
    reopen = partial(open_context, location, clock, disks, read_only, follows)
    context = Context(catalog, catalog.home.clock, location, disks, reopen)
    context.cluster = Cluster(CatalogPlacements(context), LocalShards(context))
    if follows and catalog.read_only is None:
        context.upkeep = AfterCommit(context)
    catalog.before_writing = context.roots.read_before_writing
    catalog.after_writing = context.roots.note_committed
    return context
