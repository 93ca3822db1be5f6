"""Columns of a table, read from a sample of its keys."""

from __future__ import annotations

import io
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.json
from redis.exceptions import AskError, MovedError

from elasticscan.backends.redis.cluster import ClusterShards
from elasticscan.backends.redis.hash_slots import SLOTS, slot_of
from elasticscan.backends.redis.pages import Command
from elasticscan.backends.redis.values import Model
from elasticscan.base.errors import NotFound, SchemaMismatch
from elasticscan.base.limits import DEFAULT_PAGE_BYTES
from elasticscan.protocol import Cursor
from elasticscan.reader import ScanPlan, ScanStats, drive
from elasticscan.store import guess_type
from elasticscan.topology import SlotSet

if TYPE_CHECKING:
    from elasticscan.backends.redis.store import ClusterTable

_SLOTS_AT_ONCE = 1_024
_REDIRECTS = 5
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
    text = b"\n".join(values)
    whole = pa.json.ReadOptions(block_size=len(text) + 1)
    try:
        found = pa.json.read_json(
            io.BytesIO(text), whole, pa.json.ParseOptions(newlines_in_values=True)
        ).schema
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(
            f"the sampled values are no JSON objects of one form: {error!s:.200}; give a schema"
        ) from None
    return [
        field if typed or pa.types.is_nested(field.type) else field.with_type(pa.string()) for field in found
    ]


def _sample(table: ClusterTable) -> list[Any]:
    """Return the values of up to `sampleKeys` keys, of slots all over the cluster."""
    names = _names(table, table.options.sample_keys)
    if table.options.model == "json":
        return [value for value in _answers(table, b"GET", names) if isinstance(value, bytes)]
    sizes = zip(names, _answers(table, b"HLEN", names), strict=True)
    fit = [name for name, size in sizes if isinstance(size, int) and 0 < size <= _MOST_FIELDS]
    return [value for value in _answers(table, b"HGETALL", fit) if isinstance(value, list)]


def _names(table: ClusterTable, most: int) -> list[bytes]:
    """Return the names of some keys: scans of a few slots each, in random order."""
    space = replace(table.space(None), model=Model("hash", pa.schema([("name", pa.binary())]), 0))
    order = np.random.default_rng(0).permutation(SLOTS)
    names: list[bytes] = []
    for at in range(0, SLOTS, _SLOTS_AT_ONCE):
        slots = table.slots & SlotSet.of((slot, slot + 1) for slot in order[at : at + _SLOTS_AT_ONCE])
        if not slots:
            continue
        reader = ClusterShards(table.connections, space)
        plan = ScanPlan(0, 0, ("name",), most, DEFAULT_PAGE_BYTES, reader.current(), slots)
        for page in drive(plan, (Cursor(slots),), reader, reader, ScanStats()):
            names += page.rows.column("name").to_pylist()
            if len(names) >= most:
                return names[:most]
    return names


def _answers(table: ClusterTable, word: bytes, names: list[bytes]) -> list[Any]:
    """Return the answers of a command for each key, from the masters that have it now."""
    by_owner: dict[int, list[int]] = defaultdict(list)
    placement = table.connections.map.placement
    for number, name in enumerate(names):
        by_owner[placement.tablet_of(slot_of(name)).shard].append(number)
    answers: list[Any] = [None] * len(names)
    for shard, numbers in by_owner.items():
        node = table.connections.map.nodes.get(shard)
        commands = [(word, names[number]) for number in numbers]
        found = (
            [None] * len(numbers) if node is None else table.connections.try_exchange(node.address, commands)
        )
        for number, answer in zip(numbers, found, strict=True):
            answers[number] = _redirected(table, (word, names[number]), answer)
    return answers


def _redirected(table: ClusterTable, command: Command, answer: Any) -> Any:
    """Follow redirects of one command."""
    for _ in range(_REDIRECTS):
        if not isinstance(answer, AskError):  # MOVED is one, too
            break
        asking: list[Command] = [] if isinstance(answer, MovedError) else [(b"ASKING",)]
        answer = table.connections.try_exchange(answer.node_addr, [*asking, command])[-1]
    return answer
