"""Tags: names for snapshots, which stay readable, and can be read by name instead of by number."""

from __future__ import annotations

from datetime import datetime

from elasticscan.base.errors import AlreadyExists, InvalidOption, LimitExceeded, NotFound
from elasticscan.base.limits import MAX_TAGS, check_name
from elasticscan.base.suggestions import suggest
from elasticscan.catalog import Tag, Tx, retry_interrupted
from elasticscan.metadata import TableInfo, TagChanged
from elasticscan.store.context.shared import Context, Find

_TAKEN = frozenset({"earliest", "latest", "newest"})


def check_tag_name(name: object) -> str:
    """Return the name of a tag. Raises `InvalidOption` for a number, which would mean a commit."""
    text = check_name("tag", name)
    if text.isdecimal() or text in _TAKEN:
        raise InvalidOption(
            f"the tag name {text!r} is not allowed: it would be taken for "
            f"{'a word of startingVersion' if text in _TAKEN else 'the number of a commit'}; choose another",
            kind="tag",
            name=text,
        )
    return text


def snapshot_of(tx: Tx, table: TableInfo, snapshot: int | str | datetime | None) -> int | None:
    """Return the commit number for a number, a tag, or a time (the newest commit then); None stays None.

    Raises `NotFound` if there is no such tag, the table was made later, or the time is in the future.
    """
    if isinstance(snapshot, str):
        return _tag(tx, table, snapshot).snapshot
    if not isinstance(snapshot, datetime):
        return snapshot
    assert snapshot.utcoffset() is not None, "times without a zone were refused"
    number = tx.commit_at(snapshot.timestamp())
    if number < table.created_commit:
        raise NotFound(
            f"table {table.name!r} was made after {snapshot.isoformat()}; its first snapshot is "
            f"{table.created_commit}",
            table=table.name,
            time=snapshot.isoformat(),
            kind="snapshot",
        )
    return number


@retry_interrupted
def add_tag(context: Context, find: Find, name: str, snapshot: int | str | datetime | None) -> Tag:
    """Name a snapshot of a table (None: the newest), which then stays readable.

    Raises `InvalidOption`, `AlreadyExists` (for the name), `NotFound`, `SnapshotExpired`.
    """
    check_tag_name(name)
    if not isinstance(snapshot, int | str):
        context.check_newest()
    with context.catalog.writing() as tx:
        table = find(tx)[0]
        at = snapshot_of(tx, table, snapshot)
        at = tx.state.commit if at is None else at
        # In the transaction that adds the tag: a merge reads the tags before it releases a snapshot.
        tx.state.check_snapshot(table, at)
        tags = {tag.name: tag.snapshot for tag in tx.state.tables[table.id].tags}
        if tags.get(name, at) != at:
            raise AlreadyExists(
                f"table {table.name!r} already has a tag {name!r}, of snapshot {tags[name]}; drop it first, "
                f"or choose another name for snapshot {at}",
                table=table.name,
                tag=name,
                snapshot=tags[name],
            )
        if name not in tags:
            if len(tags) >= MAX_TAGS:
                raise LimitExceeded(
                    f"table {table.name!r} has {len(tags):,} tags, and more are not kept; drop some",
                    table=table.name,
                    most=MAX_TAGS,
                )
            tx.append(TagChanged(table.id, name, at))
        return _tag(tx, table, name)


def tags_of(context: Context, find: Find) -> tuple[Tag, ...]:
    """Return the tags of a table, the oldest snapshot first. Raises `ShardMismatch`."""
    context.check_newest()
    tx = context.catalog.newest()
    return tx.state.tables[find(tx)[0].id].tags


@retry_interrupted
def drop_tag(context: Context, find: Find, name: str) -> None:
    """Remove a tag. Raises `NotFound`."""
    with context.catalog.writing() as tx:
        table = find(tx)[0]
        tx.append(TagChanged(table.id, _tag(tx, table, name).name, None))


def _tag(tx: Tx, table: TableInfo, name: str) -> Tag:
    """Return a tag by its name. Raises `NotFound`, with a suggestion."""
    tags = {tag.name: tag for tag in tx.state.tables[table.id].tags}
    if name in tags:
        return tags[name]
    hint = suggest(name, tags) or "; list them by Table.tags() or `elasticscan tag list`"
    raise NotFound(f"table {table.name!r} has no tag {name!r}{hint}", table=table.name, tag=name, kind="tag")
