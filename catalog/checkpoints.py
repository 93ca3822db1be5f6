"""Checkpoints: the state as of a number, in parts, so that opening a store need not fold its whole log.

    part            content
    fragments/T     the fragments of table T, as an Arrow stream; runs/T: the runs of its indexes
    statistics/T    (id of a file, what is known of its values); read only when a plan asks
    store           all that is small: shards, tablets, tables, indexes, tags, secrets, commits in the log

Each part is sealed with its name and the digest of the log up to the number, so it is no part of any other
checkpoint. Parts are written in short transactions, and `store` last: a checkpoint without it does not exist.
The two newest stay: a damaged one is skipped for the one before, and more of the log.

`replay` goes on from a checkpoint, or from a state that is known: the digests of the entries prove that they
were appended after it. Values of records that checkpoints cover may have been dropped: then it begins there.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from elasticscan.base.errors import CatalogOutdated, StoreDamaged, StoreNotFound, StoreTooNew
from elasticscan.catalog import tables
from elasticscan.catalog.codec import pack_value, unpack_value
from elasticscan.catalog.database import LogHome, Row, head_in
from elasticscan.catalog.entries import GENESIS, check_chain, damaged_log, entry_of, record_of, row_digest
from elasticscan.catalog.failures import change
from elasticscan.catalog.files import FileSet, columns_of
from elasticscan.catalog.fold import FOLD_VERSION, apply
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.table_state import TableState
from elasticscan.metadata import Fragment, IndexRun

KEPT = 2  # checkpoints
_BYTES_AT_ONCE = 1 << 20  # that one transaction writes
_STATISTICS = pa.schema([pa.field("id", pa.int64(), False), pa.field("body", pa.binary(), False)])


class Checkpoint(NamedTuple):
    """A checkpoint of this log: its number, and the digest of the entry that has it."""

    number: int
    digest: bytes


def parts_of(state: StoreState) -> dict[str, bytes]:
    """Return the parts of a state's checkpoint, without statistics; `store` is the last."""
    parts = dict[str, bytes]()
    for id, table in state.tables.items():  # noqa: A001
        parts[f"fragments/{id}"] = _stream(table.fragments.merged())
        parts[f"runs/{id}"] = _stream(table.runs.merged())
    return parts | {"store": pack_value(state)}


def state_of(parts: Mapping[str, bytes]) -> StoreState:
    """Return the state whose parts are given by their names.

    Raises:
        KeyError: one is missing.
        ValueError: they hold no state.
    """
    state, whole = unpack_value(StoreState, parts["store"]), dict[int, TableState]()
    for id, table in state.tables.items():  # noqa: A001
        fragments = FileSet(Fragment, _table(parts[f"fragments/{id}"], columns_of(Fragment)))
        runs = FileSet(IndexRun, _table(parts[f"runs/{id}"], columns_of(IndexRun)))
        whole[id] = replace(table, fragments=fragments, runs=runs)
    return replace(state, tables=whole)


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _table(content: bytes, schema: pa.Schema) -> pa.Table:
    try:
        rows = pa.ipc.open_stream(pa.py_buffer(content)).read_all()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error
    if rows.schema != schema:
        raise ValueError("it has other columns")
    return rows.combine_chunks()


def all_checkpoints(home: LogHome) -> list[Checkpoint]:
    """Return the checkpoints of this release's fold, the newest first; some of their parts may be damaged."""
    rows = home.execute(tables.CHECKPOINTS)
    for number, _, fold in rows:
        if isinstance(fold, int) and fold > FOLD_VERSION:
            raise StoreTooNew(
                f"checkpoint {number} of the log was written by a newer release; upgrade elasticscan",
                known=FOLD_VERSION,
            )
    return [Checkpoint(number, digest) for number, digest, fold in rows if fold == FOLD_VERSION]


def newest_state(home: LogHome) -> StoreState | None:
    """Return the state of the newest checkpoint that is whole; None where there is none."""
    for checkpoint in all_checkpoints(home):
        with suppress(StoreDamaged):  # then the one before, and more of the log
            return read_state(home, checkpoint)
    return None


def read_state(home: LogHome, checkpoint: Checkpoint) -> StoreState:
    """Return the state of a checkpoint.

    Raises:
        StoreDamaged: a part is missing, or is not what was written.
    """
    try:
        return state_of(_parts(home, checkpoint, tables.CHECKPOINT_STATE))
    except (KeyError, ValueError) as error:
        raise damaged_log(f"checkpoint {checkpoint.number} cannot be read ({error})") from error


