"""Columns of a table, read from a sample of its keys."""

from __future__ import annotations

import io
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.json
from redis.exceptions import NoPermissionError

from elasticscan.backends.redis.errors import no_permission
from elasticscan.backends.redis.hash_slots import probe_of
from elasticscan.backends.redis.pages import Command, guarded, names_of, result_of
from elasticscan.base.errors import NotFound
from elasticscan.store.rows.text import guess_type

if TYPE_CHECKING:
    from elasticscan.backends.redis.store import ClusterTable

_SLOTS_AT_ONCE, _NAMES_OF_A_SLOT = 256, 16
_MOST_FIELDS = 10_000  # of a hash; HGETALL of more would block the server
_TYPES = (pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"))


def infer_fields(table: ClusterTable) -> list[pa.Field]:
    """Return the columns that a sample of values has: text, or with `inferSchema` a type that holds all.

    Raises:
        NotFound: there is no key to read them from.
    """
    options = table.options
    if options.model == "string":
        return [pa.field("value", pa.string())]
    values = _sample(table)
    if not values:
        raise NotFound(
            f"no key matches {options.keys_pattern!r}, so there are no columns to read; give a schema",
            table=table.name,
            kind="table",
        )
    if options.model == "json":
        return _fields_of_objects(values, options.infer_schema)
    texts: dict[str, list[str]] = defaultdict(list)
    for value in values:
        for name, text in zip(value[::2], value[1::2], strict=True):
            texts[name.decode(errors="replace")].append(text.decode(errors="replace"))
    candidates = _TYPES if options.infer_schema else ()
    return [pa.field(name, guess_type(pa.array(found), candidates)) for name, found in sorted(texts.items())]


def _fields_of_objects(values: list[bytes], typed: bool) -> list[pa.Field]:
    options = pa.json.ParseOptions(newlines_in_values=True)
    found = pa.json.read_json(io.BytesIO(b"\n".join(values)), parse_options=options).schema
    return [
        field if typed or pa.types.is_nested(field.type) else field.with_type(pa.string()) for field in found
    ]


def _sample(table: ClusterTable) -> list[Any]:
    """Return the values of up to `sampleKeys` keys, of slots all over the cluster."""
    connections, space = table.connections, table.space(None)
    order = np.random.default_rng(0).permutation(1 << 14)
    values: list[Any] = []
    wanted = table.options.sample_keys
    for at in range(0, len(order), _SLOTS_AT_ONCE):
        by_shard: dict[int, list[int]] = defaultdict(list)
        for slot in order[at : at + _SLOTS_AT_ONCE].tolist():
            by_shard[connections.map.placement.tablet_of(slot).shard].append(slot)
        for shard, slots in by_shard.items():
            node = connections.map.nodes.get(shard)
            if node is None:
                continue
            suffix = b":elasticscan:" + os.urandom(6).hex().encode()
            commands = [
                command
                for slot in slots
                for command in guarded(
                    probe_of(space.prefix, slot, suffix), *names_of(slot, _NAMES_OF_A_SLOT)
                )
            ]
            answers = connections.try_exchange(node.address, commands)
            found = [result_of(answers[5 * i : 5 * i + 5]) for i in range(len(slots))]
            for each in found:
                if isinstance(each, NoPermissionError):
                    raise no_permission(each)
            names = [name for each in found if not isinstance(each, Exception) for name in each[1]]
            listed = space.select(pa.table({"name": pa.array(names, pa.binary())})).column("name").to_pylist()
            values += _values(table, node.address, listed[: wanted - len(values)])
        if len(values) >= wanted:
            break
    return values


def _values(table: ClusterTable, address: tuple[str, int], names: list[bytes]) -> list[Any]:
    """Return the values of some keys; what is gone, too long or of another type is left out."""
    if not names:
        return []
    exchange = table.connections.try_exchange
    if table.options.model == "json":
        return [
            value
            for value in exchange(address, [(b"GET", name) for name in names])
            if isinstance(value, bytes)
        ]
    sizes = exchange(address, [(b"HLEN", name) for name in names])
    fit = [
        n for n, size in zip(names, sizes, strict=True) if isinstance(size, int) and 0 < size <= _MOST_FIELDS
    ]
    commands: list[Command] = [(b"HGETALL", name) for name in fit]
    return [value for value in exchange(address, commands) if isinstance(value, list)] if fit else []
