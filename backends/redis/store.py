"""A cluster as a read-only store, whose tables are groups of keys."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar, NoReturn

import msgpack
import numpy as np
import pyarrow as pa

from elasticscan.backends.redis.connections import Connections
from elasticscan.backends.redis.history import record_topology
from elasticscan.backends.redis.names import SLOTS, slot_of, slots_of_prefix
from elasticscan.backends.redis.options import ClusterOptions, Kind, TableOptions, read_options, split_uri
from elasticscan.backends.redis.pages import slot_set
from elasticscan.backends.redis.scan import ClusterScan
from elasticscan.backends.redis.values import KeySpace, fields_of_hashes, fields_of_objects
from elasticscan.base.errors import ContinuationKeyError, InvalidCall, InvalidOption, NotFound
from elasticscan.base.key_encoding import value_of
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS, MAX_NUMBER
from elasticscan.filters import Predicate, parts_of, single_values, value_set
from elasticscan.protocol import (
    ContinuationKey,
    Cursor,
    ReadRequest,
    ScanStart,
    Sealer,
    Weights,
    of_another_read,
)
from elasticscan.store import Store, Table, columns_of, whole_number
from elasticscan.topology import SlotSet

_MOST_KEYS = 10_000  # if a condition names more keys, all slots are read
_KEY_BYTES = 1_000  # assumed size of a value, for the weights of slots


class ReadOnly:
    """Base of classes without some methods of the embedded store; calls of these raise `InvalidCall`."""

    _embedded: ClassVar[type]

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or not hasattr(self._embedded, name):  # other libraries try `hasattr`
            raise AttributeError(f"a Redis or Valkey cluster has no {name!r}", name=name)
        raise InvalidCall(
            f"{name}() is not supported for a Redis or Valkey cluster, which is only read", name=name
        )


class ClusterStore(ReadOnly):
    """A Redis or Valkey cluster, for reads only."""

    _embedded = Store
    identity = ""

    def __init__(self, uri: str, given: Mapping[str, Any]) -> None:
        """Open a cluster by its URI, which may end with a table; options of tables are defaults."""
        of_uri, self._named = split_uri(uri)
        of_cluster, self._of_tables = read_options(given, ClusterOptions, TableOptions)
        self.options = ClusterOptions(**of_uri | of_cluster)
        self.connections = Connections(self.options)
        # Without `key_secret`, anyone who has a continuation key can read and forge it.
        secret = hashlib.sha256((self.options.key_secret or "").encode()).digest()
        self.sealer = Sealer("cluster", {1: secret})

    def __enter__(self) -> ClusterStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.connections.close()

    def table(self, name: str = "", schema: pa.Schema | None = None, **options: Any) -> ClusterTable:
        """Return the keys `name:*` as a table.

        Args:
            name: the beginning of the keys; the URI's table by default.
            schema: the columns of values, and of the key if it is not text; by default, from a sample.
            options: fields of `TableOptions`: `model`, `keys_pattern`, `key_column`, `ttl_column`, …

        Raises:
            InvalidOption: no table is named, an option does not exist, or the values have no columns.
        """
        (asked,) = read_options(options, TableOptions)
        name = self._name(name)
        asked = {"keys_pattern": f"{name}:*"} | self._of_tables | asked
        return ClusterTable(self, name, TableOptions(**asked), schema)

    def _name(self, given: str) -> str:
        names = {given, self._named} - {""}
        if len(names) != 1:
            raise InvalidOption(
                f"one table must be named, not {len(names)}; end the URL with /TABLE, or give its name",
                option="table",
            )
        return names.pop()

    def resume(self, key: str, table: str | None = None, filter: str | None = None) -> ClusterScan:  # noqa: A002
        """Resume a scan after the page of a key.

        Args:
            key: of a page; the scan fails if it reads another cluster.
            table, filter: the table and filter of a task, compared with the key; None outside of tasks.

        Raises:
            ContinuationKeyError: the key is not of a scan of a cluster.
        """
        state = self.sealer.open(key, time.time())
        try:
            name, options, schema, members = msgpack.unpackb(state.plan)
            columns = pa.ipc.read_schema(pa.py_buffer(schema))
            found = ClusterTable(self, name, TableOptions(**options), columns)
        except (ValueError, TypeError, pa.ArrowInvalid, msgpack.UnpackException):
            raise ContinuationKeyError("this is no key of a scan of a cluster; start a new scan") from None
        if table is not None and (name, state.filter, state.limit) != (self._name(table), filter, None):
            raise of_another_read()
        return ClusterScan(found, state, members)


class ClusterTable(ReadOnly):
    """Keys of a cluster that share a pattern, as rows.

    Attributes:
        keys: the keys, and how their values become rows of `schema`.
        slots: the slots that can have such keys.
    """

    _embedded = Table

    def __init__(
        self, store: ClusterStore, name: str, options: TableOptions, schema: pa.Schema | None
    ) -> None:
        self.store, self.name, self.options = store, name, options
        self.primary_key = (options.key_column,)
        if schema is None:
            schema = pa.schema(self._infer_fields())
            for option, column in (("keyColumn", options.key_column), ("ttlColumn", options.ttl_column)):
                if column in schema.names:
                    raise InvalidOption(
                        f"the values have a field {column!r}, too; choose another name as {option}",
                        option=option,
                    )
        self.schema = _with_key(schema, options)
        self.keys = KeySpace(options, self.schema)
        self.slots = slots_of_prefix(self.keys.prefix)
        start = f"{name}:".encode()
        if self.keys.prefix.startswith(start):
            self.keys = replace(self.keys, start=start)

    def _infer_fields(self) -> list[pa.Field]:
        """Return the columns of the first values of a scan."""
        options, is_hash = self.options, self.options.model == "hash"
        if options.model == "string":
            return [pa.field("value", pa.string())]
        raw = pa.schema({"name": pa.binary(), "value": pa.list_(pa.binary()) if is_hash else pa.binary()})
        kind: Kind = "sample" if is_hash else "string"
        how = replace(options, model=kind, key_column="name", ttl_column=None, fail_on_torn_slots=False)
        most = options.sample_keys
        scan = ClusterTable(self.store, self.name, how, raw).scan(["value"], limit=most, page_rows=most)
        values = scan.to_table().column("value").to_pylist()
        if not values:
            raise NotFound(
                f"no key like {options.keys_pattern!r} has values to read columns from; give a schema",
                kind="table",
            )
        return (fields_of_hashes if is_hash else fields_of_objects)(values, options.infer_schema)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the word users know
        limit: int | None = None,
        page_rows: int = DEFAULT_PAGE_ROWS,
        page_bytes: int = DEFAULT_PAGE_BYTES,
        **embedded: Any,
    ) -> ClusterScan:
        """Return a scan of each key that exists from now to its end, exactly once.

        Raises:
            FilterError, NotFound: the filter or a column is wrong.
            InvalidCall: `embedded`, arguments of scans of an embedded store.
        """
        for name in (name for name, value in embedded.items() if value is not None):
            raise InvalidCall(f"scan({name}=) is not supported for a Redis or Valkey cluster", name=name)
        slots = self.slots
        if filter is not None:
            slots &= self._slots_of(Predicate.parse(filter, self.schema))
        members = sorted(self.store.connections.map.members)
        plan = (self.name, asdict(self.options), self.schema.serialize().to_pybytes(), members)
        state = ContinuationKey(
            table=0,
            snapshot=0,
            base_topology=0,
            slots=slots,
            cursors=(Cursor(slots),) if slots and limit != 0 else (),
            columns=columns_of(self, columns),
            filter=filter,
            page_rows=whole_number("page_rows", page_rows, 1, MAX_NUMBER),
            page_bytes=whole_number("page_bytes", page_bytes, 1, MAX_NUMBER),
            lease="",
            limit=None if limit is None else whole_number("limit", limit, 0, MAX_NUMBER),
            plan=msgpack.packb(plan),
        )
        return ClusterScan(self, state, members)

    def _slots_of(self, predicate: Predicate) -> SlotSet:
        """Return the slots of the keys that a filter names; all slots if it does not name keys."""
        field, start = self.schema.field(0), self.keys.start
        named = single_values(value_set(predicate.condition, field).keys, field.type, _MOST_KEYS)
        if named is None or field.type not in (pa.string(), pa.binary()):  # others have several texts
            return self.slots
        values = [value_of(key, field.type).cast(pa.binary()).as_py() for key in named]
        return slot_set(slot_of(start + value) for value in values if value is not None)

    def keys_for(self, predicate: Predicate | None) -> KeySpace:
        """Return the keys to read, without names that a filter excludes."""
        if predicate is None:
            return self.keys
        parts = map(Predicate, parts_of(predicate.condition))
        return replace(self.keys, conditions=tuple(part for part in parts if part.columns == {self.keys.key}))

    def begin(self, read: ReadRequest) -> ScanStart:
        """Begin a scan that is divided among tasks."""
        scan = self.scan(read.columns, read.filter, None, read.page_rows, read.page_bytes)
        connections = self.store.connections
        cluster = connections.read_map()
        base = record_topology(cluster, self.store.options.topology_history)
        weights: Weights = np.zeros(SLOTS)  # by the keys of all tables
        for shard, address in cluster.addresses.items():
            for slot, count in connections.count_keys(address, cluster.placement.at(shard)).items():
                weights[slot] = count * _KEY_BYTES
        return ScanStart(scan, cluster.placement, base, weights)


def _with_key(columns: Iterable[pa.Field], options: TableOptions) -> pa.Schema:
    """Return the columns, with the key first and the time to live last."""
    named = {field.name: field.with_nullable(True) for field in columns}
    key = named.pop(options.key_column, pa.field(options.key_column, pa.string()))
    if options.ttl_column is not None:
        named.pop(options.ttl_column, None)
    if options.model == "string" and len(named) > 1:
        raise InvalidOption(
            f"a string has one column, and the schema names {len(named)} besides the key; name one",
            option="schema",
        )
    left = [] if options.ttl_column is None else [pa.field(options.ttl_column, pa.int64())]
    return pa.schema([key.with_nullable(False), *named.values(), *left])
