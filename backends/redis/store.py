"""A cluster as a store: its tables are groups of keys, and nothing of it can be changed here."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

import msgpack
import numpy as np
import pyarrow as pa

from elasticscan.backends.redis.cluster_map import is_same_cluster
from elasticscan.backends.redis.connections import Connections
from elasticscan.backends.redis.errors import replaced
from elasticscan.backends.redis.history import record_topology
from elasticscan.backends.redis.inference import infer_fields
from elasticscan.backends.redis.names import SLOTS, expression_of, prefix_of, slot_of, slots_of_prefix
from elasticscan.backends.redis.options import FAIL_FAST, ClusterOptions, TableOptions, read_options
from elasticscan.backends.redis.pages import KeySpace
from elasticscan.backends.redis.scan import ClusterScan, key_condition
from elasticscan.backends.redis.values import Model
from elasticscan.base.errors import ContinuationKeyError, InvalidOption, NotSupported
from elasticscan.base.limits import DEFAULT_PAGE_BYTES, DEFAULT_PAGE_ROWS, MAX_NUMBER
from elasticscan.filters import Predicate, decode_key, single_values, value_set
from elasticscan.metadata import no_such_column
from elasticscan.protocol import ContinuationKey, Cursor, ReadRequest, ScanStart, Sealer, Weights
from elasticscan.store import Store, Table, whole_number
from elasticscan.topology import Placement, SlotSet

_MOST_KEYS = 10_000  # that a condition names
_KEY_BYTES = 1_000  # about what a value takes, to weigh slots
_NEVER = 1 << 62
_PUBLIC, _SECRET = 1, 2  # numbers of secrets


class ClusterStore:
    """A Redis or Valkey cluster. It can be read, and nothing of it can be changed."""

    def __init__(self, options: ClusterOptions) -> None:
        self.options, self.connections = options, Connections(options)
        # Without a secret of the user's, anyone who holds a key can read and forge it.
        number, text = (_PUBLIC, "") if options.key_secret is None else (_SECRET, options.key_secret)
        self._sealer = Sealer("cluster", {number: hashlib.sha256(text.encode()).digest()})

    def __repr__(self) -> str:
        return f"<elasticscan.ClusterStore of {len(self.connections.map.nodes)} masters>"

    def __enter__(self) -> ClusterStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.connections.close()

    def table(self, name: str, schema: pa.Schema | None = None, **options: Any) -> ClusterTable:
        """Return the keys `name:*` as a table.

        Args:
            name: what the keys begin with.
            schema: the columns of values, and the key's if it is not text; read from some keys by default.
            options: fields of `TableOptions`: `model`, `keys_pattern`, `key_column`, `ttl_column`, …

        Raises:
            InvalidOption: an option does not exist, or no key was found to read columns from.
        """
        (asked,) = read_options(options, TableOptions)
        return ClusterTable(self, name, TableOptions(**{"keys_pattern": f"{name}:*"} | asked), schema)

    def seal(self, state: ContinuationKey) -> str:
        return self._sealer.seal(state, _NEVER)

    def resume(self, key: str) -> ClusterScan:
        """Return the scan that a page's key stands for, from after that page.

        Raises:
            ContinuationKeyError: it is no key of such a scan.
            TableChanged: the cluster is another one.
        """
        state = self._sealer.open(key, time.time())
        try:
            name, options, schema, members = msgpack.unpackb(state.plan)
            columns = pa.ipc.read_schema(pa.py_buffer(schema))
            table = ClusterTable(self, name, TableOptions(**options), columns)
        except (ValueError, TypeError, pa.ArrowInvalid, msgpack.UnpackException):
            raise ContinuationKeyError("this is no key of a scan of a cluster; start a new scan") from None
        if not is_same_cluster(self.connections.read_map().members, members):
            raise replaced()
        return ClusterScan(table, state, members)

    def placement(self) -> tuple[Placement, dict[int, str]]:
        """Return where slots are now, and the addresses of shards."""
        cluster = self.connections.read_map()
        return cluster.placement, {s: "{}:{}".format(*node.address) for s, node in cluster.nodes.items()}

    def __getattr__(self, name: str) -> NoReturn:
        raise not_supported(Store, name)


class ClusterTable:
    """Keys of a cluster that share a pattern, as rows."""

    def __init__(
        self, store: ClusterStore, name: str, options: TableOptions, schema: pa.Schema | None
    ) -> None:
        self.store, self.name, self.options = store, name, options
        self.connections = store.connections
        self._pattern = options.keys_pattern.encode()
        self._prefix = prefix_of(self._pattern)
        self.slots = slots_of_prefix(self._prefix)
        self._schema = pa.schema([pa.field(options.key_column, pa.string())])
        if schema is None:
            most, typed = options.sample_keys, options.infer_schema
            schema = pa.schema(infer_fields(self.connections, self.space(None), self.slots, most, typed))
            _check_names(schema, options)
        elif not isinstance(schema, pa.Schema):
            raise InvalidOption("schema must be a pyarrow.Schema", option="schema")
        self._schema = _with_key(schema, options)

    def __repr__(self) -> str:
        return f"<elasticscan.ClusterTable {self.name!r} of keys {self.options.keys_pattern}>"

    @property
    def schema(self) -> pa.Schema:
        """The columns: the key's, the values', and the time to live if it was asked for."""
        return self._schema

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
            NotSupported: `embedded`, arguments of scans of an embedded store.
        """
        for name in embedded:
            raise NotSupported(f"scan({name}=) is not supported for a Redis or Valkey cluster", name=name)
        for name, value in (("page_rows", page_rows), ("page_bytes", page_bytes)):
            whole_number(name, value, 1, MAX_NUMBER)
        if limit is not None:
            whole_number("limit", limit, 0, MAX_NUMBER)
        names = tuple(self._schema.names if columns is None else columns)
        for name in names:
            if name not in self._schema.names:
                raise no_such_column(self.name, name, self._schema.names)
        if not names or len(set(names)) < len(names):
            raise InvalidOption(
                f"columns={columns!r} must name at least one column, each once", option="columns"
            )
        slots = self.slots
        if filter is not None:
            slots &= self._slots_of(Predicate.parse(filter, self._schema))
        members = sorted(self.connections.map.members)
        plan = (
            self.name,
            asdict(self.options),
            self._schema.serialize().to_pybytes(),
            members,
        )
        state = ContinuationKey(
            table=0,
            snapshot=0,
            base_topology=0,
            slots=slots,
            cursors=(Cursor(slots),) if slots and limit != 0 else (),
            columns=names,
            filter=filter,
            page_rows=page_rows,
            page_bytes=page_bytes,
            lease="",
            limit=limit,
            plan=msgpack.packb(plan),
        )
        return ClusterScan(self, state, members)

    def _slots_of(self, predicate: Predicate) -> SlotSet:
        """Return the slots of the keys that a filter names one by one; all where it does not."""
        field = self._schema.field(0)
        if not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
            return self.slots  # a number can be written in several ways
        keys = value_set(predicate.condition, field).keys
        named = single_values(keys, field.type, _MOST_KEYS)
        if named is None:
            return self.slots
        values = [decode_key(each.key, field.type).as_py() for each in named.intervals]
        texts = [value.encode() if isinstance(value, str) else value for value in values if value is not None]
        slots = {slot_of(self._prefix[: self.key_start] + text) for text in texts}
        return SlotSet.of((slot, slot + 1) for slot in slots)

    @property
    def key_start(self) -> int:
        """The number of bytes of a key's name that are not part of its column."""
        start = self.name.encode() + b":"
        return len(start) if self._prefix.startswith(start) else 0

    def space(self, predicate: Predicate | None) -> KeySpace:
        """Return the keys to read, and how; names that a filter rules out need no values."""
        options = self.options
        model = Model(
            options.model, self._schema, self.key_start, options.ttl_column, options.mode == FAIL_FAST
        )
        return KeySpace(
            self._prefix,
            expression_of(self._pattern),
            model,
            options.max_slot_keys,
            b":elasticscan:" + os.urandom(6).hex().encode(),
            None if predicate is None else key_condition(predicate, model.key),
        )

    @property
    def primary_key(self) -> tuple[str, ...]:
        return (self.options.key_column,)

    shard_key = primary_key

    def begin(self, read: ReadRequest) -> ScanStart:
        """Begin a scan that is divided among tasks."""
        scan = self.scan(read.columns, read.filter, None, read.page_rows, read.page_bytes)
        cluster = self.connections.read_map()
        names = {shard: "{}:{}".format(*node.address) for shard, node in cluster.nodes.items()}
        base = record_topology(cluster, self.store.options.topology_history)
        return ScanStart(scan, self._schema, cluster.placement, base, names, self.slot_bytes())

    def access_paths(self, read: ReadRequest) -> list[dict[str, Any]]:
        """Return the one way to read: all keys of the slots that the filter leaves."""
        slots = self.scan(read.columns, read.filter).slots
        keys = float(sum(self.slot_bytes()[start:end].sum() for start, end in slots)) / _KEY_BYTES
        return [
            {
                "access": "direct",
                "kind": "direct",
                "condition": None,
                "remainder": read.filter,
                "rows_scanned": keys,
                "cost": keys,
                "chosen": True,
                "reason": None,
            }
        ]

    def places(self, rows: pa.RecordBatch) -> NoReturn:
        raise not_supported(Table, "places")

    def slot_bytes(self) -> Weights:
        """Return about how much each slot holds: its keys, of all tables."""
        weights: Weights = np.zeros(SLOTS)
        cluster = self.connections.map
        for shard, node in cluster.nodes.items():
            for slot, count in self.connections.count_keys(node.address, cluster.placement.at(shard)).items():
                weights[slot] = count * _KEY_BYTES
        return weights

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.scan().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        return self.scan().to_table()

    def __enter__(self) -> ClusterTable:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store of the table."""
        self.store.close()

    def __getattr__(self, name: str) -> NoReturn:
        raise not_supported(Table, name)


def _check_names(values: pa.Schema, options: TableOptions) -> None:
    """Raise where a field of the values has the name of the key's column, or of the time to live."""
    for option, name in (("keyColumn", options.key_column), ("ttlColumn", options.ttl_column)):
        if name in values.names:
            raise InvalidOption(
                f"the values have a field {name!r}, too; choose another name as {option}", option=option
            )


def _with_key(columns: Iterable[pa.Field], options: TableOptions) -> pa.Schema:
    """Return the columns with the key's first, and the time to live last."""
    named = {field.name: field for field in columns}
    key = named.pop(options.key_column, pa.field(options.key_column, pa.string()))
    if options.ttl_column is not None:
        named.pop(options.ttl_column, None)
        named[options.ttl_column] = pa.field(options.ttl_column, pa.int64())
    values = [field for name, field in named.items() if name != options.ttl_column]
    if options.model == "string" and len(values) > 1:
        raise InvalidOption(
            f"a string has one column, and the schema names {len(values)} besides the key; name one",
            option="schema",
        )
    return pa.schema([key.with_nullable(False), *(field.with_nullable(True) for field in named.values())])


def not_supported(embedded: type, name: str) -> Exception:
    """Return the error for a method that only the embedded store has; other names are simply not there."""
    if name.startswith("_") or not hasattr(embedded, name):
        return AttributeError(f"a Redis or Valkey cluster has no {name!r}", name=name)
    return NotSupported(
        f"{name}() is not supported for a Redis or Valkey cluster, which is only read", name=name
    )
