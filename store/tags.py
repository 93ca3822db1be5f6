"""Tags: names that keep a snapshot, and stand for its number wherever one is asked for."""

from __future__ import annotations

from elasticscan.base.errors import InvalidName
from elasticscan.base.limits import check_name
from elasticscan.catalog import Tag, Tx
from elasticscan.metadata import TableInfo
from elasticscan.store.context import Context, Find


def check_tag_name(name: object) -> str:
    """The name itself, if it is one of a tag; digits alone would be the number of a commit.

    Raises:
        InvalidName: it is not.
    """
    text = check_name("tag", name)
    if text.isdecimal():
        raise InvalidName(
            f"the tag name {text!r} is not allowed: it would be taken for the number of a commit; begin it "
            "with a letter",
            kind="tag",
            name=text,
        )
    return text


def snapshot_of(tx: Tx, table: TableInfo, asked: int | str | None) -> int | None:
    """The commit number that a number or a tag stands for; None for the newest stays None.

    Raises:
        TagNotFound: there is no such tag.
    """
    return tx.tag(table, asked).snapshot if isinstance(asked, str) else asked


def add_tag(context: Context, find: Find, name: str, snapshot: int | str | None) -> Tag:
    """Name a snapshot of a table, the newest for None, and keep it from here on.

    Raises:
        InvalidName, AlreadyExists: another name is needed.
        SnapshotNotFound, SnapshotExpired, TagNotFound: there is no such snapshot, or not any more.
    """
    check_tag_name(name)
    if snapshot is None:
        context.check_newest()
    with context.catalog.writing() as tx:
        table = find(tx)[0]
        at = snapshot_of(tx, table, snapshot)
        at = tx.versions()[1] if at is None else at
        # In one transaction with the entry: a merge that lets go of a snapshot looks for tags in its own.
        tx.check_snapshot(table, at)
        return tx.add_tag(table, name, at)
