"""Frozen values as msgpack, by the types of their fields.

A value is packed as the list of its fields, in the order of its class. So a class whose fields change gets a
new format number, and the classes of old numbers stay. Fields whose metadata has `apart` are stored
elsewhere, and have their defaults here. Bytes are unpacked only after their digest was checked, so types are
not checked again.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgpack
import pyarrow as pa

from elasticscan.base.concurrency import cached_property
from elasticscan.topology import SlotSet

T = TypeVar("T")
Reader = Callable[[Any], Any]


class Packed(Generic[T]):
    """Values of a class by their ids, unpacked at first use, since a checkpoint may have many.

    Args:
        known: `by_id` or `packed`; the other one is derived from it.
    """

    def __init__(self, kind: type[T], **known: Any) -> None:
        self._kind = kind
        self.__dict__ |= known

    @cached_property
    def by_id(self) -> Mapping[int, T]:
        """Return the values, ascending by their ids."""
        return unpack_value(dict[int, self._kind], self.packed)  # type: ignore[name-defined]

    @cached_property
    def packed(self) -> bytes:
        return pack_value(self.by_id)

    def changed(self, values: Mapping[int, T], gone: Collection[int] = ()) -> Packed[T]:
        """Return the values with some added or replaced, and without the ids in `gone`."""
        if not values and not gone:
            return self
        changed = {**self.by_id, **values}
        for id in gone:  # noqa: A001
            del changed[id]
        return Packed(self._kind, by_id=changed)


def pack_value(value: object) -> bytes:
    """Return a frozen value as bytes."""
    packed: bytes = msgpack.packb(value, default=_plain)
    return packed


def unpack_value(kind: type[T], packed: bytes) -> T:
    """Return the value of a class from its packed bytes."""
    plain, read = msgpack.unpackb(packed, use_list=False, strict_map_key=False), _reader(cast(Any, kind))
    value: T = plain if read is None else read(plain)
    return value


def _plain(value: Any) -> Any:
    """Convert a value that msgpack does not know to one that it knows."""
    if isinstance(value, SlotSet):
        return list(chain.from_iterable(value.ranges))
    if is_dataclass(value):
        return [getattr(value, name) for name in _packed_fields(cast(Any, type(value)))]
    if isinstance(value, Packed):
        return value.packed
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, pa.Schema):
        return value.serialize().to_pybytes()
    if isinstance(value, pa.DataType):
        return pa.schema([pa.field("", value)]).serialize().to_pybytes()
    raise TypeError(f"{type(value).__name__} has no form in the log")


@cache
def _packed_fields(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields that are packed, in order."""
    return tuple(field.name for field in fields(kind) if field.init and "apart" not in field.metadata)


# Nearly all fragments at one shard have the same slots, which may be thousands of ranges.
@lru_cache(maxsize=64)
def _slots(edges: tuple[int, ...]) -> SlotSet:
    return SlotSet.of(zip(edges[::2], edges[1::2], strict=True))


def _schema(plain: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(plain))


_READERS: dict[Any, Reader] = {
    SlotSet: _slots,
    pa.Schema: _schema,
    pa.DataType: lambda plain: _schema(plain).field(0).type,
}


@cache
def _reader(kind: Any) -> Reader | None:
    """Return the function from a msgpack value to a value of a type; None if no conversion is needed."""
    origin, arguments = get_origin(kind), get_args(kind)
    inner = [_reader(each) for each in arguments if each not in (type(None), ...)]
    if kind in _READERS or is_dataclass(kind):
        return _READERS.get(kind) or _reader_of_fields(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if origin is frozenset:
        return frozenset
    if origin is Packed:
        return lambda packed: Packed(arguments[0], packed=packed)
    read = inner[-1] if inner else None
    if read is None:
        return None
    if origin in (Union, types.UnionType):
        return lambda plain: None if plain is None else read(plain)
    if origin is not tuple:
        return lambda plain: {key: read(item) for key, item in plain.items()}
    if arguments[-1] is ...:
        return lambda plain: tuple(map(read, plain))
    return lambda plain: (*plain[:-1], read(plain[-1]))


def _reader_of_fields(kind: Any) -> Reader:
    names, hints = _packed_fields(kind), get_type_hints(kind)
    reads = [(name, read) for name in names if (read := _reader(hints[name])) is not None]

    def read_fields(plain: tuple[Any, ...]) -> Any:
        values = dict(zip(names, plain, strict=True))
        for name, read in reads:
            values[name] = read(values[name])
        return kind(**values)

    return read_fields
