"""Checkpoints: the state as of a number, in parts, so that opening a store need not fold its whole log.

    part            content
    store           all that is small: shards, tablets, tables, indexes, tags, secrets, commits in the log
    fragments/T     the fragments of table T, as an Arrow stream; runs/T: the runs of its indexes
    statistics/T    (id of a file, what is known of its values); read only when a plan asks
    manifest        the fold version, (number, digest) of the state, and each part with its sha256

Parts are written in short transactions, and the manifest last: a checkpoint without it does not exist. The
two newest stay: a damaged one is skipped for the one before, and more of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256

import pyarrow as pa

from elasticscan.base.errors import StoreDamaged, StoreTooNew
from elasticscan.catalog import tables
from elasticscan.catalog.codec import pack_value, unpack_value
from elasticscan.catalog.database import LogHome
from elasticscan.catalog.entries import ROWS, damaged_log, is_sealed
from elasticscan.catalog.failures import change
from elasticscan.catalog.files import FileSet, columns_of
from elasticscan.catalog.fold import FOLD_VERSION
from elasticscan.catalog.state import StoreState
from elasticscan.catalog.table_state import TableState
from elasticscan.metadata import Fragment, IndexRun

KEPT = 2  # checkpoints
_BYTES_AT_ONCE = 1 << 20  # that one transaction writes
_DROPPED_AT_ONCE = 500
_STATISTICS = pa.schema([pa.field("id", pa.int64(), False), pa.field("body", pa.binary(), False)])


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """The contents of a checkpoint: the digests of its parts, by their names."""

    number: int
    digest: bytes
    parts: Mapping[str, bytes]

    def part(self, contents: Mapping[str, bytes], name: str) -> bytes:
        """Return one of some parts that were read. Raises `StoreDamaged` where it is not what was written."""
        content = contents.get(name)
        if content is None or not is_sealed(content, self.parts.get(name)):
            raise damaged_log(f"part {name} of checkpoint {self.number} is not what was written")
        return content


def parts_of(state: StoreState) -> dict[str, bytes]:
    """Return the parts of a state's checkpoint, without statistics."""
    parts = {"store": pack_value(state)}
    for id, table in state.tables.items():  # noqa: A001
        parts[f"fragments/{id}"] = _stream(table.fragments.merged())
        parts[f"runs/{id}"] = _stream(table.runs.merged())
    return parts


def state_of(part: Callable[[str], bytes]) -> StoreState:
    """Return the state whose parts are given by their names.

    Raises:
        ValueError: they hold none.
    """
    state, whole = unpack_value(StoreState, part("store")), dict[int, TableState]()
    for id, table in state.tables.items():  # noqa: A001
        fragments = FileSet(Fragment, _table(part(f"fragments/{id}"), columns_of(Fragment)))
        runs = FileSet(IndexRun, _table(part(f"runs/{id}"), columns_of(IndexRun)))
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


def manifests(home: LogHome) -> list[CheckpointManifest]:
    """Return the manifests that can be read, the newest first."""
    found = []
    for number, fold, digest, content in home.execute(tables.MANIFESTS):
        if not is_sealed(content, digest) or not isinstance(fold, int):
            continue
        if fold > FOLD_VERSION:
            raise StoreTooNew(
                f"checkpoint {number} of the log was written by a newer release; upgrade elasticscan",
                known=FOLD_VERSION,
            )
        if fold == FOLD_VERSION:
            with suppress(ValueError):  # it was sealed as something else
                found.append(unpack_value(CheckpointManifest, content))
    return found


def newest_state(home: LogHome) -> StoreState | None:
    """Return the state of the newest checkpoint that is whole; None where there is none."""
    for manifest in manifests(home):
        try:
            return read_state(home, manifest)
        except (StoreDamaged, ValueError):
            continue  # the one before, and more of the log
    return None


def read_state(home: LogHome, manifest: CheckpointManifest) -> StoreState:
    """Return the state of a checkpoint, which is one of this log."""
    logged = home.execute(tables.DIGEST, {"number": manifest.number})
    if logged != [(manifest.digest,)]:
        raise damaged_log(f"checkpoint {manifest.number} is of another log")
    contents: Mapping[str, bytes] = dict(home.execute(tables.CHECKPOINT_STATE, {"number": manifest.number}))
    return state_of(lambda name: manifest.part(contents, name))


def write(home: LogHome, state: StoreState, statistics: Mapping[int, Mapping[int, bytes]]) -> None:
    """Write the checkpoint of a state, read it back, and remove older checkpoints.

    `statistics` are, for each table, those of its files by id.
    """
    parts = parts_of(state)
    for id in state.tables:  # noqa: A001
        rows = [{"id": file, "body": body} for file, body in sorted(statistics.get(id, {}).items())]
        parts[f"statistics/{id}"] = _stream(pa.Table.from_pylist(rows, schema=_STATISTICS))
    digests = {name: sha256(content).digest() for name, content in parts.items()}
    manifest = CheckpointManifest(state.number, state.digest, digests)
    _write_parts(home, state.number, [*parts.items(), ("manifest", pack_value(manifest))])
    read_state(home, manifest)
    oldest = manifests(home)[:KEPT][-1]
    change(home, [(tables.FORGET_CHECKPOINTS, {"before": oldest.number})])


def _write_parts(home: LogHome, number: int, parts: Sequence[tuple[str, bytes]]) -> None:
    """Write parts in order, in as many transactions as keep each of them short."""
    statements, size = list[tuple[str, Mapping[str, object]]](), 0
    for part, content in parts:
        if statements and size + len(content) > _BYTES_AT_ONCE:
            change(home, statements)
            statements, size = [], 0
        values = {"number": number, "part": part, "fold": FOLD_VERSION, "bytes": content}
        statements.append((tables.PUT_CHECKPOINT, {**values, "digest": sha256(content).digest()}))
        size += len(content)
    change(home, statements)


def statistics_in(home: LogHome, manifest: CheckpointManifest, table: int) -> dict[int, bytes] | None:
    """Return what a checkpoint knows of the values in a table's files; None if that is damaged or newer."""
    name = f"statistics/{table}"
    contents: Mapping[str, bytes] = dict(
        home.execute(tables.CHECKPOINT_PART, {"number": manifest.number, "part": name})
    )
    with suppress(StoreDamaged, ValueError):
        rows = _table(manifest.part(contents, name), _STATISTICS)
        return dict(zip(rows["id"].to_pylist(), rows["body"].to_pylist(), strict=True))
    return None


def drop_covered(home: LogHome, older_than: int) -> int:
    """Drop values, and rows that lie in files, which checkpoints cover, if the newest is older than a time.

    All that are kept must cover them: should one be damaged, the other still leads to the state. Returns how
    many parts were dropped.
    """
    states = [read_state(home, manifest) for manifest in manifests(home)[:KEPT]]
    if len(states) < KEPT or states[0].time >= older_than:
        return 0
    state = states[-1]
    needed = {commit.number for table in state.tables.values() for commit in table.memory}
    dropped, asked = 0, {"after": -1, "upto": state.number, "most": _DROPPED_AT_ONCE}
    while some := home.execute(tables.DROPPABLE, asked):
        going = [{"number": n, "part": part} for n, part in some if part != ROWS or n not in needed]
        change(home, [(tables.DELETE_PART, key) for key in going])
        dropped, asked["after"] = dropped + len(going), some[-1][0]
    return dropped
