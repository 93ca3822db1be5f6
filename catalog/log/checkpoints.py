"""Checkpoints: the state as of a number, in parts, so that opening a store need not fold its whole log.

    part            content
    store           all that is small: shards, tablets, tables, indexes, tags, secrets, commits in the log
    fragments/T     the fragments of table T, as an Arrow stream; runs/T: the runs of its indexes
    statistics/T    (id of a file, what is known of its values); read only when a plan asks
    manifest        the fold version, (number, digest) of the state, and each part with its sha256

Parts are written one by one, in short transactions, and the manifest last: a checkpoint without it does not
exist. A part that is what it was two checkpoints before is not written again: the manifest names the number
under which it lies. The two newest checkpoints stay, and have no part in common: a damaged one is skipped for
the one before, and more of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

import msgpack
import pyarrow as pa

from elasticscan.base.errors import StoreDamaged, StoreTooNew
from elasticscan.catalog.believed_time import Belief
from elasticscan.catalog.log import tables
from elasticscan.catalog.log.codec import pack_value, unpack_value
from elasticscan.catalog.log.entries import damaged_log, is_sealed
from elasticscan.catalog.log.files import FRAGMENT_COLUMNS, RUN_COLUMNS, FileSet
from elasticscan.catalog.log.home import LogHome, retry
from elasticscan.catalog.log.state import (
    FOLD_VERSION,
    InlineCommit,
    NamedSnapshot,
    RemovedFile,
    SealSecret,
    StoreState,
    TableState,
)
from elasticscan.metadata import IndexInfo, TableInfo
from elasticscan.topology import Placement, Shard, Tablet

KEPT = 2  # checkpoints
_STATISTICS = pa.schema([pa.field("id", pa.int64(), False), pa.field("body", pa.binary(), False)])


@dataclass(frozen=True, slots=True)
class _TablePart:
    info: TableInfo
    newest: int
    rows: int
    bytes: int
    indexes: tuple[IndexInfo, ...]
    tags: tuple[NamedSnapshot, ...]
    memory: tuple[InlineCommit, ...]
    overwrites: tuple[int, ...]
    removed: tuple[RemovedFile, ...]


@dataclass(frozen=True, slots=True)
class _StorePart:
    layout: int
    time: int
    belief: Belief
    store_id: str
    hash: str
    retention_seconds: float
    tablets: tuple[Tablet, ...]
    shards: tuple[Shard, ...]
    removed_shards: tuple[Shard, ...]
    secrets: tuple[SealSecret, ...]
    touched: Mapping[int, int]
    dropped: Mapping[int, tuple[RemovedFile, ...]]
    newest_ids: Mapping[str, int]
    tables: tuple[_TablePart, ...]


@dataclass(frozen=True, slots=True)
class PartReference:
    """A part of a checkpoint: the number under which it lies, and the digest of its bytes."""

    name: str
    number: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    number: int
    digest: bytes
    parts: tuple[PartReference, ...]

    def part(self, name: str) -> PartReference:
        for part in self.parts:
            if part.name == name:
                return part
        raise damaged_log(f"checkpoint {self.number} has no part {name}")


def parts_of(state: StoreState) -> dict[str, bytes]:
    """Return the parts of a state's checkpoint, without statistics."""
    own = (
        _TablePart(t.info, t.newest, t.rows, t.bytes, t.indexes, t.tags, t.memory, t.overwrites, t.removed)
        for _, t in sorted(state.tables.items())
    )
    store = _StorePart(
        state.layout,
        state.time,
        state.belief,
        state.store_id,
        state.hash,
        state.retention_seconds,
        state.placement.tablets,
        tuple(state.shards.values()),
        tuple(state.removed_shards.values()),
        tuple(state.secrets.values()),
        state.touched,
        state.dropped,
        state.newest_ids,
        tuple(own),
    )
    parts = {"store": pack_value(store)}
    for id, table in state.tables.items():  # noqa: A001
        parts[f"fragments/{id}"] = _stream(table.fragments.merged())
        parts[f"runs/{id}"] = _stream(table.runs.merged())
    return parts


def state_of(number: int, digest: bytes, part: Callable[[str], bytes]) -> StoreState:
    """Return the state whose parts are given by their names.

    Raises:
        ValueError: they hold none.
    """
    store = unpack_value(_StorePart, part("store"))
    return StoreState(
        number=number,
        digest=digest,
        layout=store.layout,
        time=store.time,
        belief=store.belief,
        store_id=store.store_id,
        hash=store.hash,
        retention_seconds=store.retention_seconds,
        placement=Placement.of(store.tablets),
        shards={shard.id: shard for shard in store.shards},
        removed_shards={shard.id: shard for shard in store.removed_shards},
        tables={own.info.id: _table_of(own, part) for own in store.tables},
        dropped=dict(store.dropped),
        newest_ids=dict(store.newest_ids),
        secrets={secret.id: secret for secret in store.secrets},
        touched=dict(store.touched),
    )


