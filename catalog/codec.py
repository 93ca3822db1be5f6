"""Frozen values as msgpack, by the types of their fields.

A value is the list of its fields, in the order in which its class has them; so a class whose fields change
needs another format number, and the classes of old numbers stay. Fields whose metadata has `apart` are kept
in other parts, and have their defaults here. What is read is checked against the types: bytes that do not fit
raise `ValueError`, and no value is half of one.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import chain
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgpack
import pyarrow as pa

from elasticscan.topology import SlotSet

T = TypeVar("T")


# Errors of what is no value of a type; Arrow raises `OSError` for a schema that it cannot parse.
_UNFIT = (
    *(TypeError, AttributeError, KeyError, AssertionError, OverflowError, OSError),
    *(pa.ArrowException, msgpack.UnpackException),
)


def pack_value(value: object) -> bytes:
    """Return a frozen value as bytes."""
    packed: bytes = msgpack.packb(value, default=_plain)
    return packed


def unpack_value(kind: type[T], packed: bytes) -> T:
    """Return the value of a class that bytes hold.

    Raises:
        ValueError: they hold no such value.
    """
    try:
        value: T = _reader(cast(Any, kind))(msgpack.unpackb(packed, use_list=True, strict_map_key=False))
    except _UNFIT as error:
        raise ValueError(f"no {kind.__name__}: {error}") from error
    return value


def _plain(value: Any) -> Any:
    """Return what msgpack does not know in terms of what it knows."""
    if isinstance(value, SlotSet):
        return list(chain.from_iterable(value.ranges))
    if is_dataclass(value):
        return [getattr(value, field.name) for field in _packed_fields(cast(Any, type(value)))]
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
def _packed_fields(kind: Any) -> tuple[Field[Any], ...]:
    """Return the fields of a class that its values have in the log; the others come last."""
    return tuple(field for field in fields(kind) if field.init and "apart" not in field.metadata)


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return the function that makes a value of a type from what msgpack gave."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (some,) = (_reader(each) for each in arguments if each is not type(None))
        return lambda plain: None if plain is None else some(plain)
    if origin is tuple:
        readers = tuple(_reader(each) for each in arguments if each is not ...)
        if arguments[-1] is ...:
            return lambda plain: tuple(map(readers[0], plain))
        return lambda plain: tuple(read(item) for read, item in zip(readers, plain, strict=True))
    if origin is frozenset:
        (read_member,) = map(_reader, arguments)
        return lambda plain: frozenset(map(read_member, plain))
    if origin is not None and issubclass(origin, Mapping):
        read_key, read_item = map(_reader, arguments)
        return lambda plain: {read_key(key): read_item(item) for key, item in plain.items()}
    if kind is SlotSet:
        return lambda edges: SlotSet.of(zip(edges[::2], edges[1::2], strict=True))
    if kind is pa.Schema:
        return lambda plain: pa.ipc.read_schema(pa.py_buffer(plain))
    if kind is pa.DataType:
        return lambda plain: pa.ipc.read_schema(pa.py_buffer(plain)).field(0).type
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        readers = tuple(_reader(hints[field.name]) for field in _packed_fields(cast(Any, kind)))
        make: Any = kind
        return lambda plain: make(*(read(item) for read, item in zip(readers, plain, strict=True)))
    if issubclass(kind, Enum):
        return cast(Callable[[Any], Any], kind)
    return lambda plain: _checked(plain, kind)


def _checked(plain: Any, kind: type) -> Any:
    if kind is float and type(plain) is int:
        return float(plain)
    if type(plain) is not kind:
        raise ValueError(f"{type(plain).__name__} instead of {kind.__name__}")
    return plain
