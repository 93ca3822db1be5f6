"""Verification, counting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from elasticscan.base.errors import OperatorNeeded
from elasticscan.metadata import Bounds, Fragment, TableInfo
from elasticscan.storage import PageSource, count_rows, most_rows, verify_file
from elasticscan.store.context import Context


def verify(context: Context) -> Iterator[OperatorNeeded]:
    """Look at the whole catalog and every root's marker, read every file and compare checksums.

    Yields what is wrong instead of raising it. In a damaged catalog no file is looked up.
    """
    context.catalog.look_afresh()
    try:
        with context.catalog.reading() as tx:
            tx.check_whole()
            shards = tx.shards()
            names = {table.id: table.name for table in tx.tables()}
            fragments = {fragment.id: fragment for fragment in tx.fragments()}
            runs = [run for table in names for run in tx.runs(table)]
            indexes = {index.id: index.name for index in tx.indexes()}
    except OperatorNeeded as error:
        yield error
        return
    for shard in shards:
        try:
            context.check_root(shard.id)
        except OperatorNeeded as error:
            yield error
    files = [(f.shard, f.path, f.seal, _label(names, f)) for f in fragments.values()]
    for run in runs:
        fragment = fragments[run.fragment]
        label = f"{_label(names, fragment)[:-1]}, index {indexes.get(run.index)!r})"
        files.append((fragment.shard, run.path, run.seal, label))
    for at, path, seal, label in files:
        try:
            verify_file(context.disk_of(at), path, seal, label)
        except OperatorNeeded as error:
            yield error


def _label(names: Mapping[int, str], fragment: Fragment) -> str:
    return f" (table {names.get(fragment.table)!r}, slots {fragment.slots})"


def rows_of(context: Context, table: TableInfo, most_merged_rows: int) -> tuple[int, bool]:
    """(rows at the newest snapshot, whether that is exact); more than there are where it is not.

    Where fragments overlap, keys have to be compared to know; beyond `most_merged_rows`, and in object
    storage, that is not done and every version counts.
    """
    newest = context.catalog.versions()[1]
    state = context.table_state(table.id, newest)
    bounds = Bounds(state.floor(newest), newest, since=newest)
    total, exact = 0, True
    for shard in context.placement().shards:
        view = state.view(shard)
        if context.disk_of(shard).is_far:
            rows, is_exact = most_rows(view, bounds)
        else:
            source = PageSource(table, view, context.readers.opener(table))
            rows, is_exact = count_rows(source, bounds, most_merged_rows)
        total += rows
        exact &= is_exact
    return total, exact