def _table_of(own: _TablePart, part: Callable[[str], bytes]) -> TableState:
    return TableState(
        own.info,
        own.newest,
        own.rows,
        own.bytes,
        own.indexes,
        own.tags,
        own.memory,
        own.overwrites,
        own.removed,
        FileSet(_table(part(f"fragments/{own.info.id}"), FRAGMENT_COLUMNS)),
        FileSet(_table(part(f"runs/{own.info.id}"), RUN_COLUMNS)),
    )


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


def read_part(home: LogHome, reference: PartReference) -> bytes:
    """Return a part of a checkpoint. Raises `StoreDamaged` where it is not what was written."""
    rows = home.execute(tables.CHECKPOINT_PART, {"number": reference.number, "part": reference.name})
    if not rows or not is_sealed(rows[0][1], reference.digest):
        raise damaged_log(f"part {reference.name} of checkpoint {reference.number} is not what was written")
    content: bytes = rows[0][1]
    return content


def _is_whole(home: LogHome, reference: PartReference) -> bool:
    try:
        read_part(home, reference)
    except StoreDamaged:
        return False
    return True


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
    return state_of(manifest.number, manifest.digest, lambda name: read_part(home, manifest.part(name)))


def write(
    home: LogHome, state: StoreState, statistics: Mapping[int, Mapping[int, bytes]]
) -> CheckpointManifest:
    """Write the checkpoint of a state, read it back, and remove those that are not kept.

    `statistics` are, for each table, those of its files by id.
    """
    before = [manifest for manifest in manifests(home) if manifest.number < state.number]
    parts = parts_of(state)
    for id in state.tables:  # noqa: A001
        rows = [{"id": file, "body": body} for file, body in sorted(statistics.get(id, {}).items())]
        parts[f"statistics/{id}"] = _stream(pa.Table.from_pylist(rows, schema=_STATISTICS))
    # Of the checkpoint before the last: what is damaged in one part is whole in the other that is kept.
    known = {(part.name, part.digest): part for manifest in before[1:KEPT] for part in manifest.parts}
    references = []
    for name, content in parts.items():
        digest = sha256(content).digest()
        reference = known.get((name, digest))
        if reference is None or not _is_whole(home, reference):
            reference = PartReference(name, state.number, digest)
        references.append(reference)
        if reference.number == state.number:
            _write_row(home, state.number, name, content)
    manifest = CheckpointManifest(state.number, state.digest, tuple(references))
    _write_row(home, state.number, "manifest", pack_value(manifest))
    read_state(home, manifest)
    _remove_old(home)
    return manifest


def _write_row(home: LogHome, number: int, part: str, content: bytes) -> None:
    values = {"number": number, "part": part, "fold": FOLD_VERSION}
    values |= {"digest": sha256(content).digest(), "bytes": content}

    def write_part() -> None:
        with home.writing() as transaction:
            transaction.execute(tables.DELETE_CHECKPOINT, {"number": number, "part": part})
            transaction.execute(tables.INSERT_CHECKPOINT, values)

    retry(home, write_part)


def _remove_old(home: LogHome) -> None:
    """Remove the parts that no kept checkpoint names."""
    kept = manifests(home)[:KEPT]
    named = {(part.number, part.name) for manifest in kept for part in manifest.parts}
    named |= {(manifest.number, "manifest") for manifest in kept}
    newest = max(manifest.number for manifest in kept)
    there = home.execute(tables.CHECKPOINT_PARTS)

    def remove() -> None:
        with home.writing() as transaction:
            for number, part in there:
                if (number, part) not in named and number < newest:
                    transaction.execute(tables.DELETE_CHECKPOINT, {"number": number, "part": part})

    retry(home, remove)


def statistics_in(home: LogHome, manifest: CheckpointManifest, table: int) -> dict[int, bytes]:
    """Return what a checkpoint knows of the values in a table's files; nothing if the table is newer."""
    name = f"statistics/{table}"
    if all(part.name != name for part in manifest.parts):
        return {}
    rows = _table(read_part(home, manifest.part(name)), _STATISTICS)
    return dict(zip(rows["id"].to_pylist(), rows["body"].to_pylist(), strict=True))


def unpack_statistics_part(content: bytes) -> dict[int, bytes]:
    """Return the statistics that a record brought, by the ordinals of its files."""
    unpacked: dict[int, bytes] = msgpack.unpackb(content, strict_map_key=False)
    return unpacked
