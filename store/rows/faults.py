"""The place of what Arrow refuses in a file of JSON: it says what is wrong, but of a block, and not where.

Only a file that was refused is read so: value by value, from its beginning, by Python's own parser.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import fs

CHUNK_CHARACTERS = 1 << 20
# A value that is longer is not looked for.
MAX_CHARACTERS = 32 << 20
_ROW = re.compile(r" in row (\d+)$")
# A value that its column does not take: the type and the text, in what reads JSON and in what converts texts.
_VALUE = re.compile(
    r"Failed to convert JSON to (?P<kind>.+), couldn't parse:(?P<text>.*)$"
    r"|Failed to convert JSON to (?P<exact>.+): (?P<number>\S+)(?P<want> requires \w+ \d+)$"
    r"|Failed to parse string: '(?P<time>.*)' as a scalar of type (?P<of>[^:]+)"
    r"(?P<zone>: expected \w+ zone offset)?",
    re.DOTALL,
)
_POINTER = re.compile(r"Column\(/([^)]*)\)")
_SPACE = re.compile(r"\s*")


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


_WORDS = {list: "an array", str: "a text", _Number: "a number", bool: "a boolean", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A value that is refused.

    Attributes:
        line: where it begins, from 1; for text that is no JSON, where that goes wrong.
        why: what is wrong with it.
        unknown: the field that no column has, `a.b` for one within an object.
    """

    line: int
    why: str
    unknown: str | None = None


def fault_in(
    system: fs.FileSystem, path: str, columns: pa.Schema | None, said: str, rows_before: int
) -> Fault | None:
    """The first value of a file that Arrow refuses; None where it is not found.

    Args:
        columns: those that the values may have; any, if None.
        said: what Arrow says, with a row of the block that it read.
        rows_before: the rows of the blocks before that one.
    """
    row, message = _ROW.search(said), _VALUE.search(said)
    wanted = rows_before + int(row[1]) if row is not None else None
    kind = None if columns is None else pa.struct(list(columns))
    try:
        with system.open_input_stream(path) as stream:
            for number, (line, value) in enumerate(_values(stream)):
                found = _wrong(value, kind)
                if found is None and message is not None and kind is not None:
                    found = _refused(value, kind, message)
                if found is None and number == wanted:
                    found = _POINTER.sub(_named, _ROW.sub("", said)), None
                if found is not None:
                    return Fault(line, *found)
    except RecursionError:  # objects within objects, a thousand deep
        pass
    return None


def _wrong(value: Any, kind: pa.DataType | None) -> tuple[str, str | None] | None:
    """The fault of a value, with the field that is unknown."""
    if isinstance(value, json.JSONDecodeError):
        return f"it is no JSON: {value.msg}", None
    if not isinstance(value, dict):
        return f"it has {_WORDS[type(value)]} in place of an object", None
    if kind is None:
        return None
    unknown = _unknown(value, kind)
    if unknown is not None:
        return f"it has a field {unknown!r}", unknown
    null = next((part.name for part in kind if not part.nullable and value.get(part.name) is None), None)
    return None if null is None else (f"field {null!r} has no value, and its column takes no null", None)


def _refused(value: Any, kind: pa.DataType, message: re.Match[str]) -> tuple[str, None] | None:
    """The field whose value its column does not take, if it is of this one."""
    text = next(t for t in (message["text"], message["number"], message["time"]) if t is not None)
    wanted = message["kind"] or message["exact"] or message["of"]
    for name, leaf, its_kind in _leaves(value, kind):
        if isinstance(leaf, str) and leaf == text and str(its_kind) == wanted:
            value = str(leaf)[:80] if isinstance(leaf, _Number) else repr(leaf[:80])
            more = message["zone"] or (f":{message['want']}" if message["want"] else "")
            return f"field {name!r} has {value}, which is no value of type {wanted}{more}", None
    return None


def _leaves(value: Any, kind: pa.DataType, name: str = "") -> Iterator[tuple[str, Any, pa.DataType]]:
    """The values within a value, each with the name of its field and its type."""
    if isinstance(value, dict) and pa.types.is_struct(kind):
        for key, part in value.items():
            yield from _leaves(part, kind.field(key).type, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and pa.types.is_list(kind):
        for part in value:
            yield from _leaves(part, kind.value_type, name)
    else:
        yield name, value, kind


def _named(pointer: re.Match[str]) -> str:
    return f"field {pointer[1].replace('/', '.')!r}"


def _unknown(value: Any, kind: pa.DataType) -> str | None:
    """The first field of a value that its type does not have."""
    if isinstance(value, dict) and pa.types.is_struct(kind):
        for name, part in value.items():
            at = kind.get_field_index(name)
            if at < 0:
                return str(name)
            deeper = _unknown(part, kind.field(at).type)
            if deeper is not None:
                return f"{name}.{deeper}"
    if isinstance(value, list) and pa.types.is_list(kind):
        return next((found for part in value if (found := _unknown(part, kind.value_type))), None)
    return None


def _values(stream: Any) -> Iterator[tuple[int, Any]]:
    """The values of a file, each with its line; at last an error, if the rest is no JSON."""
    decode = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number).raw_decode
    text, at, line, more = "", 0, 1, True
    chunks = _texts(stream)
    while True:
        space = _SPACE.match(text, at)
        assert space is not None, "it fits nothing, too"
        line, at = line + text.count("\n", at, space.end()), space.end()
        # The end of a number may be in the next chunk.
        broken: json.JSONDecodeError | None = None
        if at < len(text):
            try:
                value, end = decode(text, at)
            except json.JSONDecodeError as error:
                broken = error
            else:
                if end < len(text) or not more:
                    yield line, value
                    line, at = line + text.count("\n", at, end), end
                    continue
        if more and len(text) - at <= MAX_CHARACTERS:
            chunk = next(chunks, None)
            more = chunk is not None
            text, at = text[at:] + (chunk or ""), 0
            continue
        if broken is not None:
            yield line + text.count("\n", at, broken.pos), broken
        return


def _texts(stream: Any) -> Iterator[str]:
    """The text of a stream in chunks; what is no UTF-8 is replaced, and a mark of byte order left out."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    while chunk := stream.read(CHUNK_CHARACTERS):
        yield decoder.decode(chunk)