def _parts(home: LogHome, checkpoint: Checkpoint, statement: str, **asked: str) -> dict[str, bytes]:
    """Return the parts of a checkpoint that a statement gives, by name, without damaged ones."""
    rows = home.execute(statement, {"number": checkpoint.number, **asked})
    return {part: content for part, seal, content in rows if _is_sealed(checkpoint, part, seal, content)}


def _is_sealed(checkpoint: Checkpoint, part: str, seal: bytes, content: bytes) -> bool:
    return row_digest((checkpoint.digest, part, content)) == seal


def replay(home: LogHome, state: StoreState | None) -> StoreState:
    """Return the state as of the head, from an earlier one, or from nothing.

    One statement gives the head, what the log has of the state that is known, and the rest.

    Raises:
        CatalogOutdated: an older copy of the log was put back.
        StoreDamaged: the log is not what was appended, or a value was dropped, which a checkpoint covers.
    """
    if state is not None and head_in(home.execute(tables.HEAD)) == head_of(state):
        return state
    rows = home.execute(tables.TAIL, {"known": -1 if state is None else state.number})
    head = head_in([row[:4] for row in rows[:1]])
    rows = [row[4:] for row in rows if row[4] is not None]
    if state is not None:
        if [row[2] for row in rows[:1] if row[0] == state.number] != [state.digest]:
            raise CatalogOutdated(
                f"record {state.number} was seen, and the log ends with {head[0]} or has another in its "
                "place; put the newest log back, or run `elasticscan adopt`",
                known=state.number,
                found=head[0],
            )
        rows = rows[1:]
    elif not rows and head[0] == -1:
        raise StoreNotFound("the log has no record yet; create the store again")
    entries = [entry_of(row) for row in rows]
    check_chain(GENESIS if state is None else state.digest, entries)
    for entry, row in zip(entries, rows, strict=True):
        state = apply(state, entry, record_of(entry, row[-1]))
    if state is None or head != head_of(state):
        raise damaged_log(f"its head is {head[0]}, and its entries end elsewhere")
    return state


def replay_newest(home: LogHome, known: StoreState | None) -> StoreState:
    """As `replay`, from the newest checkpoint if nothing is known, or values since then are not there."""
    with suppress(StoreDamaged):
        if known is not None:
            return replay(home, known)
    with home.reading():  # this process begins, or has slept
        return replay(home, newest_state(home))


def head_of(state: StoreState) -> Row:
    """Return the row of the head that belongs to a state."""
    return state.number, state.digest, state.time, state.layout


def write(home: LogHome, state: StoreState, statistics: Mapping[int, Mapping[int, bytes]]) -> None:
    """Write the checkpoint of a state, read it back, and remove older checkpoints.

    `statistics` are, for each table, those of its files by id.
    """
    parts = dict[str, bytes]()
    for id in state.tables:  # noqa: A001
        rows = [{"id": file, "body": body} for file, body in sorted(statistics.get(id, {}).items())]
        parts[f"statistics/{id}"] = _stream(pa.Table.from_pylist(rows, schema=_STATISTICS))
    statements, size = list[tuple[str, Mapping[str, object]]](), 0
    for part, content in (parts | parts_of(state)).items():
        if statements and size + len(content) > _BYTES_AT_ONCE:
            change(home, statements)
            statements, size = [], 0
        values = {"number": state.number, "part": part, "fold": FOLD_VERSION, "bytes": content}
        seal = row_digest((state.digest, part, content))
        statements.append((tables.PUT_CHECKPOINT, {**values, "digest": seal}))
        size += len(content)
    change(home, statements)
    read_state(home, Checkpoint(state.number, state.digest))
    change(home, [(tables.FORGET_CHECKPOINTS, {"before": all_checkpoints(home)[:KEPT][-1].number})])


def statistics_in(home: LogHome, checkpoint: Checkpoint, table: int) -> dict[int, bytes] | None:
    """Return what a checkpoint knows of the values in a table's files, by their ids.

    None if that part is damaged, or not there since the table is newer.
    """
    part = f"statistics/{table}"
    with suppress(KeyError, ValueError):
        rows = _table(_parts(home, checkpoint, tables.CHECKPOINT_PART, part=part)[part], _STATISTICS)
        return dict(zip(rows["id"].to_pylist(), rows["body"].to_pylist(), strict=True))
    return None
