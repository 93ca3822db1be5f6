"""Columns of a table, read from a sample of its keys."""

from __future__ import annotations

import io
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from elasticscan.backends.redis.cluster import ClusterShards
from elasticscan.backends.redis.connections import Connections
from elasticscan.backends.redis.names import SLOTS
from elasticscan.backends.redis.pages import KeySpace
from elasticscan.backends.redis.values import SAMPLE, Model
from elasticscan.base.errors import NotFound, SchemaMismatch
from elasticscan.base.limits import DEFAULT_PAGE_BYTES
from elasticscan.protocol import Cursor
from elasticscan.reader import ScanPlan, ScanStats, drive
from elasticscan.store import guess_type
from elasticscan.topology import SlotSet

_SLOTS_AT_ONCE = 1_024
_TYPES = (pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"))


def infer_fields(
    connections: Connections, space: KeySpace, slots: SlotSet, most: int, typed: bool
) -> list[pa.Field]:
    """Return the columns that a sample of values has: text, or if `typed` a type that holds all.

    Raises:
        NotFound: there is no key to read them from.
    """
    if space.model.kind == "string":
        return [pa.field("value", pa.string())]
    values = _sample(connections, space, slots, most)
    if not values:
        raise NotFound(
            f"no key that begins with {space.prefix.decode(errors='replace')!r} has values to read columns "
            "from; give a schema",
            kind="table",
        )
    if space.model.kind == "json":
        return _fields_of_objects(values, typed)
    texts: dict[str, list[str]] = defaultdict(list)
    for value in values:
        for name, text in zip(value[::2], value[1::2], strict=True):
            texts[name.decode(errors="replace")].append(text.decode(errors="replace"))
    candidates = _TYPES if typed else ()
    return [pa.field(name, guess_type(pa.array(found), candidates)) for name, found in sorted(texts.items())]


def _fields_of_objects(values: list[bytes], typed: bool) -> list[pa.Field]:
    # Arrow ends the process on texts that are all null.
    objects = [value for value in values if value.lstrip().startswith(b"{")]
    if not objects:
        raise SchemaMismatch("none of the sampled values is a JSON object; give a schema, or another model")
    text = b"\n".join(objects)
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


def _sample(connections: Connections, space: KeySpace, slots: SlotSet, most: int) -> list[Any]:
    """Return the values of some keys: scans of a few slots each, in random order."""
    fields = pa.list_(pa.binary()) if space.model.kind == "hash" else pa.binary()
    schema = pa.schema([("name", pa.binary()), ("value", fields)])
    model = Model(SAMPLE if space.model.kind == "hash" else "string", schema, 0)
    reader = ClusterShards(connections, replace(space, model=model))
    order = np.random.default_rng(0).permutation(SLOTS)
    values: list[Any] = []
    for at in range(0, SLOTS, _SLOTS_AT_ONCE):
        some = slots & SlotSet.of((slot, slot + 1) for slot in order[at : at + _SLOTS_AT_ONCE])
        if some:
            plan = ScanPlan(0, 0, ("value",), most, DEFAULT_PAGE_BYTES, reader.current(), some)
            for page in drive(plan, (Cursor(some),), reader, reader, ScanStats()):
                values += page.rows.column("value").to_pylist()
                if len(values) >= most:
                    return values[:most]
    return values
